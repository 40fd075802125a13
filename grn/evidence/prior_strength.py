"""How much the pairs that a prior network lists are to be favoured: held-out cells say it, as for
other penalties.

Pairs that the prior does not list are penalised more (UNLISTED). As cells may be predicted better
with more or less of all penalties, that is tried for all pairs alike, and the prior has to be
better than it by more than chance.

Letters: N genes, R regulators.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from grn.evidence.cell_table import CellTable
from grn.evidence.penalties import OPERATIONS, OPERATIONS_ON_GPU, PRODUCTS, Shadow
from grn.model.penalty import Penalty

UNLISTED = (
    0.85,
    0.7,
    0.5,
    0.25,
    0.1,
)  # tried as factors of unlisted pairs: 1.4 to 100 x the penalty
OVERALL = (1.0, 1.5, 3.0)  # and of all pairs beside these
HELPS = 2.0  # standard errors, over targets, by which a prior must lower the held-out error
FEWEST, MOST = 64, 512  # targets that judge it


@dataclass(frozen=True)
class PriorError:
    """Held-out squared error over the judging targets, in their variances.

    without, with_prior: the error without a prior and with it.
    unlisted: the best factor of pairs that it does not list; 1: it does not help, and penalties
        leave it out.
    """

    without: float
    with_prior: float
    unlisted: float

    def sentence(self) -> str:
        errors = f"held-out error {self.with_prior:.4f} with it and {self.without:.4f} without"
        if self.unlisted == 1:
            return (
                "The prior does not help to predict held-out cells by more than chance "
                f"({errors}), so penalties leave it out."
            )
        return (
            f"The prior helps to predict held-out cells ({errors}): pairs that it does not list "
            f"are penalised {self.unlisted**-2:.3g} times as much as those that it lists."
        )


def prior_factor(
    table: CellTable, strength: np.ndarray, fold: np.ndarray, penalty: float
) -> tuple[Tensor | None, PriorError]:
    """Return what slopes are divided by before they are penalised, [N, R], above 0; None where the
    prior does not help.

    strength [N, R]: 0 for a pair that the prior does not list, up to 1.
    fold [C]: folds 0 and 1 are held out in turn.
    penalty: lambda of ridge regression without a prior.
    """
    judging = np.flatnonzero((strength > 0).any(1))  # other targets would dilute these
    work = OPERATIONS_ON_GPU if torch.device(table.device).type == "cuda" else OPERATIONS
    same = [(1.0, overall) for overall in (*UNLISTED, *OVERALL)]  # for all pairs alike
    trials = same + [(unlisted, overall) for unlisted in UNLISTED for overall in OVERALL]
    most = int(
        np.clip(
            work / (2 * len(trials) * PRODUCTS * (len(table.regulators) + 1) ** 2), FEWEST, MOST
        )
    )
    judging = judging[np.unique(np.linspace(0, len(judging) - 1, most).round().astype(int))]
    listed = torch.as_tensor(strength[judging], dtype=torch.float64, device=table.device)
    error = listed.new_zeros(len(trials), len(judging))
    for held_out in (0, 1) if (fold == 1).any() else (0,):
        part = Shadow(table, fold, held_out, genes=judging)
        size = part.y[part.judged].square().mean(0).clamp(min=1e-9)
        for number, (unlisted, overall) in enumerate(trials):
            weight = (overall * (unlisted + (1 - unlisted) * listed)) ** -2
            error[number] += part.errors([Penalty(penalty, 0.0)], len(judging), weight)[0] / size
    error /= 2 if (fold == 1).any() else 1
    mean = error.mean(1)
    alike = int(mean[: len(same)].argmin())
    best = len(same) + int(mean[len(same) :].argmin())
    gain = error[alike] - error[best]
    unlisted, overall = trials[best]
    helps = float(gain.mean()) > HELPS * float(gain.std(correction=0)) / len(gain) ** 0.5
    found = PriorError(float(mean[alike]), float(mean[best]), unlisted if helps else 1.0)
    if not helps:
        return None, found
    every = torch.as_tensor(strength, dtype=torch.float32, device=table.device)
    return overall * (unlisted + (1 - unlisted) * every), found
