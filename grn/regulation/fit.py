"""The fit of the regulation layer: choose the penalty, then train all ensemble members with it.

The layer is nearly linear and small, so it is fitted by itself: before the transformer, on the training cells, and for
the network once more, on all cells. Its penalty is chosen by held-out prediction (penalty.py); then all members train
together with that penalty (members.py). The cells of one donor or batch (data.group_key) are held out together or not
at all.

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
from grn.model.regulation_layer import RegulationLayer
from grn.regulation.members import CellTable, new_layer, train_members
from grn.regulation.penalty import choose_penalty
from grn.regulation.training_cells import TrainingCells

MOST_SCORES = 2**29  # of all members together, 2 GiB; the fit holds about ten tables of this size


@dataclass(frozen=True)
class FittedLayer:
    """layer: the trained members.   penalty: the chosen one.   error [P]: held-out squared error of each member.

    The error is in variances of the genes: predicting each gene's mean has the error 1.
    """

    layer: RegulationLayer
    penalty: float
    error: Tensor


def fit_ensemble(
    config: RegulationConfig,
    cells: TrainingCells,
    *,
    members: int | None = None,
    seed: int,
    device: torch.device | str = "cpu",
    say: Say = silent,
) -> FittedLayer:
    """The ensemble members of a regulation layer, trained on the fitted rows of the cells.

    members: how many; None: config.members. Raises TrainingDiverged.
    """
    members = config.members if members is None else members
    if cells.groups is not None and cells.fitted_groups() is None:
        say("All cells to fit are of one group (data.group_key), so the regulation layer holds out cells at random.")
    penalty = choose_penalty(config, cells, seed=seed, device=device, say=say)
    layer = new_layer(config, members, cells, seed=seed, device=device)
    if cells.basal[cells.rows].std() > 0:
        layer.reads_depth[1::2] = 0
    errors = train_members(
        layer,
        CellTable(layer, cells),
        cells,
        config,
        penalties=[penalty] * members,
        held_out_folds=range(members),
        steps=config.steps,
        seed=seed,
        say=say,
    )
    if not errors.isfinite().all():  # a member without one finite error still has its initial weights
        raise TrainingDiverged(
            "The held-out error of the regulation layer is not finite. Lower regulation.learning_rate "
            f"({config.learning_rate:g}), or look for cells with extreme values."
        )
    layer.requires_grad_(False)
    return FittedLayer(layer, penalty, errors)


def fit_regulation_layer(
    config: Config,
    cells: Cells,
    rows: np.ndarray,
    *,
    mean: Tensor,
    sd: Tensor,
    say: Say,
    penalty: float | None = None,
) -> FittedLayer:
    """The regulation layer of a run, fitted on the cells `rows` and moved to the CPU.

    mean, sd [N]: of every gene.   penalty: the one to use; None: held-out prediction chooses among those of the
    configuration. Raises ConfigError where the scores would take too much memory, and TrainingDiverged.
    """
    training_cells = TrainingCells.of(cells, rows, mean, sd)
    genes, regulators = len(cells.vocabulary), training_cells.regulators
    members = config.regulation.members
    columns = len(regulators) * (2 if config.network.false_discovery else 1)  # each beside its knock-off
    stacked = max(members, len(config.regulation.penalties))
    if stacked * config.regulation.heads * genes * columns > MOST_SCORES:
        raise ConfigError(
            f"{len(regulators)} regulators of {genes} genes give more scores than the regulation layer can hold in "
            "memory. List the regulators (data.regulators), choose fewer genes (data.genes), or train without the "
            "layer: regulation.members: 0 and network.readout: attention."
        )
    started = time.monotonic()
    settings = config.regulation
    fitted = fit_ensemble(
        settings if penalty is None else settings.model_copy(update={"penalties": [penalty]}),
        training_cells,
        seed=config.trainer.seed,
        device=own_device(config.trainer),
        say=say,
    )
    say(
        f"Fitted the regulation layer on {len(rows)} cells in {time.monotonic() - started:.0f} s: {members} "
        f"{'member' if members == 1 else 'members'}, penalty {fitted.penalty:g}, held-out error "
        f"{float(fitted.error.mean()):.4f} (predicting each gene's mean: 1)."
    )
    return replace(fitted, layer=fitted.layer.cpu())
