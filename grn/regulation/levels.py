"""Do the levels of the states follow their regulators? Held-out states tell.

Cells of different states (types, for example) have different levels of their genes. Where these differences come from
regulators, slopes that were fitted to other states predict the levels of a state that the fit has not seen. Where they
come from what the states are made of, the slopes predict nothing, or worse than that.

Letters: C cells, N genes, R regulators, K states.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from grn.regulation.linear import Penalties, fit_linear
from grn.regulation.training_cells import TrainingCells


@dataclass(frozen=True)
class Levels:
    """error: squared error of the levels of states that were left out, predicted by the pooled slopes of the others, in
    variances of the levels: 1 is the error of predicting no difference; None with one state.   within, 0 to 1: the
    share of the slopes within states in the mixture with the pooled ones that predicts these levels best.
    """

    error: float | None
    within: float


def compare_levels(
    cells: TrainingCells, pooled: Penalties, by_state: Penalties, *, device: torch.device | str = "cpu"
) -> Levels:
    """Each state in turn is left out, and the differences of its mean multiplicities from the others' are predicted
    from those of its regulators: by pooled slopes, fitted to the others, and by slopes within states, which no level
    has a part in. pooled, by_state: the penalties of the two fits."""
    fitted = cells.only_fitted()
    states = torch.as_tensor(fitted.memberships(), dtype=torch.float64, device=device)
    y = torch.as_tensor(fitted.multiplicity.toarray(), dtype=torch.float64, device=device)
    y = (y - cells.mean.to(y)) / cells.sd.to(y)
    own = torch.as_tensor(cells.regulators, device=device)
    within = _slopes(y - states @ state_levels(y, states), own, by_state)
    error, size = 0.0, 0.0
    predictions, differences = [], []
    for state in states.mT:
        if not 0 < float(state.sum()) < len(state) - 1:
            continue
        others = (1 - state) @ y / (1 - state).sum()
        difference = state @ y / state.sum() - others
        # A cell that belongs to the state in part counts among the others in part.
        slopes = _slopes((y - others) * (1 - state).clamp(min=0).sqrt()[:, None], own, pooled)
        predicted = torch.stack([within @ difference[own], slopes @ difference[own]], 1)
        weight = float(state.sum())
        error += weight * float((difference - predicted[:, 1]).square().sum())
        size += weight * float(difference.square().sum())
        predictions.append(weight**0.5 * predicted)
        differences.append(weight**0.5 * difference)
    if not size:
        return Levels(1.0, 1.0)
    amounts, _ = nnls(torch.cat(predictions).cpu().numpy(), torch.cat(differences).cpu().numpy())
    amounts = amounts * np.array([float(each.square().mean().sqrt()) for each in (within, _slopes(y, own, pooled))])
    return Levels(error / size, float(amounts[0] / amounts.sum()) if amounts.sum() else 1.0)


def _slopes(y: Tensor, own: Tensor, found: Penalties) -> Tensor:
    """Slopes of every gene on the regulators `own`, without an intercept, [N, R]. y [C, N]."""
    without = y.new_zeros(len(y), 1)
    return fit_linear(y[:, own], y, without, None, own, replace(found, ratio=0.0)).slopes[:, :-1]


def state_levels(multiplicity, states):
    """Mean multiplicity of each gene in each state, [K, N]. multiplicity [C, N], states [C, K]."""
    size = states.sum(0)
    return (states / (size + (size == 0))).T @ multiplicity
