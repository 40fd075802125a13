"""`grn predict`: cell types and representations of new cells."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    run: Annotated[Path, typer.Argument(help="A run folder, or the model folder inside one.", show_default=False)],
    data: Annotated[
        Path, typer.Argument(help="The cells: what data.path may name, as an .h5ad file.", show_default=False)
    ],
    output: Annotated[
        Path, typer.Option(help="The .h5ad file to write: the cells, with predictions.", show_default=False)
    ],
    counts: Annotated[
        str | None, typer.Option(help="Where the counts are: X, raw, layer:NAME, recover. Default: as in training.")
    ] = None,
    gene_key: Annotated[
        str | None,
        typer.Option(help="Column of var with the gene names; null: the index. Default: as in training."),
    ] = None,
    error: Annotated[
        float | None,
        typer.Option(
            help="The share of wrong labels that you accept, as 0.05: cells that are less certain are unassigned. "
            "Default: every cell with counts has a label."
        ),
    ] = None,
    map: Annotated[
        Path | None,
        typer.Option(
            help="Other names for cell types: a csv file with the columns from,to. Probabilities of types with one "
            "name are added; it renames the labels of --labels, too. Default: the model's names."
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            help="A column of obs with labels to compare with: prints accuracy and macro F1, and writes "
            "OUTPUT_confusion.csv."
        ),
    ] = None,
) -> None:
    """Predict the cell types of new cells, with their confidence and representation."""
    from grn.io.atomic import refuse_unwritable

    refuse_unwritable(output)

    from grn.cli.console import console, plain
    from grn.verbs.predict import predict_file

    predict_file(
        data,
        run,
        output,
        counts=counts,
        gene_key=gene_key,
        error=error,
        map=map,
        labels=labels,
        say=plain(console()),
    )
