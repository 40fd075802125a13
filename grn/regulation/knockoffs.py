"""Knock-off regulators, and linear fits that read them beside the real ones.

A knock-off has the multiplicities of its regulator, moved to other cells of the same state: it correlates with other
regulators, and with their knock-offs, as its own regulator does. The fit reads regulators and knock-offs side by side
under the usual penalties; targets stay as they are, and no knock-off is a target. A pair stands out only where its
regulator predicts the target beyond what the cell's state, the depth and the other regulators predict together.

This does not control false *causes*: a regulator that was not measured, or measured with noise, leaves what it explains
to those that correlate with it (Kernfeld et al. 2024). benchmarks/false_discovery.py measures how much that is.
Sources: knock-offs, Candes et al. 2018; their independent shares, Spector and Janson 2022.

Letters: C cells, N genes, R regulators, K states.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from grn.model.transformer import LIMIT
from grn.regulation.cell_table import CellTable
from grn.regulation.linear import slopes_of_states
from grn.regulation.regressions import centred, columns_of, held_out_penalties, sampled

ROUNDS, SETTLED = 100, 1e-4  # of the search for the independent shares: most rounds, and the least relative gain
ENOUGH = 5  # cells per regulator: with at least so many, correlations are taken as measured, without shrinkage
MANY = 500  # regulators from which on a GPU searches for the shares, where there is one
RIDGE = 1e-3  # added to correlations, so that regulators which never vary leave the matrix positive definite
BASAL_POWERS = 3  # of the basal gene's multiplicity that a regulator's mean may follow


@dataclass(frozen=True)
class KnockoffFit:
    """slopes [K, N, R] in each state and null_slopes [K, N, R] of the knock-offs: for one unit of the regulator, in sds
    of the target.   share [K]: of the cells in each state.
    sds [K, R]: of the regulators in each state, in units.   usual [R]: over all states."""

    slopes: Tensor
    null_slopes: Tensor
    share: Tensor
    sds: Tensor
    usual: Tensor


def fit_with_knockoffs(
    table: CellTable,
    *,
    seed: int,
    make: Callable[[np.ndarray, np.ndarray, np.ndarray, np.random.Generator], np.ndarray] | None = None,
) -> KnockoffFit:
    """A linear fit with every regulator and its knock-off side by side. make: in place of `knockoffs`."""
    real = table.multiplicity[:, table.regulators].toarray()
    false = (make or knockoffs)(real, table.basal, table.states.argmax(1), own_generator(seed))
    rows = sampled(table, seed)
    x, depth, states = centred(table, rows)
    own = torch.as_tensor(table.regulators, device=x.device)
    knockoff = torch.as_tensor(false, device=table.device)[rows].to(x) / table.sd[own.cpu()].to(x)
    knockoff = knockoff - states @ (torch.linalg.pinv(states) @ knockoff)
    knockoff = knockoff.clamp(max=LIMIT)  # as the regulators are
    both = torch.cat([x, knockoff], 1)
    count = x.shape[1]
    reads_depth = depth if bool(depth.std() > 0) else None
    y = columns_of(table, rows, x)
    penalties = held_out_penalties(table, x, y, states, rows, seed)
    total = slopes_of_states(both, y, states, reads_depth, own, penalties, copies=2)
    share = states.sum(0) / states.sum()
    squares = (states / states.sum(0).clamp(min=1e-9)).mT @ x.square()
    return KnockoffFit(total[..., :count], total[..., count:], share, squares.sqrt(), (share @ squares).sqrt())


def own_generator(seed: int) -> np.random.Generator:
    """Random numbers of knock-offs alone: drawn from those of simulated cells, they would be copies of regulators."""
    return np.random.default_rng([seed, *b"knock-offs"])


def knockoffs(
    values: np.ndarray, basal: np.ndarray, cell_types: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """values [C, R], each column permuted within each cell type into the order of a Gaussian knock-off.

    The means that follow from cell type and depth stay. Around them, the knock-offs correlate among each other and with
    the other regulators as the regulators themselves do. basal [C]; cell_types [C]: the state of each.
    """
    from sklearn.covariance import ledoit_wolf

    is_of_type = cell_types[:, None] == np.unique(cell_types)
    design = np.column_stack([is_of_type, *(basal**power for power in range(1, BASAL_POWERS + 1))])
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
    drawn = expected + spread * (rest - rest @ kept + generator.standard_normal(rest.shape) @ root.T)
    return in_order_of(drawn, values, cell_types)


def in_order_of(drawn: np.ndarray, values: np.ndarray, cell_types: np.ndarray) -> np.ndarray:
    """values [C, R], each column sorted into the order of the same column of `drawn` within each cell type [C]."""
    moved = np.empty_like(values)
    for cell_type in np.unique(cell_types):
        cells = np.flatnonzero(cell_types == cell_type)
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
