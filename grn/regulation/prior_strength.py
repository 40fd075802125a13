"""How much the pairs that a prior network lists are to be favoured: held-out cells say it, as for other penalties."""

from __future__ import annotations

import numpy as np
import torch

from grn.regulation.cell_table import CellTable
from grn.regulation.linear import PriorError, weigh_by_prior
from grn.regulation.regressions import centred, columns_of, folds_of, held_out_penalties, sampled


def prior_factor(table: CellTable, strength: np.ndarray, seed: int) -> tuple[torch.Tensor | None, PriorError]:
    """What slopes are divided by before they are penalised, [N, R], above 0; None where the prior does not help.

    strength [N, R]: 0 for a pair that the prior does not list, up to 1.
    """
    rows = sampled(table, seed)
    x, _, states = centred(table, rows)
    y = columns_of(table, rows, x)
    found = held_out_penalties(table, x, y, states, rows, seed)
    fold, own = (each.to(x.device) for each in (folds_of(table, rows, seed), torch.as_tensor(table.regulators)))
    weighed = weigh_by_prior(x, y, states, own, fold, found, torch.as_tensor(strength, device=x.device))
    assert weighed.prior is not None, "weigh_by_prior always says what it found"
    return None if weighed.factor is None else weighed.factor.float(), weighed.prior


def sentence(found: PriorError) -> str:
    """What held-out cells say of a prior."""
    errors = f"held-out error {found.with_prior:.4f} with it and {found.without:.4f} without"
    if found.unlisted == 1:
        return f"The prior does not help to predict held-out cells by more than chance ({errors}), so it is not used."
    return (
        f"The prior helps to predict held-out cells ({errors}): pairs that it does not list are penalised "
        f"{found.unlisted**-2:.3g} times as much as those that it lists."
    )
