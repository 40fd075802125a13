"""`grn compare`: edges that differ between two conditions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grn.cli.options import Debug, Quiet

PRINTED = 15


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder of grn train.", show_default=False)],
    by: Annotated[str, typer.Option("--by", metavar="COLUMN", help="The column of obs with the conditions.")],
    conditions: Annotated[
        tuple[str, str] | None,
        typer.Option("--conditions", metavar="A B", help="The two that are compared. Default: the column's only two."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group", metavar="COLUMN", help="The column of obs with the donors. Default: the run's data.group_key."
        ),
    ] = None,
    cell_type: Annotated[
        str | None,
        typer.Option("--cell-type", metavar="LABEL", help="Compare the cells of this type alone. Default: all, each."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="The table to write, with every pair: a .csv or .parquet file.")
    ] = None,
    permutations: Annotated[
        int, typer.Option("--permutations", min=1, help="Number of permutations of the conditions.")
    ] = 200,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the permutations.")] = 0,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Find the edges that differ between two conditions, in each cell type, with intervals and q-values."""
    from grn.cli.tables import refuse_output, write
    from grn.io.atomic import refuse_unwritable

    if output is not None:
        refuse_output(output, "compare")
        refuse_unwritable(output)

    from grn.analysis.compare.compare import compare_run
    from grn.cli.console import console, plain, print_table

    to = console()
    table = compare_run(
        run,
        by,
        conditions=conditions,
        group=group,
        cell_type=cell_type,
        permutations=permutations,
        seed=seed,
        say=plain(to),
    )
    to.print()
    print_table(f"Strongest of {len(table)} pairs", list(table), table.head(PRINTED).itertuples(index=False), to)
    if output is not None:
        write(table, output)
        to.print(f"\nTable: {output}", markup=False)
