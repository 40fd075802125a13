"""The report of a run: what was measured and learned, drawn, as one page in the run's folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from grn.analysis.report import write_report
from grn.analysis.summary import strongest_of_targets, tells_apart
from grn.config.schema import Config
from grn.io.tables import table_of_run
from grn.networks.signed_network import SignedNetwork, heatmap_blocks
from grn.plots.bars import strongest_regulations
from grn.plots.heatmaps import network_heatmaps
from grn.plots.scatter import within_and_between
from grn.plots.scores import confusion_matrix, training_curves
from grn.plots.style import as_png


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
    drawn: dict[str, Any] = {
        "training": training_curves(history),
        "edges": strongest_regulations(edges, signed=network.signed, show=False),
        "heatmaps": network_heatmaps(heatmap_blocks(network), signed=network.signed),
    }
    if tells_apart(edges):
        drawn["between"] = within_and_between(edges, show=False)
    if len(confusion):
        drawn["confusion"] = confusion_matrix(confusion, show=False)
    return write_report(
        folder,
        config=config,
        metrics=metrics,
        per_class=scores_by_type(confusion),
        edges=edges,
        network=network,
        pictures={name: as_png(picture) for name, picture in drawn.items()},
        of_types=edges_of_types(folder / "edges_by_type.parquet"),
        cells=network.about.get("parameters", {}).get("cells"),
        title=title,
    )


def edges_of_types(path: Path) -> pd.DataFrame:
    """The strongest edges of each type's targets, from a file that is read in pieces: it may be large."""
    import pyarrow.parquet as pq

    kept: list[pd.DataFrame] = []
    with table_of_run(path):
        file = pq.ParquetFile(path)
        for batch in file.iter_batches(batch_size=2**18):
            table = batch.to_pandas()
            table["cell_type"] = table["cell_type"].astype(str)
            kept = [strongest_of_targets(pd.concat([*kept, table], ignore_index=True))]
        return kept[0] if kept else file.schema_arrow.empty_table().to_pandas()


def scores_by_type(confusion: pd.DataFrame) -> pd.DataFrame:
    """Columns class, f1, cells, a row per cell type. confusion: cells by their true type (rows) and predicted type."""
    counts = confusion.to_numpy(dtype=np.float32)  # as torchmetrics has it, to the last bit
    true, predicted = counts.sum(axis=1), counts.sum(axis=0)
    f1 = 2 * np.diagonal(counts) / np.maximum(true + predicted, 1)
    return pd.DataFrame({"class": confusion.index, "f1": f1, "cells": true.astype(int)})
