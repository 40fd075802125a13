"""`grn benchmark`: a table of methods on one's own cells and reference."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grn.cli.options import Debug, Quiet

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
    reference: Annotated[
        Path, typer.Argument(help="The true edges: a csv or tsv of BEELINE, TRRUST or decoupler.", show_default=False)
    ],
    networks: Annotated[
        list[str] | None,
        typer.Option("--network", metavar="NAME=FILE", help="A network of another tool to score, too. Repeatable."),
    ] = None,
    label: Annotated[
        str | None, typer.Option("--label", metavar="COLUMN", help="The column of obs with the cell types, for grn.")
    ] = None,
    regulators: Annotated[
        str,
        typer.Option("--regulators", metavar="reference|all|FILE", help="The regulators whose edges are scored."),
    ] = "reference",
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Seed of grn's fit.")] = 0,
    output: Annotated[Path | None, typer.Option("--output", help="The csv to write the table to.")] = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Infer networks by grn, Pearson, Spearman and ridge from your cells, and score all of them against known edges."""
    from grn.cli.tables import refuse_output
    from grn.errors import ConfigError, reworded
    from grn.io.atomic import refuse_unwritable, write_text

    named = {}
    for each in networks or []:
        name, equals, file = each.partition("=")
        if not (name and equals and file):
            raise ConfigError(f"--network is {each!r}; give a name and a file, as --network GENIE3=genie3.csv.")
        if name in named:
            raise ConfigError(f"--network names {name!r} twice; give each network a name of its own.")
        named[name] = file
    if output is not None:
        refuse_output(output, "benchmark", (".csv",))
        refuse_unwritable(output)

    import math

    from grn.cli.console import console, plain, print_table
    from grn.config.files import load_config
    from grn.io.run_folder import CONFIG
    from grn.verbs.benchmark import benchmark

    to = console(quiet)
    source = load_config(cells) if cells.lower().endswith((".yaml", ".yml")) else cells
    words = {
        "give the network first": "give the cells first",
        "a text is expected; give a text file, or write the table as one": (
            "a table of the true edges is expected; give the cells first, and the table after it"
        ),
        "set label_key to another column, or to null": "give --label another column, or leave it out",
        "label_key": "--label",
        "regulators=": "--regulators",
    }
    if isinstance(source, str) and not (Path(source) / CONFIG).is_file():  # cells alone have no fields
        words["set data."] = "give a configuration with data."
    with reworded(words):
        table = benchmark(
            source, reference, networks=named, regulators=regulators, label_key=label, seed=seed, quiet=True
        )
    for line in table.attrs["notes"]:
        plain(to)(line)
    rows = [
        [name, *("-" if math.isnan(value) else f"{value:.3f}" for value in row.values())]
        for name, row in zip(table.index, table[[*TITLES]].to_dict("records"), strict=True)
    ]
    print_table(f"Networks of {cells} against {reference}", ["method", *TITLES.values()], rows, to)
    if output is not None:
        write_text(output, table.to_csv())
