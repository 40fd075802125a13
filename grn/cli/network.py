"""`grn network`: the network of cells alone, without a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grn.cli.options import Label, Regulators

PRINTED = 15


def command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="Cells, as in data.path, or a configuration.", show_default=False
        ),
    ],
    label_key: Label = None,
    regulators: Regulators = None,
    output: Annotated[
        Path | None, typer.Option(help="The table of edges to write: .csv or .parquet.")
    ] = None,
) -> None:
    """Infer the network of all these cells: what is certain first, as soon as it is known. No run
    folder is made.
    """
    from grn.cli.tables import refuse_output, write

    refuse_output(output)

    from grn.cli.console import console, print_table
    from grn.cli.train import loaded_config
    from grn.features.findings.summary import certain, edge_texts
    from grn.features.network import network

    to = console()
    edges = network(loaded_config(source, None, label_key, regulators), quiet=to.quiet)
    found = certain(edges)
    title = (
        f"Certain edges, {min(PRINTED, len(found))} of {len(found)}"
        if len(found)
        else "No edge is certain."
    )
    to.print()
    print_table(title, *edge_texts(found.head(PRINTED)), to)
    if output is not None:
        write(edges, output, to)
