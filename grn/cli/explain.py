"""`grn explain`: which genes speak for the cell types that cells are called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grn.cli.options import Debug, Orientation, Quiet

WORDS = {
    "cells is": "--cells is",
    "cell_type is": "--cell-type is",
    "map names": "--map names",
    "set counts to": "give --counts",
    "set counts:": "give --counts",
    "counts is": "--counts is",
    "set gene_key to": "give --gene-key",
    "give gene_key": "give --gene-key",
    "gene_key is": "--gene-key is",
    "give orientation=": "give --orientation",
    "orientation is": "--orientation is",
    "which map calls": "which --map calls",
}
"""What messages say to a caller of `grn.explain` -> what they say of options."""


def command(
    run: Annotated[Path, typer.Argument(help="A run folder, or the model folder inside one.", show_default=False)],
    data: Annotated[Path, typer.Argument(help="The cells, as for grn predict.", show_default=False)],
    cell_type: Annotated[
        str | None, typer.Option("--cell-type", metavar="LABEL", help="Explain this type alone. Default: every type.")
    ] = None,
    cell: Annotated[
        str | None,
        typer.Option("--cell", metavar="NAME", help="Explain the call of this one cell, by its name in obs."),
    ] = None,
    names: Annotated[
        Path | None, typer.Option("--map", help="Other names for cell types: a csv file with the columns from,to.")
    ] = None,
    cells: Annotated[int, typer.Option("--cells", help="Cells of each type that are read.")] = 50,
    top: Annotated[int, typer.Option("--top", min=1, help="Genes of each type that are printed and drawn.")] = 10,
    counts: Annotated[
        str | None,
        typer.Option("--counts", help="Where the counts are: X, raw, layer:NAME, recover. Default: as in training."),
    ] = None,
    gene_key: Annotated[
        str | None, typer.Option("--gene-key", help="Column of var with the gene names. Default: as in training.")
    ] = None,
    orientation: Annotated[
        Orientation | None,
        typer.Option("--orientation", help="What the rows and columns of a text file are. Default: as in training."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", help="The table of all genes (.csv, .parquet), or with --cell-type a picture (.png)."),
    ] = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Tell which genes speak for the cell types that cells are called, and which against."""
    from grn.cli.console import console, plain, print_table
    from grn.cli.tables import refuse_output, write
    from grn.errors import ConfigError, reworded
    from grn.io.atomic import refuse_unwritable

    if output is not None:
        if output.suffix == ".png" and not (cell_type or cell):
            raise ConfigError(f"--output is {output}, and a picture is of one cell type; give --cell-type, too.")
        refuse_output(output, "explain", (".csv", ".parquet", ".png") if cell_type or cell else (".csv", ".parquet"))
        refuse_unwritable(output)

    from grn.verbs.explain import explain

    to = console()
    with reworded(WORDS | {f"map {names}": f"--map {names}"}):
        say = plain(to)
        table = explain(
            data,
            run,
            cell_type=cell_type,
            cell=cell,
            map=names,
            cells=cells,
            counts=counts,
            gene_key=gene_key,
            orientation=orientation.value if orientation else None,
            quiet=True,
        )
    for name, own in table.groupby("cell_type", sort=False):
        read = own["cells"].iloc[0]
        whose = f"{read} {'cell' if read == 1 else 'cells'} called so"
        if cell is not None and cell_type is not None:  # the cell may be called something else
            whose = f"the cell {cell}, whatever it is called"
        say(f"{name} ({whose}), change of its log odds:")
        ends = {"for": own.head(top), "against": own.tail(top).iloc[::-1]}
        shown = [
            (side, row.gene, f"{row.effect:+.3f}", f"{row.agreement:.2f}", f"{row.expressed:.2f}")
            for side, rows in ends.items()
            for row in rows.itertuples()
            if (row.effect > 0) == (side == "for") and row.effect
        ]
        print_table(str(name), ["", "gene", "effect", "agreement", "expressed"], shown, to)
    if output is not None and output.suffix == ".png":
        from grn.plots.cells.explanation import cell_type_genes
        from grn.plots.style import save

        save(cell_type_genes(table, top=top, show=False), output)
    elif output is not None:
        write(table, output)
    if output is not None:
        to.print(f"\n{'Picture' if output.suffix == '.png' else 'Table'}: {output}", markup=False)
