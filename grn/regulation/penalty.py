"""The penalty of the regulation layer, chosen by held-out prediction: one trial member for each penalty."""

from __future__ import annotations

import torch

from grn.config.schema import RegulationConfig
from grn.messages import Say, silent
from grn.regulation.members import CellTable, new_layer, train_members
from grn.regulation.training_cells import FitCells


def choose_penalty(
    config: RegulationConfig,
    cells: FitCells,
    *,
    seed: int,
    device: torch.device | str = "cpu",
    say: Say = silent,
) -> float:
    """The penalty among config.penalties whose trial member predicts the held-out cells best.

    The trial members hold out the same cells, so that only the penalty differs, and train for half of config.steps.
    """
    penalties = list(config.penalties)
    if len(penalties) == 1:
        return penalties[0]
    trial = new_layer(config, len(penalties), cells, seed=seed, device=device)
    steps = max(1, config.steps // 2)
    errors = train_members(
        trial, CellTable(trial, cells), cells, penalties, [0] * len(penalties), steps, config, seed, say
    )
    tried = ", ".join(f"{p:g}: {e:.4f}" for p, e in zip(penalties, errors.tolist(), strict=True))
    say(f"Regulation layer: held-out error by penalty {tried}.")
    return penalties[int(errors.argmin())]
