"""`grn explain`: which genes speak for the cell types that cells are called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grn.cli.options import CellType, ModelFolder

TOP = 10  # genes of each type that are printed and drawn


def command(
    cells: Annotated[
        Path, typer.Argument(help="The cells, as for grn predict.", show_default=False)
    ],
    run: ModelFolder,
    cell_type: CellType = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="The table of all genes (.csv, .parquet), or with --cell-type a picture (.png)."
        ),
    ] = None,
) -> None:
    """Tell which genes speak for the cell types that cells are called, and which against."""
    from grn.cli.tables import refuse_output, write

    refuse_output(output, (".csv", ".parquet", ".png") if cell_type else (".csv", ".parquet"))

    from grn.cli.console import console, plain, print_table
    from grn.features.explain import explain

    to = console()
    say = plain(to)
    table = explain(cells, run, cell_type=cell_type, quiet=to.quiet)
    for name, own in table.groupby("cell_type", sort=False):
        read = own["cells"].iloc[0]
        say(
            f"{name} ({read} {'cell' if read == 1 else 'cells'} called so), change of its log odds:"
        )
        ends = {"for": own.head(TOP), "against": own.tail(TOP).iloc[::-1]}
        shown = [
            (side, row.gene, f"{row.effect:+.3f}", f"{row.agreement:.2f}", f"{row.expressed:.2f}")
            for side, rows in ends.items()
            for row in rows.itertuples()
            if (row.effect > 0) == (side == "for") and row.effect
        ]
        print_table(str(name), ["", "gene", "effect", "agreement", "expressed"], shown, to)
    if output is not None and output.suffix == ".png":
        from grn.plots.bars import cell_type_genes
        from grn.plots.style import save

        save(cell_type_genes(table, top=TOP, show=False), output)
        to.print(f"\nPicture: {output}", markup=False)
    elif output is not None:
        write(table, output, to)
