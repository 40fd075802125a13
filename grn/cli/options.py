"""Arguments and options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Orientation(StrEnum):
    """The choices of --orientation: see data.orientation."""

    cells_by_genes = "cells_by_genes"
    genes_by_cells = "genes_by_cells"


ORIENTATION = Annotated[
    Orientation | None,
    typer.Option("--orientation", help="What the rows and columns of a text file are."),
]
EVERYWHERE = (
    "Everywhere: [bold]--quiet[/] prints nothing but errors, [bold]--debug[/] the traceback of an "
    "error."
)

RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run folder of grn train.", show_default=False)
]
MODEL = typer.Argument(
    help="A run folder, the model folder inside one, or hf://OWNER/NAME.", show_default=False
)
ModelFolder = Annotated[Path, MODEL]
Counts = Annotated[
    str | None,
    typer.Option(
        help="Where the counts are: X, raw, layer:NAME, recover. Default: as in training."
    ),
]
GeneKey = Annotated[
    str | None,
    typer.Option(
        help="Column of var with the gene names; null: the index. Default: as in training."
    ),
]
CellType = Annotated[
    str | None, typer.Option(metavar="LABEL", help="This cell type alone. Default: all.")
]
REFERENCE = typer.Argument(
    help="The true edges: a csv or tsv of BEELINE, TRRUST or decoupler, or the truth.csv of a "
    "simulated run.",
    show_default=False,
)
Label = Annotated[
    str | None,
    typer.Option(
        "--label", metavar="COLUMN", help="The column of obs with the cell types: data.label_key."
    ),
]
Regulators = Annotated[
    str | None,
    typer.Option(
        "--regulators",
        metavar="FILE|LIST|NAME,NAME,...",
        help="The genes that may regulate: a file with one a line, a list of grn data get, as "
        "human_tfs, or their names: data.regulators.",
    ),
]
