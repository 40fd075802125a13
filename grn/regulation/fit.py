"""The fit of the regulation layer: choose the penalty, then train all ensemble members with it.

The layer is nearly linear and small, so it is fitted by itself: before the transformer on the training cells, and for
the network once more on all. How strongly it is held back is chosen by held-out prediction (penalty.py); then all
members train together with that penalty (members.py). Cells of one donor or batch (data.group_key) are held out
together, or not at all.

Letters: P members.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from grn.config.schema import Config, RegulationConfig
from grn.data.cells import Cells
from grn.devices import own_device
from grn.errors import ConfigError, TrainingDiverged
from grn.messages import Say, silent
from grn.model.regulation_layer import Regulation
from grn.regulation.members import CellTable, new_layer, train_members
from grn.regulation.penalty import choose_penalty
from grn.regulation.training_cells import FitCells

LARGEST_TABLE = 2**29  # scores of all members at once, 2 GiB; the fit holds about ten such tables


@dataclass(frozen=True)
class Fit:
    """What came out. error [P]: held-out squared error of each member, 1 is the mean; penalty: the one chosen."""

    regulation: Regulation
    penalty: float
    error: Tensor


def fit_regulation(
    config: RegulationConfig,
    cells: FitCells,
    *,
    members: int | None = None,
    seed: int,
    device: torch.device | str = "cpu",
    say: Say = silent,
) -> Fit:
    """The ensemble members of a regulation layer, trained on the fitted rows of the cells.

    members: how many; None: config.members. Raises TrainingDiverged.
    """
    members = config.members if members is None else members
    if cells.groups is not None and cells.fitted_groups() is None:
        say("The cells to fit are all of one group (data.group_key): the regulation layer holds out cells at random.")
    penalty = choose_penalty(config, cells, seed=seed, device=device, say=say)
    layer = new_layer(config, members, cells, seed=seed, device=device)
    if cells.basal[cells.rows].std() > 0:
        layer.reads_depth[1::2] = 0
    errors = train_members(
        layer, CellTable(layer, cells), cells, [penalty] * members, range(members), config.steps, config, seed, say
    )
    if not errors.isfinite().all():  # what was never better than infinity is still where it began
        raise TrainingDiverged(
            "The held-out error of the regulation layer is not finite: lower regulation.learning_rate "
            f"({config.learning_rate:g}), or look for cells with extreme values."
        )
    layer.requires_grad_(False)
    return Fit(layer, penalty, errors)


def regulation_layer(
    config: Config,
    cells: Cells,
    rows: np.ndarray,
    *,
    mean: Tensor,
    sd: Tensor,
    say: Say,
    penalty: float | None = None,
) -> Fit:
    """The regulation layer, fitted on some cells. penalty: the one to use; None: held-out prediction chooses."""
    fitted = FitCells.of(cells, rows, mean, sd)
    genes, regulators = len(cells.vocabulary), fitted.regulators
    members = config.regulation.members
    columns = len(regulators) * (2 if config.network.false_discovery else 1)  # each beside its knock-off
    stacked = max(members, len(config.regulation.penalties))
    if stacked * config.regulation.heads * genes * columns > LARGEST_TABLE:
        raise ConfigError(
            f"{len(regulators)} regulators of {genes} genes are too many scores for the regulation layer; list the "
            "regulators (data.regulators), choose fewer genes (data.genes), or do without: regulation.members: 0 "
            "and network.readout: attention."
        )
    started = time.monotonic()
    settings = config.regulation
    fit = fit_regulation(
        settings if penalty is None else settings.model_copy(update={"penalties": [penalty]}),
        fitted,
        seed=config.trainer.seed,
        device=own_device(config.trainer),
        say=say,
    )
    say(
        f"Fitted the regulation layer on {len(rows)} cells in {time.monotonic() - started:.0f} s: {members} members, "
        f"penalty {fit.penalty:g}, held-out error {float(fit.error.mean()):.4f} (1: the genes' means)."
    )
    return replace(fit, regulation=fit.regulation.cpu())
