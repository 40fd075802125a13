"""The choice of the regulation layer's penalty, by held-out prediction: one trial member for each penalty."""

from __future__ import annotations

import torch

from grn.config.schema import RegulationConfig
from grn.messages import Say, silent
from grn.regulation.members import CellTable, new_layer, train_members
from grn.regulation.training_cells import TrainingCells


def choose_penalty(
    config: RegulationConfig,
    cells: TrainingCells,
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
        trial,
        CellTable(trial, cells),
        cells,
        config,
        penalties=penalties,
        held_out_folds=[0] * len(penalties),
        steps=steps,
        seed=seed,
        say=say,
    )
    tried = ", ".join(f"{p:g}: {e:.4f}" for p, e in zip(penalties, errors.tolist(), strict=True))
    say(f"Held-out error of the regulation layer by penalty: {tried}.")
    return penalties[int(errors.argmin())]
