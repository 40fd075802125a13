"""The report of a run: what was measured and learned, drawn, as one page in the run's folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from grn.cells.genes.programmes import programmes_of
from grn.config.schema import Config
from grn.edges.signed_network import SignedNetwork
from grn.features.findings.drivers import ACTIVITY, to_draw
from grn.features.findings.known import KNOWN
from grn.features.findings.summary import certain, certain_table, kept_edges
from grn.features.report.page import write_report
from grn.plots.activity import activity_heatmap
from grn.plots.graph import network_graph
from grn.plots.scores import confusion_matrix, training_curves
from grn.plots.style import as_png
from grn.runtime.atomic import remove, write_text
from grn.runtime.run_folder import CHECKPOINTS
from grn.runtime.tables import table_of_run

CERTAIN = "certain.csv"
GAPS = (
    "weight",
    "q_value",
    "messenger",
    "messenger_p",
)  # columns of activity.csv and known.csv that may be empty


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
    """Writes certain.csv and report.html, with which a run is complete and needs no checkpoints,
    and returns its path.

    metrics, history, confusion, edges: as in grn.Run.
    title: of the page; None: the folder's name.
    """
    drawn: dict[str, Any] = {"training": training_curves(history)}
    if len(found := certain(edges)):
        # of common programmes there is a sentence
        others = found[programmes_of(found["target"]) == ""]
        drawn["network"] = network_graph(others if len(others) else found, show=False)
    if (activity := read_table_of(folder, ACTIVITY)) is not None:
        drawn["activity"] = activity_heatmap(to_draw(activity), show=False)
    if len(confusion):
        drawn["confusion"] = confusion_matrix(confusion, show=False)
    of_types = edges_of_types(folder / "edges_by_type.parquet")
    if "q_value" in edges:
        write_text(
            folder / CERTAIN,
            certain_table(edges, of_types).to_csv(index=False, float_format="%.4g"),
        )
    report = write_report(
        folder,
        config=config,
        metrics=metrics,
        per_class=scores_by_type(confusion),
        edges=edges,
        network=network,
        pictures={name: as_png(picture) for name, picture in drawn.items()},
        of_types=of_types,
        activity=activity,
        known=read_table_of(folder, KNOWN),
        cells=network.about.get("parameters", {}).get("cells"),
        title=title,
    )
    remove(folder / CHECKPOINTS)
    return report


def read_table_of(folder: Path, name: str) -> pd.DataFrame | None:
    """activity.csv or known.csv of a run; None where it has none."""
    path = folder / name
    if not path.is_file():
        return None
    with table_of_run(path):  # names as plain text: a cell type may be called "NA"
        texts: dict[str, Any] = dict.fromkeys(
            ("cell_type", "regulator", "regulons", "source", "target", "known"), str
        )
        texts["programme"] = str
        return pd.read_csv(
            path, dtype=texts, keep_default_na=False, na_values={name: [""] for name in GAPS}
        )


def edges_of_types(path: Path) -> pd.DataFrame:
    """The certain edges of each type and the strongest of each target, from a file that is read in
    pieces: it may be large.
    """
    import pyarrow.parquet as pq

    kept: list[pd.DataFrame] = []
    with table_of_run(path):
        file = pq.ParquetFile(path)
        for batch in file.iter_batches(batch_size=2**18):
            table = batch.to_pandas()
            table["cell_type"] = table["cell_type"].astype(str)
            kept = [kept_edges(pd.concat([*kept, table], ignore_index=True))]
        return kept[0] if kept else file.schema_arrow.empty_table().to_pandas()


def scores_by_type(confusion: pd.DataFrame) -> pd.DataFrame:
    """Columns class, f1, cells, a row per cell type. confusion: cells by their true type (rows) and
    predicted type.
    """
    counts = confusion.to_numpy(dtype=np.float32)  # as torchmetrics has it, to the last bit
    true, predicted = counts.sum(axis=1), counts.sum(axis=0)
    f1 = 2 * np.diagonal(counts) / np.maximum(true + predicted, 1)
    return pd.DataFrame({"class": confusion.index, "f1": f1, "cells": true.astype(int)})
