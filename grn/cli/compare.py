"""`grn compare`: what differs between two conditions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grn.cli.options import RunFolder

PRINTED, OF_TYPE = 15, 6  # most edges; most regulators of a cell type


def command(
    run: RunFolder,
    by: Annotated[
        str, typer.Option(metavar="COLUMN", help="The column of obs with the conditions.")
    ],
    conditions: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="A B", help="The two that are compared. Default: the column's only two."
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="The column of obs with the donors. Default: the run's data.group_key.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="The table of tested edges to write, a .csv or .parquet file."),
    ] = None,
) -> None:
    """Find regulators and edges that differ between two conditions, in each cell type, with
    intervals and q-values.
    """
    from grn.cli.tables import refuse_output, write

    refuse_output(output)

    from grn.cli.console import console, print_table
    from grn.evidence.q_values import SIGNIFICANT
    from grn.features.compare.api import compare
    from grn.features.findings.summary import activity_texts

    to = console()
    activity, edges = compare(run, by, conditions=conditions, group=group, quiet=to.quiet)
    to.print()
    if activity is not None:
        differ = activity[activity["q_value"] <= SIGNIFICANT]
        title = f"Activity of regulators that differs ({len(differ)} of {len(activity)}), t-values"
        print_table(
            title, *activity_texts(differ.groupby("cell_type", sort=False).head(OF_TYPE)), to
        )
        to.print()
    if len(differ := edges[edges["q_value"] <= SIGNIFICANT]):
        title = f"Edges that differ ({len(differ)} of {len(edges)})"
        print_table(title, list(edges), differ.head(PRINTED).itertuples(index=False), to)
    if output is not None:
        write(edges, output, to)
