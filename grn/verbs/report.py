"""The report of a run: what was measured and learned, drawn, as one page in the run's folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from grn.analysis.activity import ACTIVITY, LEAST_KNOWN, activity_of_run
from grn.analysis.drivers import OWN, headline, left_out, to_draw
from grn.analysis.known import KNOWN, beside_known
from grn.analysis.report import write_report
from grn.analysis.summary import certain, certain_table, kept_edges
from grn.cells.cells import Cells
from grn.cells.gene_lists import path_of
from grn.cells.programmes import programmes_of
from grn.config.schema import Config
from grn.errors import DataError
from grn.io.atomic import remove, write_text
from grn.io.run_folder import CHECKPOINTS
from grn.io.tables import read_edge_table, table_of_run
from grn.messages import Say
from grn.model.saved import TrainedModel
from grn.networks.cells_of_run import cells_of_run
from grn.networks.signed_network import SignedNetwork
from grn.plots.activity import activity_heatmap
from grn.plots.graph import network_graph
from grn.plots.scores import confusion_matrix, training_curves
from grn.plots.style import as_png
from grn.verbs.activity import known_regulons

CERTAIN = "certain.csv"
GAPS = (
    "weight",
    "q_value",
    "messenger",
    "messenger_p",
)  # columns of activity.csv and known.csv that may be empty
USUAL = "collectri"  # of human cells, where it is on this machine


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


def write_activity(
    folder: Path,
    config: Config,
    cells: Cells,
    edges: pd.DataFrame,
    say: Say,
    regulons: str | Path | None = None,
) -> None:
    """Writes activity.csv: the activity of known regulators, or of those with certain edges, in
    each cell type, or between the run's two conditions; and, of known ones, known.csv: the certain
    edges beside the known pairs.

    regulons: as `grn.activity` takes them; None: those of `known_for`. Writes no activity, and says
        why, where no regulator has enough targets, or no type enough cells.
    """
    known, whose = known_for(config, cells.vocabulary, regulons)
    if known is not None and "q_value" in edges:
        regulators = range(len(cells.vocabulary)) if cells.regulators is None else cells.regulators
        names = [cells.vocabulary[number] for number in regulators]
        of_types = edges_of_types(folder / "edges_by_type.parquet")
        table = beside_known(edges, of_types, known, names, cells.vocabulary)
        write_text(folder / KNOWN, table.to_csv(index=False, float_format="%.6g"))
    if len(cells.classes) < 2 and len(cells.conditions) != 2:
        return
    grouped = config.data.group_key is not None
    try:
        found = activity_of_run(
            cells, certain(edges) if known is None else known, own=known is None, grouped=grouped
        )
    except DataError as problem:
        say(f"The activity of regulators is not shown: {problem}")
        return
    found = found.assign(regulons=whose)
    write_text(folder / ACTIVITY, found.to_csv(index=False, float_format="%.6g"))
    for line in (headline(found), left_out(found)):
        if line:
            say(line)


def known_for(
    config: Config, genes: Sequence[str], given: str | Path | None = None
) -> tuple[pd.DataFrame | None, str]:
    """Known regulons (source, target, weight), and whose: those given, else the run's own
    (network.regulons), else CollecTRI, where `grn data get` has got it and a regulator has enough
    targets among the genes; None without any.
    """
    chosen = config.network.regulons if given is None else given
    if chosen is not None:
        return known_regulons(chosen), Path(str(chosen)).name
    if path_of(USUAL).is_file():
        known = known_regulons(USUAL)
        if (known.loc[known["target"].isin(genes), "source"].value_counts() >= LEAST_KNOWN).any():
            return known, USUAL
    return None, OWN


def report_with(
    folder: Path, config: Config, trained: TrainedModel, regulons: str | Path, say: Say
) -> None:
    """Writes activity.csv and known.csv of a finished run again, by these known regulons. Raises
    DataError where they, or the run's cells, cannot be read.
    """
    known_regulons(regulons)  # before the cells, which take longer
    edges = read_edge_table(folder / "edges.parquet")
    write_activity(folder, config, cells_of_run(folder, config, trained), edges, say, regulons)


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
