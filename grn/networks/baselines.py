"""The simple methods that every network is compared with: Pearson and ridge regression.

Letters: C cells, N genes, R regulators, T targets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import torch
from scipy import sparse
from torch import Tensor

from grn.runtime.processes import ALONE, Processes

PENALTIES = np.logspace(0, 5, 11)
TOGETHER, NUMBERS = (
    256,
    2**21,
)  # genes whose regressions are computed at the same time, and the numbers of each table
JUDGING = 4096  # cells, each left out in turn, that choose the penalties of predictions
BY_GENE = 256  # genes whose cells are in memory a second time, by columns


def pearson(matrix: np.ndarray, genes: Sequence[str], regulators: Sequence[str]) -> pd.DataFrame:
    """Correlation of each regulator with each other gene: columns source, target, weight.

    matrix [C, N]: multiplicities of `genes`.
    regulators: names among them. A gene that never varies has weight 0.
    """
    positions = _positions(genes, regulators)
    values, _ = _in_sds(torch.as_tensor(matrix).double())
    return _edges((values[:, positions].T @ values / len(values)).numpy(), genes, positions)


def ridge(matrix: np.ndarray, genes: Sequence[str], regulators: Sequence[str]) -> pd.DataFrame:
    """Coefficients of a ridge regression of each gene on the regulators, the gene itself left out,
    all standardised.

    Arguments and columns as in `pearson`. Each target has its own penalty from PENALTIES: the one
    with the smallest squared leave-one-out error over the cells. The result is that of
    scikit-learn's RidgeCV(PENALTIES, alpha_per_target=True), computed for all targets from one
    eigendecomposition.
    """
    positions = _positions(genes, regulators)
    values, _ = _in_sds(torch.as_tensor(matrix).double())
    fit = _RidgeFit(values[:, positions])
    blocks = [
        fit.coefficients(values[:, some], some, positions) for some in _blocks(*values.shape[::-1])
    ]
    return _edges(torch.cat(blocks, 1).numpy(), genes, positions)


def ridge_predictions(
    multiplicity: sparse.csr_matrix,
    training: np.ndarray,
    test: np.ndarray,
    regulators: np.ndarray,
    *,
    basal: np.ndarray,
    membership: np.ndarray | None = None,
    device: torch.device | str = "cpu",
    processes: Processes = ALONE,
) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Expected multiplicities of D test cells by the regression of `ridge` within states, in blocks
    of genes.

    It knows what the model knows: the means of the states in the training cells, and the depth. No
    gene is predicted from itself. Of many cells, JUDGING choose the penalties.

    multiplicity [.., N], basal [..], membership [.., S] (None: one state): of all cells.
    training [C], test [D]: rows.
    regulators [R]: positions among the genes.
    device: that computes them.
    processes: that call this together, of which each predicts some of the genes. Yields which
        genes, the predictions [D, n], and the means of the states alone.
    """
    of_states = np.ones((len(basal), 1)) if membership is None else membership
    share = torch.as_tensor(of_states, dtype=torch.float64, device=device)
    known, asked = share[training], share[test]
    size = known.sum(0)[:, None].clamp(min=1e-9)

    def around(values: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        """Of the training and the test cells, without the means of the states; and these means in
        the test cells.
        """
        learned, judged = (
            torch.as_tensor(values[rows]).to(device).double() for rows in (training, test)
        )
        mean = (known.T @ learned) / size
        return learned - known @ mean, judged - asked @ mean, asked @ mean

    every = np.column_stack([multiplicity[:, regulators].toarray(), basal])
    inputs, given, _ = around(every)
    standardised, sd = _in_sds(inputs)
    fit, given = _RidgeFit(standardised, JUDGING), given / sd
    own = processes.share(multiplicity.shape[1], BY_GENE)
    for first in range(own.start, own.stop, BY_GENE):
        by_gene = multiplicity[:, first : first + BY_GENE].tocsc()
        for part in _blocks(by_gene.shape[1], len(training)):
            values, _, mean = around(by_gene[:, part].toarray())
            standardised, sd = _in_sds(values)
            some = slice(first + part.start, first + part.stop)
            predicted = mean + sd * (given @ fit.coefficients(standardised, some, regulators))
            yield some, predicted.cpu().numpy(), mean.cpu().numpy()


class _RidgeFit:
    """Ridge regressions on the same regulators, in double precision.

    inputs [C, R]: their standardised multiplicities.
    judging: how many cells, each left out in turn, choose the penalties; None: all.
    """

    def __init__(self, inputs: Tensor, judging: int | None = None):
        self.inputs = inputs
        judges = np.random.default_rng(0).permutation(len(inputs))[:judging]
        self.judges = torch.from_numpy(np.sort(judges)).to(inputs.device)
        self.eigenvalues, self.vectors = torch.linalg.eigh(self.inputs.T @ self.inputs)
        self.rotated = self.inputs @ self.vectors

    def coefficients(self, y: Tensor, some: slice, positions: np.ndarray) -> Tensor:
        """Return the coefficients [R, n] of the genes `some`, 0 for a gene on itself.

        y [C, n]: standardised.
        positions [R]: of all regulators among all genes; further inputs, which are no genes, come
            last.
        """
        among = np.flatnonzero((positions >= some.start) & (positions < some.stop))
        here, genes = (
            torch.from_numpy(each).to(self.inputs.device)
            for each in (among, positions[among] - some.start)
        )
        products = self.rotated.T @ y
        inputs, rotated, y = (each[self.judges] for each in (self.inputs, self.rotated, y))
        best = torch.full_like(y[0], torch.inf)
        weights = torch.zeros_like(products)
        for penalty in PENALTIES:
            shrink = 1 / (self.eigenvalues.clamp(min=0) + penalty)
            coefficients = (self.vectors * shrink) @ products
            residuals = y - inputs @ coefficients
            leverages = (rotated.square() @ shrink)[:, None].repeat(1, y.shape[1])
            # A regulator that is the target is not among the inputs. With P = (X'X + penalty)^-1,
            # block inversion gives its coefficients on the others as -P_ij / P_ii and its residuals
            # as X P_i / P_ii, and it reduces the
            # leverage by (X P_i)^2 / P_ii.
            inverse = (self.vectors * shrink) @ self.vectors[here].T
            own = inverse[here, torch.arange(len(here))]
            projected = inputs @ inverse
            coefficients[:, genes] = -inverse / own
            residuals[:, genes] = projected / own
            leverages[:, genes] -= projected.square() / own
            # 1 / C is the leverage of the intercept.
            error = residuals.div_(leverages.neg_().add_(1 - 1 / len(self.inputs)))
            error = error.square_().mean(0)
            weights = torch.where(error < best, coefficients, weights)
            best = torch.minimum(error, best)
        weights[here, genes] = 0
        return weights


def _blocks(genes: int, cells: int) -> Iterator[slice]:
    """All genes, so many at a time that what is computed of them is small."""
    together = max(1, min(TOGETHER, NUMBERS // max(cells, 1)))
    for first in range(0, genes, together):
        yield slice(first, min(first + together, genes))


def _positions(genes: Sequence[str], regulators: Sequence[str]) -> np.ndarray:
    position = {gene: number for number, gene in enumerate(genes)}
    return np.array([position[name] for name in regulators])


def _in_sds(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return columns with mean 0 in their sds, 0 for a gene that never varies, and the sds, [N]: 1
    for such a gene.
    """
    sd = values.std(0, correction=0)
    varies = sd > 1e-12 * max(1.0, float(values.abs().max()) if values.numel() else 1.0)
    sd = torch.where(varies, sd, 1)
    return torch.where(varies, (values - values.mean(0)) / sd, 0), sd


def _edges(weights: np.ndarray, genes: Sequence[str], positions: np.ndarray) -> pd.DataFrame:
    """weights [R, N] as a table without self loops, sorted by |weight|."""
    names = np.asarray(genes, dtype=object)
    source, target = np.nonzero(positions[:, None] != np.arange(len(genes)))
    table = pd.DataFrame(
        {
            "source": names[positions[source]],
            "target": names[target],
            "weight": weights[source, target],
        }
    )
    return table.iloc[np.argsort(-table["weight"].abs().to_numpy(), kind="stable")].reset_index(
        drop=True
    )
