"""Knock-off regulators, and linear fits that read them beside the real ones.

A knock-off has the multiplicities of its regulator, moved to other cells of the same state and donor: it correlates
with other regulators, and with their knock-offs, as its own regulator does. The fit reads regulators and knock-offs
side by side, under one penalty; targets stay as they are, and no knock-off is a target. A pair stands out only where
its regulator predicts the target beyond what the cell's state, its donor, the depth and the other regulators predict
together.

This does not control false *causes*: a regulator that was not measured, or measured with noise, leaves what it explains
to those that correlate with it (Kernfeld et al. 2024). benchmarks/false_discovery.py measures how much that is.
Sources: knock-offs, Candes et al. 2018; their independent shares, Spector and Janson 2022.

Letters: C cells, N genes, R regulators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from grn.model.transformer import LIMIT
from grn.regulation.cell_table import CellTable
from grn.regulation.linear import slopes_on, without
from grn.regulation.regressions import columns_of, held_out_penalties, sampled

ROUNDS, SETTLED = 100, 1e-4  # of the search for the independent shares: most rounds, and the least relative gain
ENOUGH = 5  # cells per regulator: with at least so many, correlations are taken as measured, without shrinkage
MANY = 500  # regulators from which on a GPU searches for the shares, where there is one
RIDGE = 1e-3  # added to correlations, so that regulators which never vary leave the matrix positive definite
BASAL_POWERS = 3  # of the basal gene's multiplicity that a regulator's mean may follow

Draws = Callable[[np.ndarray, np.ndarray, np.ndarray, np.random.Generator], Iterator[np.ndarray]]


def fits_with_knockoffs(table: CellTable, *, seed: int, draws: Draws | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """For each draw of knock-offs, without end, a linear fit: the slopes of regulators and of knock-offs, [N, R] each.

    Slopes are for an sd of the regulator within strata, in sds of the target, and the same in all states.   draws: in
    place of `knockoffs`.
    """
    rows, own = sampled(table, seed), torch.as_tensor(table.regulators)
    mean, sd = table.mean[own].numpy(), table.sd[own].numpy()
    stratum = strata_of(table)[rows.cpu().numpy()]
    levels = torch.as_tensor(stratum[:, None] == np.unique(stratum), device=table.device)
    depth = table.inputs[rows, -1:]
    rest = without(torch.cat([table.membership[rows], levels, depth - depth.mean()], 1))

    def standardised(values: np.ndarray) -> Tensor:
        x = rest(torch.as_tensor(((values - mean) / sd).clip(max=LIMIT), device=table.device))
        return x / x.square().mean(0).sqrt().clamp(min=1e-6)

    real = table.multiplicity[rows.cpu().numpy()][:, table.regulators].toarray()
    x = standardised(real)
    y, own = columns_of(table, rows, x).each(rest), own.to(x.device)
    # One penalty for all targets: a target that seems to depend on the real regulators by chance would choose a smaller
    # one, and with it have larger slopes than those of knock-offs elsewhere.
    penalty = held_out_penalties(table, x, y, rows, seed)[0].log().mean().exp().expand(y.shape[1])
    basal = table.basal[rows.cpu().numpy()]
    for false in (draws or knockoffs)(real, basal, stratum, own_generator(seed)):
        slopes = slopes_on(torch.cat([x, standardised(false)], 1), y, own, penalty)
        yield slopes[:, : len(own)], slopes[:, len(own) :]


def strata_of(table: CellTable) -> np.ndarray:
    """The stratum of each cell, int64 [C]: its state (the one it belongs to most) and, where it has one, its donor."""
    state, groups = table.states.argmax(1), table.groups
    if groups is None or len(np.unique(groups)) == len(groups):  # copies of cells that were left out
        return state
    return np.unique(np.stack([state, groups]), axis=1, return_inverse=True)[1].reshape(-1)


def own_generator(seed: int) -> np.random.Generator:
    """Random numbers of knock-offs alone: drawn from those of simulated cells, they would be copies of regulators."""
    return np.random.default_rng([seed, *b"knock-offs"])


def knockoffs(
    values: np.ndarray, basal: np.ndarray, strata: np.ndarray, generator: np.random.Generator
) -> Iterator[np.ndarray]:
    """Draws without end of values [C, R], each column permuted within strata into the order of a Gaussian knock-off.

    The means that follow from stratum and depth stay. Around them, the knock-offs correlate among each other and with
    the other regulators as the regulators themselves do. basal [C]; strata [C]: the number of each.
    """
    from sklearn.covariance import ledoit_wolf

    levels = strata[:, None] == np.unique(strata)
    design = np.column_stack([levels, *(basal**power for power in range(1, BASAL_POWERS + 1))])
    design = design.astype(np.float64)
    expected = design @ np.linalg.lstsq(design, values.astype(np.float64), rcond=None)[0]
    rest = values - expected
    spread = rest.std(0)
    spread[spread < 1e-6] = 1
    rest /= spread
    # Shrunken correlations would make knock-offs too free of the other regulators, and so too weak a null.
    enough = len(rest) >= ENOUGH * rest.shape[1]
    correlation = rest.T @ rest / len(rest) if enough else ledoit_wolf(rest, assume_centered=True)[0]
    correlation += RIDGE * np.eye(len(correlation))
    size = np.sqrt(correlation.diagonal())
    correlation /= size[:, None] * size
    share = independent_shares(correlation)
    kept = np.linalg.solve(correlation, np.diag(share))  # S^-1 diag(s)
    noise = 2 * np.diag(share) - share[:, None] * kept
    root = np.linalg.cholesky(noise + 1e-8 * np.eye(len(noise)))
    kept_part = expected + spread * (rest - rest @ kept)
    while True:
        drawn = kept_part + spread * (generator.standard_normal(rest.shape) @ root.T)
        yield in_order_of(drawn, values, strata)


def in_order_of(drawn: np.ndarray, values: np.ndarray, strata: np.ndarray) -> np.ndarray:
    """values [C, R], each column sorted into the order of the same column of `drawn` within strata [C]."""
    moved = np.empty_like(values)
    for stratum in np.unique(strata):
        cells = np.flatnonzero(strata == stratum)
        # Rows of a contiguous table are sorted by several threads.
        order = torch.as_tensor(np.ascontiguousarray(drawn[cells].T)).argsort(dim=1, stable=True)
        ascending = torch.as_tensor(np.ascontiguousarray(values[cells].T)).sort(1)[0]
        moved[cells] = torch.empty_like(ascending).scatter_(1, order, ascending).numpy().T
    return moved


def independent_shares(correlation: np.ndarray) -> np.ndarray:
    """s [R], 0 to 1: the share of its variance that each knock-off does not have in common with its regulator.

    correlation S [R, R]: positive definite. s minimises tr((2 S - diag s)^-1) + sum 1 / s. The gradient is 0 where
    s_j^-2 is the j-th diagonal element of (2 S - diag s)^-2. This is iterated, with shorter steps where a whole one
    would increase the loss or leave the cone of valid s. Source: Spector and Janson 2022.
    """
    # Thousands of regulators take minutes on a processor and seconds on a GPU.
    device = "cuda" if len(correlation) > MANY and torch.cuda.is_available() else "cpu"
    twice = 2 * torch.as_tensor(correlation, dtype=torch.float64, device=device)
    share = twice.new_full((len(twice),), min(1.0, float(torch.linalg.eigvalsh(twice)[0]) / 2))

    def inverse(share: Tensor) -> tuple[Tensor, float]:
        factor, failed = torch.linalg.cholesky_ex(twice - share.diag())
        if failed:  # not positive definite: no valid share
            return twice, float("inf")
        inverted = torch.cholesky_inverse(factor)
        return inverted, float(inverted.trace() + (1 / share).sum())

    inverted, loss = inverse(share)
    for _ in range(ROUNDS):
        wanted = 1 / inverted.norm(dim=0)
        for step in (1.0, 0.5, 0.25, 0.1, 0.01):
            trial = (share ** (1 - step) * wanted**step).clamp(max=1.0)
            trial_inverted, trial_loss = inverse(trial)
            if trial_loss < loss:
                break
        else:
            break
        settled = loss - trial_loss < SETTLED * loss
        share, inverted, loss = trial, trial_inverted, trial_loss
        if settled:
            break
    return share.cpu().numpy()
