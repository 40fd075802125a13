"""`grn compare`: edges that differ between two conditions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grn.cli.options import CellType, RunFolder

PRINTED = 15


def command(
    run: RunFolder,
    by: Annotated[str, typer.Option(metavar="COLUMN", help="The column of obs with the conditions.")],
    conditions: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="A B", help="The two that are compared. Default: the column's only two."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="The column of obs with the donors. Default: the run's data.group_key."),
    ] = None,
    cell_type: CellType = None,
    output: Annotated[
        Path | None, typer.Option(help="The table to write, with every pair: a .csv or .parquet file.")
    ] = None,
) -> None:
    """Find the edges that differ between two conditions, in each cell type, with intervals and q-values."""
    from grn.cli.tables import refuse_output, write

    refuse_output(output)

    from grn.cli.console import console, print_table
    from grn.verbs.compare import compare

    to = console()
    table = compare(run, by, conditions=conditions, group=group, cell_type=cell_type, quiet=to.quiet)
    to.print()
    print_table(f"Strongest of {len(table)} pairs", list(table), table.head(PRINTED).itertuples(index=False), to)
    if output is not None:
        write(table, output, to)
