"""Ridge regressions with penalties that held-out cells choose: what knock-offs are fitted with.

Each target has its own penalty. The error of one target is noisy, so that the mean over all targets counts, too: the
more, the less of the targets' variance the regulators explain, and the fewer the cells are (COMMON). The grid of
penalties is widened where the best one is at its end.

Letters: C cells, N genes, R regulators, F features (R, or as many again for each copy of the regulators).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from grn.regulation.ridge import Columns, HeldOutError, Ridge, of_regulators, products

COMMON = 10.0  # what the mean error over targets counts beside a target's own, times cells and explained share
WIDER = 10**0.5  # step of the grid beyond its ends
WIDEST = 8  # times that it is widened
FOLDS = 5
LARGE = 4096  # features or cells, from which on float32 must do and one fold chooses


def choose_penalties(
    x: Tensor, y: Tensor | Columns, own: Tensor, folds: Tensor, penalties: list[float]
) -> tuple[Tensor, Tensor]:
    """The penalties with which held-out cells are predicted best, [N], and their errors, [N], in variances.

    x [C, R]: regulators.   y [C, N]: targets; both have mean 0.   own [R]: the gene that each regulator is.
    folds [C].   penalties: the grid to begin with; a single one is taken.
    """
    if min(x.shape) > LARGE:
        folds = torch.where(folds == 0, 0, -1)
    error_of = HeldOutError(x, y, folds, own)
    tried = sorted(penalties)
    error = error_of(tried)
    for _ in range(WIDEST if len(penalties) > 1 else 0):
        best = int(error.mean(1).argmin())
        if best == 0:
            tried, error = [tried[0] / WIDER, *tried], torch.cat([error_of([tried[0] / WIDER]), error])
        elif best == len(tried) - 1:
            tried, error = [*tried, tried[-1] * WIDER], torch.cat([error, error_of([tried[-1] * WIDER])])
        else:
            break
    common = error.mean(1, keepdim=True)
    explained = max(1 - float(common.min()), 1e-9)
    chosen = (error + COMMON / (explained * len(x)) * common).argmin(0)
    return error.new_tensor(tried)[chosen], error.gather(0, chosen[None])[0]


def slopes_on(features: Tensor, y: Tensor | Columns, own: Tensor, penalty: Tensor) -> Tensor:
    """The slopes [N, F] of targets y [C, N] on features [C, F], both with mean 0, for a penalty of each target, [N].

    own [R]: the gene that each regulator is.
    """
    ridge, columns = Ridge.without_targets(features), of_regulators(features, own)
    found = features.new_zeros(y.shape[1], features.shape[1])
    for some, targets in Columns.of(y).blocks():
        here = ((own >= some.start) & (own < some.stop)).nonzero()[:, 0]
        given = targets if ridge.dual else products(features, targets)
        solved = ridge.with_targets(given, own[here] - some.start, columns[here])
        found[some] = solved.coefficients(penalty[some].to(features)).mT
    return found


def without(covariates: Tensor) -> Callable[[Tensor], Tensor]:
    """values [C, V] -> the same without what the covariates [C, G] predict of them."""
    basis, size, _ = torch.linalg.svd(covariates, full_matrices=False)
    basis = basis[:, size > len(covariates) * torch.finfo(size.dtype).eps * size[0].clamp(min=1e-30)]
    return lambda values: torch.addmm(values, basis, basis.mT @ values, alpha=-1)  # one table more, not two
