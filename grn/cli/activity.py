"""`grn activity`: how active regulators of known regulons, or of a run, are in cell types and
between conditions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PRINTED = 6  # regulators of each cell type


def command(
    cells: Annotated[
        str,
        typer.Argument(metavar="CELLS", help="Cells, as grn train takes them.", show_default=False),
    ],
    regulons: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE|RUN",
            help="What regulates what: collectri or dorothea (grn data get), a table of edges, or "
            "a run of grn train, of which the certain edges count.",
        ),
    ],
    by: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The column of obs with the cell types.")
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="The column of obs with conditions, compared within each type."
        ),
    ] = None,
    conditions: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="A B", help="The two that are compared. Default: the column's only two."
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="The column of obs with the donors, which then are the units."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="The table to write, whole: a .csv or .parquet file.")
    ] = None,
) -> None:
    """Tell how active regulators are in each cell type, or between two conditions, from the levels
    of their targets.
    """
    from grn.cli.tables import refuse_output, write

    refuse_output(output)

    from grn.cli.console import console, print_table
    from grn.features.activity.api import activity
    from grn.features.findings.summary import activity_texts

    to = console()
    table = activity(
        cells, regulons, by=by, compare=compare, conditions=conditions, group=group, quiet=to.quiet
    )
    to.print()
    title = "Activity (t-value)" if compare is None else f"Activity (t-value), by {compare}"
    print_table(title, *activity_texts(table.groupby("cell_type", sort=False).head(PRINTED)), to)
    if output is not None:
        write(table, output, to)
