"""Ridge regression of every gene on the regulators, and copies of them, with one penalty.

Knock-offs are fitted with it. The moments of the cells are those of exact.py; of fewer cells than
features, the same slopes come from the products of cells. Targets are read some columns at a time,
so that no more of a sparse table is dense at once.

Letters: C cells, N genes, R regulators, F features (R, or as many again for each copy of the
regulators).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from grn.evidence.exact import Moments, solve
from grn.model.penalty import Penalty

COLUMNS = 256  # targets that are dense at the same time
JUDGED = 512  # targets that choose the penalty
GRID = tuple(10.0**power for power in (0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5))
# what the mean error over targets counts beside a target's own, times cells and explained share
COMMON = 10.0


@dataclass(frozen=True)
class Columns:
    """Targets [C, N] that are read some columns at a time. read: positions or a slice of columns ->
    [C, n].
    """

    shape: tuple[int, int]
    read: Callable[[Tensor | slice], Tensor]

    @classmethod
    def of(cls, targets: Tensor | Columns) -> Columns:
        """Return the columns of a tensor [C, N]; columns stay as they are."""
        if isinstance(targets, Columns):
            return targets
        cells, genes = targets.shape
        return cls((cells, genes), lambda some: targets[:, some])

    def each(self, change: Callable[[Tensor], Tensor]) -> Columns:
        """Return columns to which `change`, [C, n] -> [C, n], is applied when they are read."""
        return Columns(self.shape, lambda some: change(self.read(some)))

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """All columns, COLUMNS at a time: which, and their values."""
        for first in range(0, self.shape[1], COLUMNS):
            some = slice(first, min(first + COLUMNS, self.shape[1]))
            yield some, self.read(some)


def slopes_on(
    features: Tensor,
    y: Tensor | Columns,
    own: Tensor,
    penalty: float,
    known: Tensor | None = None,
) -> Tensor:
    """Return the slopes [N, F] of targets y [C, N] on features [C, F], both with mean 0; a gene
    that regulates has none on itself and on its copies.

    own [R]: the gene that each regulator is.
    known [R, N]: products of the regulators with the targets, which all fits of the same cells
        share; None: they are computed.
    """
    targets = Columns.of(y)
    number = numbers_of(own, targets.shape[1])
    fit = (OfFeatures if features.shape[1] <= len(features) else OfCells)(features, penalty)
    copies = torch.arange(features.shape[1] // len(own), device=own.device)[:, None] * len(own)
    found = features.new_empty(targets.shape[1], features.shape[1])
    for some, values in targets.blocks():
        slopes = fit.slopes(values, None if known is None else known[:, some])
        here = (number[some] >= 0).nonzero()[:, 0]
        if len(here):
            slopes[:, here] = fit.without(slopes[:, here], number[some][here] + copies)
        found[some] = slopes.mT
    return found


def numbers_of(own: Tensor, genes: int) -> Tensor:
    """Return the number of each gene among the regulators, int64 [N]; -1 for others.

    own [R]: the gene that each is.
    """
    number = own.new_full((genes,), -1)
    number[own] = torch.arange(len(own), device=own.device)
    return number


class OfFeatures:
    """Ridge regression by (X^T X + penalty)^-1, and the solutions that this inverse gives."""

    def __init__(self, features: Tensor, penalty: float):
        self.features = features
        gram = features.mT @ features
        gram.diagonal().add_(penalty)
        self.inverse = torch.cholesky_inverse(torch.linalg.cholesky(gram))

    def slopes(self, values: Tensor, known: Tensor | None = None) -> Tensor:
        """[F, n] of targets [C, n]. known: their products with the first features, [R, n]."""
        if known is None:
            return self.inverse @ (self.features.mT @ values)
        others = self.features[:, len(known) :].mT @ values
        return self.inverse @ torch.cat([known, others])

    def columns(self, features: Tensor) -> Tensor:
        """[F, m]: those of the inverse for features [m]."""
        return self.inverse[:, features]

    def without(self, slopes: Tensor, out: Tensor) -> Tensor:
        """Slopes [F, n] without the features out [B, n] of each target: the inverse without these
        rows.
        """
        columns = self.columns(out.flatten()).unflatten(1, out.shape)  # [F, B, n]
        block = columns.gather(0, out[:, None].expand(-1, len(out), -1))  # [B, B, n]
        weight = torch.linalg.solve(block.movedim(-1, 0), slopes.gather(0, out).mT[..., None])[
            ..., 0
        ]  # [n, B]
        slopes = slopes - torch.einsum("fbn,nb->fn", columns, weight)
        return slopes.scatter(0, out, 0.0)


class OfCells(OfFeatures):
    """Ridge regression by (X X^T + penalty)^-1, for fewer cells than features."""

    def __init__(self, features: Tensor, penalty: float):
        self.features, self.penalty = features, penalty
        products = features @ features.mT
        products.diagonal().add_(penalty)
        self.of_cells = torch.cholesky_inverse(torch.linalg.cholesky(products))

    def slopes(self, values: Tensor, known: Tensor | None = None) -> Tensor:
        return self.features.mT @ (self.of_cells @ values)

    def columns(self, features: Tensor) -> Tensor:
        found = self.features.mT @ (self.of_cells @ self.features[:, features])
        found.neg_()[features, torch.arange(len(features), device=features.device)] += 1
        return found / self.penalty


def choose_penalty(x: Tensor, y: Tensor | Columns, own: Tensor, folds: Tensor) -> float:
    """One penalty for all targets: the geometric mean of those with which held-out cells of each
    are predicted best.

    The error of one target is noisy, so that the mean over all targets counts, too: the more, the
    less of the targets' variance the regulators explain, and the fewer the cells are. x [C, R], y
    [C, N], own [R]: as for `slopes_on`. folds [C]: of the cells; of many targets, JUDGED choose.
    """
    targets = Columns.of(y)
    number = numbers_of(own, targets.shape[1])
    chosen = torch.arange(targets.shape[1], device=own.device)
    if len(chosen) > JUDGED:
        chosen = (
            torch.randperm(len(chosen), generator=torch.Generator().manual_seed(0))[:JUDGED]
            .sort()[0]
            .to(own)
        )
    values, one = targets.read(chosen), x.new_ones(len(x), 1)
    parts = [Moments.of(x, values, one, (folds == each).nonzero()[:, 0]) for each in folds.unique()]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    error = x.new_zeros(len(GRID), len(chosen))
    for part in parts:
        learned = total - part
        for place, penalty in enumerate(GRID):
            found = solve(learned, Penalty(penalty, 0.0), self_key=number[chosen], free=False)
            error[place] += part.errors(found.of_states(1)).clamp(min=0) * part.cells
    error = error / total.square.clamp(min=1e-9)
    common = error.mean(1, keepdim=True)
    explained = max(1 - float(common.min()), 1e-9)
    best = (error + COMMON / (explained * len(x)) * common).argmin(0)
    return float(error.new_tensor(GRID)[best].log().mean().exp())


def without(covariates: Tensor) -> Callable[[Tensor], Tensor]:
    """values [C, V] -> the same without what the covariates [C, G] predict of them."""
    basis, size, _ = torch.linalg.svd(covariates, full_matrices=False)
    basis = basis[
        :, size > len(covariates) * torch.finfo(size.dtype).eps * size[0].clamp(min=1e-30)
    ]
    # one table more, not two
    return lambda values: torch.addmm(values, basis, basis.mT @ values, alpha=-1)
