"""Ridge regressions with penalties that held-out cells choose: what knock-offs and comparisons of slopes are read from.

Each target has its own penalty. The error of one target is noisy, so that the mean over all targets counts, too: the
more, the less of the targets' variance the regulators explain, and the fewer the cells are (COMMON). The grid of
penalties is widened where the best one is at its end. Whether the states deviate from their shared slopes is decided
once for all targets. Where they do, the fit is the mean of one with a small and one with a large rho (FREEDOM): the
second knows better which edges a state has and with which signs. That no such edge is one of chance is for the
knock-offs to say (grn/networks/evidence/false_discovery.py).

Letters: C cells, N genes, R regulators, K states.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from grn.regulation.ridge import Columns, Features, HeldOutError, Ridge

COMMON = 10.0  # what the mean error over targets counts beside a target's own, times cells and explained share
RATIOS = (0.0, 1.2)  # of rho: 0, every state has the shared slopes; held-out error does not tell finer steps apart
FREEDOM = (1.0, 2.5)  # times rho: the ratios that a fit is the mean of
WIDER = 10**0.5  # step of the grid beyond its ends
TOLERANCE = 0.25  # standard errors within which a larger ratio counts as equally good
WIDEST = 8  # times that it is widened
FOLDS = 5
MOST = 2**31  # operations of leaving out the regulators' own features, above which SOME targets choose the ratio
SOME = 64
LARGE = 4096  # features or cells, from which on float32 must do and one fold chooses


@dataclass(frozen=True)
class Penalties:
    """penalty [N]: lambda of each target.   ratio: rho.   error: held-out squared error, the mean over targets in
    variances of what the states' levels leave."""

    penalty: Tensor
    ratio: float
    error: float


def choose_penalties(
    x: Tensor,
    y: Tensor | Columns,
    states: Tensor,
    own: Tensor,
    folds: Tensor,
    penalties: list[float],
) -> Penalties:
    """The penalties and the ratio with which held-out cells are predicted best.

    x [C, R]: regulators.   y [C, N]: targets.   states [C, K]: their levels are taken out of both first.   own [R]: the
    gene that each regulator is.   folds [C].   penalties: the grid to begin with; a single one is taken.
    """
    rest = without(states)
    x, y = rest(x), Columns.of(y).each(rest)
    ratios = RATIOS if states.shape[1] > 1 else (0.0,)
    if min(x.shape[1] * (1 + states.shape[1]), len(x)) > LARGE:
        folds = torch.where(folds == 0, 0, -1)
    grid = sorted(penalties)
    if len(ratios) > 1 and len(own) * (1 + states.shape[1]) * min(x.shape) ** 2 > MOST:
        return _ratio_of_some(x, y, states, own, folds, grid)
    tried = []
    for ratio in ratios:
        penalty, error = _penalty_of_targets(Features(x, states, ratio, own), y, folds, grid)
        tried.append((Penalties(penalty, ratio, float(error.mean())), error))
    return _best(tried)


def _ratio_of_some(x: Tensor, y: Columns, states: Tensor, own: Tensor, folds: Tensor, grid: list[float]) -> Penalties:
    """The same at less cost: SOME targets on one fold choose the ratio, and a factor of the penalties without it."""
    every, _ = _penalty_of_targets(Features(x, states, 0.0, own), y, folds, grid)
    some = torch.linspace(0, y.shape[1] - 1, min(SOME, y.shape[1]), device=x.device).round().long()
    one_fold = torch.where(folds == 0, 0, -1)
    regulated = torch.isin(own, some).nonzero()[:, 0]
    places = torch.searchsorted(some, own[regulated])
    tried = []
    for ratio in RATIOS:
        features = Features(x, states, ratio, own)
        penalty, error = _penalty_of_targets(features, Columns.of(y.read(some)), one_fold, grid, places, regulated)
        tried.append((Penalties(penalty, ratio, float(error.mean())), error))
    found = _best(tried)
    factor = (found.penalty / tried[0][0].penalty).median()
    return replace(found, penalty=factor * every)


def _best(tried: list[tuple[Penalties, Tensor]]) -> Penalties:
    """Of the ratios that are about as good as the best, the largest. tried: by ratio, with each target's error."""
    least = min(tried, key=lambda found: found[0].error)[1]
    # The error is nearly level around its least value, and the largest ratio lets the states speak for themselves.
    as_good = [float((error - least).mean()) <= TOLERANCE * standard_error(error - least) for _, error in tried]
    return [found for (found, _), good in zip(tried, as_good, strict=True) if good][-1]


def standard_error(values: Tensor) -> float:
    """Of the mean of values [N]."""
    return float(values.std(correction=0)) / len(values) ** 0.5


def _penalty_of_targets(
    features: Features,
    y: Columns,
    folds: Tensor,
    grid: list[float],
    own: Tensor | None = None,
    regulated: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The penalty of each target and its held-out error, [N] and [N]. own, regulated: see HeldOutError."""
    if own is None or regulated is None:
        own, regulated = features.own, torch.arange(len(features.own), device=folds.device)
    error_of = HeldOutError(features, y, folds, own, regulated)
    tried = list(grid)
    error = error_of(tried)
    for _ in range(WIDEST if len(grid) > 1 else 0):
        best = int(error.mean(1).argmin())
        if best == 0:
            tried, error = [tried[0] / WIDER, *tried], torch.cat([error_of([tried[0] / WIDER]), error])
        elif best == len(tried) - 1:
            tried, error = [*tried, tried[-1] * WIDER], torch.cat([error, error_of([tried[-1] * WIDER])])
        else:
            break
    common = error.mean(1, keepdim=True)
    explained = max(1 - float(common.min()), 1e-9)
    chosen = (error + COMMON / (explained * y.shape[0]) * common).argmin(0)
    return error.new_tensor(tried)[chosen], error.gather(0, chosen[None])[0]


def slopes_of_states(
    x: Tensor, y: Tensor | Columns, states: Tensor, depth: Tensor | None, own: Tensor, found: Penalties, copies: int = 1
) -> Tensor:
    """The slopes of y [C, N] on the regulators x [C, R] in each state, [K, N, R].

    The levels of the states and, if given, the depth [C] are taken out of both first.   copies: see Features.
    """
    rest, y = without(states if depth is None else torch.cat([states, depth[:, None]], 1)), Columns.of(y)
    freedom = FREEDOM if found.ratio else (1.0,)
    # Of these, rho multiplies some: their products with the targets are computed once for all ratios.
    plain = Features(rest(x), states, 1.0 if found.ratio else 0.0, own, copies)
    of_regulators = plain.of_regulators(x.device)
    parts = []
    for factor in freedom:
        features = replace(plain, ratio=factor * found.ratio)
        parts.append((factor, features, Ridge.without_targets(features)))

    total = x.new_zeros(states.shape[1], y.shape[1], x.shape[1])
    for some, targets in y.blocks():
        slopes = x.new_zeros(targets.shape[1], x.shape[1])
        deviations = x.new_zeros(states.shape[1], *slopes.shape)
        targets = rest(targets)
        here = ((own >= some.start) & (own < some.stop)).nonzero()[:, 0]
        products = None if parts[0][2].dual else plain.products(targets)
        for factor, features, ridge in parts:
            given = targets if products is None else features.scale()[:, None] * products
            solved = ridge.with_targets(given, own[here] - some.start, of_regulators[here])
            penalty = factor * found.penalty[some].to(x)
            shared, of_states = features.slopes(solved.coefficients(penalty) / len(freedom))
            slopes += shared
            if len(of_states):
                deviations += of_states
        total[:, some] = slopes + deviations
    return total


def without(covariates: Tensor) -> Callable[[Tensor], Tensor]:
    """values [C, V] -> the same without what the covariates [C, G] predict of them."""
    basis, size, _ = torch.linalg.svd(covariates, full_matrices=False)
    basis = basis[:, size > len(covariates) * torch.finfo(size.dtype).eps * size[0].clamp(min=1e-30)]
    return lambda values: torch.addmm(values, basis, basis.mT @ values, alpha=-1)  # one table more, not two
