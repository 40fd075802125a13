"""Do differences between states of cells count as regulation? Held-out states and held-out cells tell.

Cells of different states (types, for example) have different levels of their genes. Where these differences come from
regulators, slopes that were fitted to other states predict the levels of a state that the fit has not seen, and slopes
of all cells together predict differences between cells of one state as well as slopes of such differences alone. Where
they come from what the states are made of, as in blood, the slopes of all cells are wrong within a state. Both are
asked, because either may pass by chance where there are few states or little within them.

Letters: C cells, N genes, R regulators, S states.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from grn.regulation.cell_table import CellTable
from grn.regulation.penalties import RIDGE

ENOUGH = 0.5  # of what slopes of differences within states explain there, slopes of all cells must explain
GENES = 512  # targets that are enough to decide
MOST = 4096  # regulators; with more, differences between states do not count


@dataclass(frozen=True)
class Levels:
    """level_error: squared error of the levels of states that were left out, in their variances; 1: of no difference.
    pooled_error, within_error: of held-out cells within states, in variances, by slopes of all cells and by slopes of
    differences within states."""

    level_error: float
    pooled_error: float
    within_error: float

    @property
    def count(self) -> bool:
        """Whether differences between states count as regulation."""
        explained = 1 - self.pooled_error
        return self.level_error < 1 and explained > max(ENOUGH * (1 - self.within_error), 0)

    def summary(self) -> str:
        verdict = "count as regulation" if self.count else "do not count: they may be composition"
        return (
            f"Levels of states that were left out are predicted from their regulators with error {self.level_error:.3f}"
            f" (of their mean: 1); within states, slopes of all cells have error {self.pooled_error:.4f} and slopes of "
            f"differences within states {self.within_error:.4f}: differences between states {verdict}."
        )


def levels_of(table: CellTable, fold: np.ndarray) -> Levels | None:
    """What held-out cells (fold 0) and states say; None with one state, one gene, or too many regulators. fold [C].

    Where every gene regulates, half of the genes, and at most GENES, are explained by the others: none by itself.
    """
    states, regulators = table.states.shape[1], len(table.regulators)
    others = np.setdiff1d(np.arange(table.multiplicity.shape[1]), table.regulators)
    most = GENES if len(others) else min(GENES, regulators // 2)
    genes = np.random.default_rng(0).permutation(others if len(others) else table.regulators)[:most]
    if states < 2 or regulators > MOST or not len(genes):
        return None
    together = replace(table, pooled=True)  # in units of all cells
    read = torch.as_tensor(~np.isin(table.regulators, genes), device=table.inputs.device)
    x, y = together.inputs[:, :-1][:, read].double(), together.targets(genes).double()
    x, y = x - x.mean(0), y - y.mean(0)
    share = table.membership.double()
    training = torch.as_tensor(fold != 0, device=x.device)
    x_within, y_within = (_without_levels(each, share, training) for each in (x, y))
    of_within = _best_slopes(x_within, y_within, training)[0]
    of_all, penalty = _best_slopes(x, y, training)
    x_judged, y_judged = x_within[~training], y_within[~training]

    def error(slopes: Tensor) -> float:
        return float((y_judged - x_judged @ slopes).square().sum() / y_judged.square().sum().clamp(min=1e-9))

    return Levels(_level_error(x, y, share, penalty), error(of_all), error(of_within))


def _without_levels(values: Tensor, share: Tensor, training: Tensor) -> Tensor:
    """values [C, V] minus the means of their states, of training cells."""
    known = share[training]
    return values - share @ ((known.T @ values[training]) / known.sum(0)[:, None].clamp(min=1e-9))


def _best_slopes(x: Tensor, y: Tensor, training: Tensor) -> tuple[Tensor, float]:
    """Ridge regression [R, n] with the penalty that predicts the other cells best, and the penalty."""
    gram, cross = x[training].T @ x[training], x[training].T @ y[training]
    found = [torch.linalg.solve(gram + lam * torch.eye(len(gram)).to(gram), cross) for lam in RIDGE]
    errors = [float((y[~training] - x[~training] @ slopes).square().mean()) for slopes in found]
    best = int(np.argmin(errors))
    return found[best], RIDGE[best]


def _level_error(x: Tensor, y: Tensor, share: Tensor, penalty: float) -> float:
    """See Levels. Slopes that are fitted to all other states, whose levels have a part in them, predict the difference
    between a state's means and those of the others from the regulators' differences."""
    error, variance = 0.0, 0.0
    for state in share.T:
        size, rest = float(state.sum()), 1 - state
        if not 0 < size < len(x) - 1:
            continue
        # The memberships of a cell sum to 1: what does not count in this state counts in the others.
        mean_x, mean_y = (rest @ each / rest.sum() for each in (x, y))
        centred = (x - mean_x) * rest[:, None]
        gram = centred.T @ (x - mean_x) + penalty * torch.eye(x.shape[1]).to(x)
        slopes = torch.linalg.solve(gram, centred.T @ (y - mean_y))
        change_x, change_y = (state @ each / size - mean for each, mean in ((x, mean_x), (y, mean_y)))
        error += size * float((change_y - change_x @ slopes).square().sum())
        variance += size * float(change_y.square().sum())
    return error / variance if variance else 1.0


def state_levels(multiplicity, states):
    """Mean multiplicity of each gene in each state, [S, N]; 0 in a state without cells.

    multiplicity [C, N] and states [C, S]: sparse or dense arrays, or tensors.
    """
    size = states.sum(0)
    return (states / (size + (size == 0))).T @ multiplicity
