"""`grn train`: from an expression matrix to a model and its network, in one run folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from grn.config.schema import Config
    from grn.networks.signed_network import SignedNetwork
    from grn.training.run import TrainResult

DEFAULTS = "own_data.yaml"
EDGES = 8  # of each sign on the terminal

Label = Annotated[
    str | None, typer.Option("--label", metavar="COLUMN", help="The column of obs with the cell types: data.label_key.")
]
Regulators = Annotated[
    str | None,
    typer.Option(
        "--regulators",
        metavar="FILE|LIST|NAME,NAME,...",
        help="The genes that may regulate: a file with one a line, a list of grn data get, as human_tfs, or their "
        "names: data.regulators.",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Set one field, for example trainer.max_epochs=5; own_data.yaml explains all. Repeatable.",
    ),
]


def command(
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA", help="Cells to train on, as in data.path, or a configuration (.yaml).", show_default=False
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option("--config", help="A configuration: a file, or the name of one that comes with grn (pbmc.yaml)."),
    ] = None,
    label_key: Label = None,
    regulators: Regulators = None,
    overrides: Overrides = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", help="The run folder to make. Default: runs/<config>-<date>-<n>."),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", metavar="RUN", help="Continue the interrupted run in this folder."),
    ] = None,
) -> None:
    """Train a model, and write its predictions of cell types and its network into a run folder."""
    from grn.cli.console import console, plain
    from grn.errors import ConfigError
    from grn.io.run_folder import COMPLETE, config_of, refuse_lost

    to = console()
    if resume is not None:
        if any((path, config, overrides, output, label_key, regulators)):
            raise ConfigError(f"--resume continues {resume} as it was started; leave out everything else.")
        config = str(config_of(resume))
        refuse_lost(resume)
        if (resume / COMPLETE).exists():  # a queue that gives the same command until it succeeds must end
            plain(to)(f"The run in {resume} is complete; there is nothing to resume.")
            return
    # The configuration is checked before torch and Lightning are imported, which takes seconds.
    loaded = loaded_config(path, config, label_key, regulators, overrides)
    name = re.sub(r"[^\w.-]+", "_", Path(config or path or "").stem).strip("_")

    import pandas as pd

    from grn.networks.signed_network import open_network
    from grn.training.run import train
    from grn.verbs.report import write_run_report

    result = train(loaded, output, resume=resume, name=name, say=plain(to), terminal=to.is_terminal)
    if result:
        network, history = open_network(result.folder / "network.h5ad"), pd.read_csv(result.folder / "metrics.csv")
        found = {"metrics": result.metrics, "confusion": result.confusion, "edges": result.edges, "network": network}
        report = write_run_report(result.folder, config=loaded, history=history, **found)
        print_result(result, network, to)
        to.print(f"\nFigures and tables: {report}", markup=False)


def loaded_config(
    path: str | None, config: str | None, label_key: str | None, regulators: str | None, overrides: list[str] | None
) -> Config:
    """The configuration of a run: `config` (None: the defaults) with what the options say."""
    from grn.config.files import change_config, is_configuration, parse_override
    from grn.errors import ConfigError
    from grn.verbs.train import changed_fields

    both = is_configuration(path) and config is not None
    if both or (path is None and config is None):
        found = f"There are two configurations, {path} and {config}" if both else "No cells are given"
        raise ConfigError(f"{found}; give DATA, --config FILE, or --resume RUN to continue a run.")
    if is_configuration(path):
        config, path = path, None
    names = regulators is not None and re.search(r",|^\[.*\]$", regulators) is not None
    chosen = re.findall(r"[^\s,\[\]]+", regulators or "") if names else regulators
    keywords = {"path": path, "label_key": label_key, "regulators": chosen}
    return change_config(config or DEFAULTS, changed_fields(keywords, dict(map(parse_override, overrides or []))))


def print_result(result: TrainResult, network: SignedNetwork, to: Console) -> None:
    """Prints the scores of the test cells, the F1 of each cell type, the strongest edges and how many stand out; no
    empty table."""
    from grn.analysis.summary import class_rows, edge_texts, edge_titles, found_rows, score_rows
    from grn.cli.console import print_table
    from grn.networks.run_files import strongest_edges

    strongest = strongest_edges(result.edges, EDGES)
    tables: list[tuple[str, list[str], list]] = [
        ("Test cells", ["metric", "value"], score_rows(result.metrics)),
        ("F1 of the cell types", ["cell type", "F1", "test cells"], class_rows(result.per_class)),
    ]
    tables += [(title, *edge_texts(edges)) for title, edges in zip(edge_titles(network.signed), strongest, strict=True)]
    tables.append(("Edges at a false discovery rate of 0.05", ["cells", "edges"], found_rows(network.about)))
    for title, columns, rows in tables:
        if rows:
            to.print()
            print_table(title, columns, rows, to)
