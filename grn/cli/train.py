"""`grn train`: from an expression matrix to a model and its network, in one run folder."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grn.cli.options import Debug, Quiet

if TYPE_CHECKING:
    from rich.console import Console

    from grn.config.schema import Config
    from grn.networks.signed_network import SignedNetwork
    from grn.training.run import TrainResult

DEFAULTS = "own_data.yaml"
EDGES = 8  # of each sign on the terminal


def command(
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA",
            help="Cells to train on, as in data.path, with the defaults or with --config; or a configuration (.yaml).",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option("--config", help="A configuration: a file, or the name of one that comes with grn (pbmc.yaml)."),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option("--label", metavar="COLUMN", help="The column of obs with the cell types: data.label_key."),
    ] = None,
    regulators: Annotated[
        str | None,
        typer.Option(
            "--regulators",
            metavar="FILE|LIST|NAME,NAME,...",
            help="The genes that may regulate: a file with one a line, a list of grn data get, as human_tfs, or their "
            "names: data.regulators.",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="Set one field, for example trainer.max_epochs=5; own_data.yaml explains all. Repeatable.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", help="The run folder to make. Default: runs/<config>-<date>-<n>."),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", metavar="RUN", help="Continue the interrupted run in this folder."),
    ] = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Train a model, and write its predictions of cell types and its network into a run folder."""
    from grn.errors import ConfigError
    from grn.io.run_folder import COMPLETE, config_of, refuse_lost

    if is_configuration(data):
        if config is not None:
            raise ConfigError(f"There are two configurations, {data} and --config {config}; leave one of them out.")
        config, data = data, None
    if resume is not None:
        if any((data, config, overrides, output, label, regulators)):
            raise ConfigError(f"--resume continues {resume} as it was started; leave out everything else.")
        config = str(config_of(resume))
        refuse_lost(resume)
        if (resume / COMPLETE).exists():  # a queue that gives the same command until it succeeds must end
            from grn.cli.console import console, plain

            plain(console(quiet))(f"The run in {resume} is complete; there is nothing to resume.")
            return
    elif data is None and config is None:
        raise ConfigError(
            "grn train needs cells (grn train cells.h5ad), --config FILE, or --resume RUN to continue an interrupted "
            "run; see grn train --help."
        )
    # The configuration is checked before torch and Lightning are imported, which takes seconds.
    loaded = loaded_config(data, config, label, regulators, overrides)
    name = Path(config).stem if config else re.sub(r"[^\w.-]+", "_", Path(data or "").stem).strip("_")

    import pandas as pd

    from grn.cli.console import console, plain
    from grn.networks.signed_network import open_network
    from grn.training.run import train
    from grn.verbs.report import write_run_report

    to = console(quiet)
    result = train(loaded, output, resume=resume, name=name, say=plain(to), terminal=to.is_terminal)
    if result:
        network = open_network(result.folder / "network.h5ad")
        report = write_run_report(
            result.folder,
            config=loaded,
            metrics=result.metrics,
            history=pd.read_csv(result.folder / "metrics.csv"),
            confusion=result.confusion,
            edges=result.edges,
            network=network,
        )
        print_result(result, network, to)
        to.print(f"\nFigures and tables: {report}", markup=False)


def names_or_file(regulators: str) -> str | list[str]:
    """What --regulators gives: names, as A,B or [A,B], or else a file or the name of a list."""
    if not re.search(r",|^\[.*\]$", regulators):
        return regulators
    with suppress(OSError):  # a long list of names is no name of a file
        if Path(regulators).exists():
            return regulators
    return [name for part in regulators.strip("[]").split(",") if (name := part.strip())]


def is_configuration(data: str | None) -> bool:
    """Whether what was given in the place of cells is a configuration."""
    return data is not None and data.lower().endswith((".yaml", ".yml"))


def loaded_config(
    data: str | None, config: str | None, label: str | None, regulators: str | None, overrides: list[str] | None
) -> Config:
    """The configuration of a run: `config` (None: the defaults) with `overrides` and what the options say."""
    from grn.config.files import (
        change_config,
        load_config,
        parse_override,
        refuse_started_elsewhere,
        refuse_unused,
    )
    from grn.errors import ConfigError, reworded

    field, equals, value = (data or "").partition("=")
    if equals and re.fullmatch(r"[a-z_]+\.[a-z_.]+", field):
        raise ConfigError(f"{data} stands where the cells belong; write --set {field}={value}.")
    if is_configuration(data):
        config, data = data, None
    loaded = load_config(config or DEFAULTS, overrides or [])
    given: dict[str, Any] = {
        "data.path": data,
        "data.label_key": label,
        "data.regulators": None if regulators is None else names_or_file(regulators),
    }
    given = {field: value for field, value in given.items() if value is not None}
    for override in overrides or []:
        if (field := parse_override(override)[0]) in given:
            raise ConfigError(f"--set {override} sets {field}, which is {given[field]!r} already; give one of the two.")
    with reworded({"set data.label_key=": "--label ", "set data.regulators=": "--regulators "}):
        changed = change_config(loaded, given)
    if config:
        refuse_started_elsewhere(changed, config, given)
    refuse_unused(changed, [parse_override(override)[0] for override in overrides or []])
    return changed


def print_result(result: TrainResult, network: SignedNetwork, to: Console) -> None:
    """Prints the scores of the test cells, the F1 of each cell type, the strongest edges and how many stand out; no
    empty table."""
    from grn.analysis.summary import class_rows, edge_columns, edge_rows, edge_titles, found_rows, score_rows
    from grn.cli.console import print_table
    from grn.networks.file_formats import strongest_edges

    strongest = strongest_edges(result.edges, EDGES)
    tables: list[tuple[str, list[str], list]] = [
        ("Test cells", ["metric", "value"], score_rows(result.metrics)),
        ("F1 of the cell types", ["cell type", "F1", "test cells"], class_rows(result.per_class)),
    ]
    tables += [
        (title, edge_columns(edges), list(edge_rows(edges)))
        for title, edges in zip(edge_titles(network.signed), strongest, strict=True)
    ]
    tables.append(("Edges at a false discovery rate of 0.05", ["cells", "edges"], found_rows(network.about)))
    for title, columns, rows in tables:
        if rows:
            to.print()
            print_table(title, columns, rows, to)
