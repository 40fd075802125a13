"""The regulation layer of a run: fitted on some of its cells, and judged beside ridge on others.

Letters: C cells, N genes.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from grn.config import Config
from grn.data.cells import Cells
from grn.data.split import Split
from grn.errors import ConfigError
from grn.network.baselines import ridge_predictions
from grn.training.fit_cells import FitCells
from grn.training.machine import own_device
from grn.training.networks import Say
from grn.training.regulation import Fit, fit_regulation

LARGEST_TABLE = 2**29  # scores of all members at once, 2 GiB; the fit holds about ten such tables
LARGEST_RIDGE = 2**27  # numbers of the table that ridge is fitted on, 1 GiB each of a few copies


def mean_and_sd(multiplicity: sp.csr_matrix) -> tuple[Tensor, Tensor]:
    """Of each gene [N] over cells [C, N], float32; sd 1 for a gene that never varies. Zeros are never stored."""
    mean = np.asarray(multiplicity.mean(0, dtype=np.float64)).ravel()
    square = np.asarray(multiplicity.multiply(multiplicity).mean(0, dtype=np.float64)).ravel()
    sd = np.sqrt(np.maximum(square - mean**2, 0))
    return torch.as_tensor(mean, dtype=torch.float32), torch.as_tensor(np.where(sd > 1e-6, sd, 1), dtype=torch.float32)


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
    members = config.network.members
    decoys = 2 if config.network.false_discovery else 1
    stacked = max(members, len(config.regulation.penalties))
    if stacked * config.regulation.heads * genes * len(regulators) * decoys > LARGEST_TABLE:
        raise ConfigError(
            f"{len(regulators)} regulators of {genes} genes are too many scores for the regulation layer; list the "
            "regulators (data.regulators), choose fewer genes (data.genes), or do without: network.members: 0 "
            "and network.readout: attention."
        )
    started = time.monotonic()
    settings = config.regulation
    fit = fit_regulation(
        settings if penalty is None else settings.model_copy(update={"penalties": [penalty]}),
        members,
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


def held_out_errors(layer: Fit, cells: Cells, split: Split, mean: Tensor, sd: Tensor) -> dict[str, float]:
    """Of genes predicted from the regulators of test cells, none from itself: the layer's error, and ridge's.

    Empty where ridge would take too much memory or time. About 1: no better than each gene's mean.
    """
    regulators = layer.regulation.regulators
    genes = cells.multiplicity.shape[1]
    if max(len(cells) * genes, len(regulators) ** 2 * genes // 64) > LARGEST_RIDGE:
        return {}
    test = cells.multiplicity[split.test].toarray()
    with torch.no_grad():
        standardised = layer.regulation(torch.as_tensor(test)[:, regulators], torch.as_tensor(cells.basal[split.test]))
    ours = (mean + sd * standardised).numpy()
    theirs = ridge_predictions(cells.multiplicity[split.train].toarray(), test, regulators.numpy())
    scale = sd.numpy()
    return {
        "regulation_error": float(np.square((ours - test) / scale).mean()),
        "ridge_error": float(np.square((theirs - test) / scale).mean()),
    }
