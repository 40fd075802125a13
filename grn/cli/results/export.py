"""`grn export`: reads the network of a finished run again, in another way."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from grn.cli.options import Debug, Quiet


class Readout(StrEnum):
    effect = "effect"
    attention = "attention"
    knockout = "knockout"
    jacobian = "jacobian"


def command(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder of grn train.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", help="The folder to make, for network.h5ad and edges.parquet.")],
    readout: Annotated[
        Readout | None,
        typer.Option("--readout", help="The read-out: what an edge's weight is. Default: as the run was configured."),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option("--top-k", min=1, help="Number of regulators to keep for each target. Default: as configured."),
    ] = None,
    cells: Annotated[
        int | None,
        typer.Option(
            "--cells", min=1, help="About how many cells knockout and jacobian average over. Default: as configured."
        ),
    ] = None,
    cell_type: Annotated[
        str | None,
        typer.Option("--cell-type", metavar="LABEL", help="Write the network of this type (state) of cells alone."),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--by", metavar="COLUMN", help="Networks of the groups in this column of obs, instead of the run's states."
        ),
    ] = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write the network of a finished run again: another read-out, one cell type, or other groups of cells."""
    from grn.cli.console import console, plain
    from grn.network.export import export

    chosen = {"readout": readout.value if readout else None, "top_k": top_k, "cells": cells}
    changes = {name: value for name, value in chosen.items() if value is not None}
    export(folder, output, changes=changes, cell_type=cell_type, by=by, say=plain(console(quiet)))
