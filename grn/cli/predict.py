"""`grn predict`: cell types and representations of new cells."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grn.cli.options import Debug, Orientation, Quiet
from grn.errors import reworded

OPTIONS = {
    "set data.duplicates: sum to add their counts, or data.gene_key to": "merge them, or give --gene-key",
    " to a matrix that holds counts, or data.values: expression": " to a matrix that holds counts",
    ", or set data.values: expression to use the values as they are": "",
    "set data.counts: ": "give --counts ",
    "data.counts: ": "--counts ",
    "data.counts": "--counts",
    "set data.gene_key: ": "give --gene-key ",
    "set data.gene_key to": "give --gene-key",
    "data.gene_key": "--gene-key",
    "set data.path to a file or to": "give a file or",
    "set data.path to": "give",
    "set data.orientation to": "give --orientation",
    "set data.orientation: null": "leave it out",
    "data.orientation": "--orientation",
}


def command(
    model: Annotated[Path, typer.Argument(help="A run folder, or the model folder inside one.", show_default=False)],
    data: Annotated[
        Path, typer.Argument(help="The cells: a file or folder of any format that data.path takes.", show_default=False)
    ],
    output: Annotated[Path, typer.Option("--output", help="The .h5ad file to write: DATA with the predictions added.")],
    key_added: Annotated[
        str,
        typer.Option(
            "--key-added",
            help="KEY in obs['KEY_cell_type'], obs['KEY_cell_type_confidence'], obsm['X_KEY'] and the like.",
        ),
    ] = "grn",
    counts: Annotated[
        str | None,
        typer.Option("--counts", help="Where the counts are: X, raw, layer:NAME, recover. Default: as in training."),
    ] = None,
    gene_key: Annotated[
        str | None,
        typer.Option("--gene-key", help="Column of var with the gene names. Default: as in training."),
    ] = None,
    orientation: Annotated[
        Orientation | None,
        typer.Option("--orientation", help="What the rows and columns of a text file are. Default: as in training."),
    ] = None,
    error: Annotated[
        float | None,
        typer.Option(
            "--error",
            help="Share of wrong labels that you accept, as 0.05: less certain cells are 'unassigned'. "
            "Default: all have a label.",
        ),
    ] = None,
    names: Annotated[
        Path | None,
        typer.Option(
            "--map",
            help="Other names for cell types: a csv file with the columns from,to. Probabilities of types with one "
            "name are added; it renames the labels of --labels, too. Default: the model's names.",
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            "--labels",
            help="A column of obs with labels to compare with: prints accuracy and macro F1, and writes "
            "OUTPUT_confusion.csv.",
        ),
    ] = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Predict the cell types of new cells, with their confidence and representation."""
    from grn.io.atomic import refuse_unwritable

    refuse_unwritable(output)

    from grn.analysis.predict import predict
    from grn.cli.console import console, plain

    with reworded(OPTIONS):
        predict(
            model,
            data,
            output,
            key_added=key_added,
            counts=counts,
            gene_key=gene_key,
            orientation=orientation,
            error=error,
            names=names,
            labels=labels,
            say=plain(console()),
        )
