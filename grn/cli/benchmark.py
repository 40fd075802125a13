"""`grn benchmark`: a table of methods on one's own cells and reference."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grn.cli.options import REFERENCE

TITLES = {
    "auprc": "AUPRC",
    "auprc_ratio": "AUPRC ratio",
    "auroc": "AUROC",
    "early_precision_ratio": "early precision ratio",
    "sign_accuracy": "signs",
    "sign_balanced_accuracy": "signs, balanced",
    "seconds": "seconds",
}


def command(
    cells: Annotated[
        str,
        typer.Argument(
            metavar="CELLS|CONFIG|RUN", help="Cells (counts in X), a configuration or a run.", show_default=False
        ),
    ],
    reference: Annotated[Path, REFERENCE],
    networks: Annotated[
        list[str] | None,
        typer.Option("--network", metavar="NAME=FILE", help="A network of another tool to score, too. Repeatable."),
    ] = None,
    label_key: Annotated[
        str | None, typer.Option("--label", metavar="COLUMN", help="The column of obs with the cell types, for grn.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", help="The csv to write the table to.")] = None,
) -> None:
    """Infer networks by grn, Pearson, Spearman and ridge from your cells, and score all of them against known edges."""
    from grn.cli.tables import pairs_of, refuse_output
    from grn.io.atomic import write_text

    named = pairs_of(networks, "networks")
    refuse_output(output, (".csv",))

    import math

    from grn.cli.console import console, plain, print_table
    from grn.config.files import is_configuration, load_config
    from grn.verbs.benchmark import benchmark

    source = load_config(cells) if is_configuration(cells) else cells
    table = benchmark(source, reference, networks=named, label=label_key, quiet=True)
    for line in table.attrs["notes"]:
        plain(console())(line)
    rows = [
        [name, *("-" if math.isnan(value) else f"{value:.3f}" for value in row.values())]
        for name, row in zip(table.index, table[[*TITLES]].to_dict("records"), strict=True)
    ]
    print_table(f"Networks of {cells} against {reference}", ["method", *TITLES.values()], rows, console())
    if output is not None:
        write_text(output, table.to_csv())
