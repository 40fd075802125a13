"""`grn export`: a network as a file for another program."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    network: Annotated[
        Path,
        typer.Argument(
            help="A run folder, edges.parquet, network.h5ad, or a table of edges.",
            show_default=False,
        ),
    ],
    output: Annotated[Path, typer.Option("--output", help="The file to make.")],
    format: Annotated[
        str,
        typer.Option(
            "--format",
            help="parquet, csv, h5ad, graphml, cytoscape, pyscenic, gmt, beeline, decoupler or "
            "genernib; huggingface: the model as a folder with a card.",
        ),
    ],
    cell_type: Annotated[
        str | None,
        typer.Option("--cell-type", metavar="LABEL", help="The network of this type of cells."),
    ] = None,
    regulators: Annotated[
        str | None,
        typer.Option(
            "--regulators",
            metavar="FILE|NAME,...",
            help="The edges of these regulators; a file has one a line.",
        ),
    ] = None,
    targets: Annotated[
        str | None,
        typer.Option(
            "--targets",
            metavar="FILE|NAME,...",
            help="The edges into these genes; a file has one a line.",
        ),
    ] = None,
    max_q_value: Annotated[
        float | None, typer.Option("--max-q-value", min=0, max=1, help="Largest q-value.")
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option("--top-k", min=1, help="Most regulators of each target, the strongest ones."),
    ] = None,
    every: Annotated[
        bool,
        typer.Option("--all", help="All edges; by default those that are certain, q at most 0.05."),
    ] = False,
) -> None:
    """Write a network as a file for another program:
    its certain edges, all of them, or a choice.
    """
    from grn.cli.console import console
    from grn.features.export.api import export
    from grn.runtime.errors import called

    with called({"certain": "--all"}.get):
        export(
            network,
            output,
            format=format,
            cell_type=cell_type,
            regulators=regulators,
            targets=targets,
            max_q_value=max_q_value,
            top_k=top_k,
            certain=not every,
            quiet=console().quiet,
        )
