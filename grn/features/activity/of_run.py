"""The activity of regulators in a run's cells, and its edges beside known ones: activity.csv and
known.csv."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from grn.cells.cells import Cells
from grn.cells.genes.lists import path_of
from grn.config.schema import Config
from grn.features.activity.of_cells import LEAST_KNOWN, activity_of_run
from grn.features.findings.drivers import ACTIVITY, OWN, headline, left_out
from grn.features.findings.known import KNOWN, beside_known
from grn.features.findings.summary import certain
from grn.features.given_networks import known_regulons
from grn.features.report.write import edges_of_types
from grn.model.saved import TrainedModel
from grn.networks.cells_of_run import cells_of_run
from grn.runtime.atomic import write_text
from grn.runtime.errors import DataError
from grn.runtime.messages import Say
from grn.runtime.tables import read_edge_table

USUAL = "collectri"  # of human cells, where it is on this machine


def write_activity(
    folder: Path,
    config: Config,
    cells: Cells,
    edges: pd.DataFrame,
    say: Say,
    regulons: str | Path | None = None,
) -> None:
    """Write activity.csv: the activity of known regulators, or of those with certain edges, in each
    cell type, or between the run's two conditions; and, of known ones, known.csv: the certain edges
    beside the known pairs.

    regulons: as `grn.activity` takes them; None: the run's own (network.regulons), else those of
        `known_for`. Writes no activity, and says why, where no regulator has enough targets, or no
        type enough cells.
    """
    known, whose = known_for(
        cells.vocabulary, config.network.regulons if regulons is None else regulons
    )
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


def known_for(genes: Sequence[str], chosen: str | Path | None) -> tuple[pd.DataFrame | None, str]:
    """Return known regulons (source, target, weight), and their name.

    chosen: regulons as `grn.activity` takes them; None: CollecTRI, where `grn data get` has got it
        and a regulator has enough targets among `genes`, and no regulons otherwise.
    """
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
    """Write activity.csv and known.csv of a finished run again, by these known regulons.

    Raises DataError where they, or the run's cells, cannot be read.
    """
    known_regulons(regulons)  # before the cells, which take longer
    edges = read_edge_table(folder / "edges.parquet")
    write_activity(folder, config, cells_of_run(folder, config, trained), edges, say, regulons)
