"""The simple methods that every network is compared with: Pearson and ridge regression.

Letters: C cells, N genes, R regulators, T targets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import torch
from scipy import sparse

from grn.runtime.processes import ALONE, Processes

PENALTIES = np.logspace(0, 5, 11)
TOGETHER, NUMBERS = (
    256,
    2**21,
)  # genes whose regressions are computed at the same time, and the numbers of each table
BY_GENE = 256  # genes whose cells are in memory a second time, by columns


def pearson(matrix: np.ndarray, genes: Sequence[str], regulators: Sequence[str]) -> pd.DataFrame:
    """Correlation of each regulator with each other gene: columns source, target, weight.

    matrix [C, N]: multiplicities of `genes`.
    regulators: names among them. A gene that never varies has weight 0.
    """
    positions = _positions(genes, regulators)
    values = _standardised(matrix)
    return _edges(values[:, positions].T @ values / len(values), genes, positions)


def ridge(matrix: np.ndarray, genes: Sequence[str], regulators: Sequence[str]) -> pd.DataFrame:
    """Coefficients of a ridge regression of each gene on the regulators, the gene itself left out,
    all standardised.

    Arguments and columns as in `pearson`. Each target has its own penalty from PENALTIES: the one
    with the smallest squared leave-one-out error over the cells. The result is that of
    scikit-learn's RidgeCV(PENALTIES, alpha_per_target=True), computed for all targets from one
    eigendecomposition.
    """
    positions, values = _positions(genes, regulators), _standardised(matrix)
    fit = _RidgeFit(values[:, positions], "cpu")
    blocks = [
        fit.coefficients(values[:, some], some, positions) for some in _blocks(*values.shape[::-1])
    ]
    return _edges(np.concatenate(blocks, axis=1), genes, positions)


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
    gene is predicted from itself.

    multiplicity [.., N], basal [..], membership [.., S] (None: one state): of all cells.
    training [C], test [D]: rows.
    regulators [R]: positions among the genes.
    device: that computes them.
    processes: that call this together, of which each predicts some of the genes. Yields which
        genes, the predictions [D, n], and the means of the states alone.
    """
    share = np.ones((len(basal), 1)) if membership is None else membership.astype(np.float64)
    known, asked = share[training], share[test]
    size = np.maximum(known.sum(0)[:, None], 1e-9)

    def around(
        values: np.ndarray, test_values: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Both without the means of the states, and these means in the test cells."""
        mean = (known.T @ values) / size
        return values - known @ mean, test_values - asked @ mean, asked @ mean

    every = np.column_stack([multiplicity[:, regulators].toarray().astype(np.float64), basal])
    inputs, given, _ = around(every[training], every[test])
    _, sd = _mean_and_sd(inputs)
    fit, given = _RidgeFit(_standardised(inputs), device), given / sd
    own = processes.share(multiplicity.shape[1], BY_GENE)
    for first in range(own.start, own.stop, BY_GENE):
        by_gene = multiplicity[:, first : first + BY_GENE].tocsc()
        for part in _blocks(by_gene.shape[1], len(training)):
            values = by_gene[:, part].toarray().astype(np.float64)
            values, _, mean = around(values[training], values[test])
            _, sd = _mean_and_sd(values)
            some = slice(first + part.start, first + part.stop)
            yield (
                some,
                mean + sd * (given @ fit.coefficients(_standardised(values), some, regulators)),
                mean,
            )


class _RidgeFit:
    """Ridge regressions on the same regulators, in double precision. inputs [C, R]: their
    standardised multiplicities.
    """

    def __init__(self, inputs: np.ndarray, device: torch.device | str):
        self.inputs = torch.from_numpy(inputs).to(device)
        self.eigenvalues, self.vectors = torch.linalg.eigh(self.inputs.T @ self.inputs)
        self.rotated = self.inputs @ self.vectors

    def coefficients(self, values: np.ndarray, some: slice, positions: np.ndarray) -> np.ndarray:
        """Return the coefficients [R, n] of the genes `some`, 0 for a gene on itself.

        values [C, n]: standardised.
        positions [R]: of all regulators among all genes; further inputs, which are no genes, come
            last.
        """
        among = np.flatnonzero((positions >= some.start) & (positions < some.stop))
        here, genes = (
            torch.from_numpy(each).to(self.inputs.device)
            for each in (among, positions[among] - some.start)
        )
        y = torch.from_numpy(values).to(self.inputs)
        products = self.rotated.T @ y
        best = torch.full_like(y[0], torch.inf)
        weights = torch.zeros_like(products)
        for penalty in PENALTIES:
            shrink = 1 / (self.eigenvalues.clamp(min=0) + penalty)
            coefficients = (self.vectors * shrink) @ products
            residuals = y - self.inputs @ coefficients
            leverages = (self.rotated.square() @ shrink)[:, None].repeat(1, y.shape[1])
            # A regulator that is the target is not among the inputs. With P = (X'X + penalty)^-1,
            # block inversion gives its coefficients on the others as -P_ij / P_ii and its residuals
            # as X P_i / P_ii, and it reduces the
            # leverage by (X P_i)^2 / P_ii.
            inverse = (self.vectors * shrink) @ self.vectors[here].T
            own = inverse[here, torch.arange(len(here))]
            projected = self.inputs @ inverse
            coefficients[:, genes] = -inverse / own
            residuals[:, genes] = projected / own
            leverages[:, genes] -= projected.square() / own
            # 1 / C is the leverage of the intercept.
            error = residuals.div_(leverages.neg_().add_(1 - 1 / len(y))).square_().mean(0)
            weights = torch.where(error < best, coefficients, weights)
            best = torch.minimum(error, best)
        weights[here, genes] = 0
        return weights.cpu().numpy()


def _blocks(genes: int, cells: int) -> Iterator[slice]:
    """All genes, so many at a time that what is computed of them is small."""
    together = max(1, min(TOGETHER, NUMBERS // max(cells, 1)))
    for first in range(0, genes, together):
        yield slice(first, min(first + together, genes))


def _positions(genes: Sequence[str], regulators: Sequence[str]) -> np.ndarray:
    position = {gene: number for number, gene in enumerate(genes)}
    return np.array([position[name] for name in regulators])


def _standardised(matrix: np.ndarray) -> np.ndarray:
    """Columns with mean 0 and standard deviation 1 over the cells; all 0 for a gene that never
    varies.
    """
    values = np.asarray(matrix, dtype=np.float64)
    values = values - values.mean(0)
    sd = values.std(0)
    varies = _varies(matrix, sd)
    return np.where(varies, values / np.where(varies, sd, 1), 0)


def _mean_and_sd(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each column, [N] and [N]; the sd of a gene that never varies is 1."""
    sd = values.std(0)
    return values.mean(0), np.where(_varies(values, sd), sd, 1)


def _varies(matrix: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """bool [N]: which columns vary by more than rounding."""
    return sd > 1e-12 * max(1.0, float(np.abs(matrix).max(initial=0)))


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
