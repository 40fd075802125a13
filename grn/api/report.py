"""The report of a run: what was measured and learned, drawn, as one page in the run's folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from grn.analysis.report import write_report
from grn.config.schema import Config
from grn.network.signed_network import SignedNetwork, heatmap_blocks
from grn.plots.confusion import confusion_matrix
from grn.plots.edges import strongest_regulations
from grn.plots.heatmap import network_heatmaps
from grn.plots.training import training_curves


def write_run_report(
    folder: Path,
    *,
    config: Config,
    metrics: Mapping[str, float],
    history: pd.DataFrame,
    confusion: pd.DataFrame,
    edges: pd.DataFrame,
    network: SignedNetwork,
    title: str | None = None,
) -> Path:
    """Writes report.html, with which a run is complete, and returns its path.

    metrics, history, confusion, edges: as in grn.Run.   title: of the page; None: the folder's name.
    """
    pictures = {
        "training": training_curves(history),
        "edges": strongest_regulations(edges, signed=network.signed),
        "heatmaps": network_heatmaps(heatmap_blocks(network), signed=network.signed),
    }
    if len(confusion):
        pictures["confusion"] = confusion_matrix(confusion)
    return write_report(
        folder,
        config=config,
        metrics=metrics,
        per_class=scores_by_type(confusion),
        edges=edges,
        network=network,
        pictures=pictures,
        title=title,
    )


def scores_by_type(confusion: pd.DataFrame) -> pd.DataFrame:
    """Columns class, f1, cells, a row per cell type. confusion: cells by their true type (rows) and predicted type."""
    counts = confusion.to_numpy(dtype=np.float32)  # as torchmetrics has it, to the last bit
    true, predicted = counts.sum(axis=1), counts.sum(axis=0)
    f1 = 2 * np.diagonal(counts) / np.maximum(true + predicted, 1)
    return pd.DataFrame({"class": confusion.index, "f1": f1, "cells": true.astype(int)})
