"""`grn predict`: cell types and representations of new cells."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grn.cli.options import MODEL, Counts, GeneKey


def command(
    cells: Annotated[
        Path,
        typer.Argument(
            help="The cells: what data.path may name, as an .h5ad file.", show_default=False
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            help="The .h5ad file to write: the cells, with predictions.", show_default=False
        ),
    ],
    run: Annotated[Path | None, MODEL] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="In place of RUN, a model that comes with grn: blood.", show_default=False
        ),
    ] = None,
    counts: Counts = None,
    gene_key: GeneKey = None,
    error: Annotated[
        float | None,
        typer.Option(
            help="The share of wrong labels that you accept, as 0.05: cells that are less certain "
            "are unassigned. Default: every cell with counts has a label."
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            help="A column of obs with labels to compare with: prints accuracy and macro F1, and "
            "writes OUTPUT_confusion.csv."
        ),
    ] = None,
) -> None:
    """Predict the cell types of new cells, with their confidence and representation."""
    from grn.cli.tables import refuse_output
    from grn.features.predict.api import confusion_of, predict_file

    refuse_output(output, (".h5ad",))
    if labels is not None:
        refuse_output(confusion_of(output), (".csv",))

    from grn.cli.console import console, plain

    predict_file(
        cells,
        run,
        output,
        model=model,
        say=plain(console()),
        counts=counts,
        gene_key=gene_key,
        error=error,
        labels=labels,
    )
