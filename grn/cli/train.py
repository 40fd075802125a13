"""`grn train`: from an expression matrix to a model and its network, in one run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grn.cli.options import Debug, Quiet


def command(
    context: typer.Context,
    config: Annotated[
        str | None,
        typer.Option("--config", help="A configuration: a file, or the name of one that comes with grn (pbmc.yaml)."),
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
    from grn.config.files import load_config
    from grn.errors import ConfigError
    from grn.run_folder import config_of

    for argument in context.args:
        is_config = argument.lower().endswith((".yaml", ".yml"))
        options = f"--config {argument}" if is_config else f"--config own_data.yaml --set data.path={argument}"
        raise ConfigError(f"grn train takes options only, and {argument!r} is not one; write grn train {options}.")
    if resume is not None:
        if config is not None or overrides or output is not None:
            raise ConfigError(f"--resume continues {resume} as it was started; leave out --config, --set and --output.")
        config = str(config_of(resume))
    elif config is None:
        raise ConfigError(
            "grn train needs --config FILE, or --resume RUN to continue an interrupted run; see grn train --help."
        )
    # The configuration is checked before torch and Lightning are imported, which takes seconds.
    loaded = load_config(config, overrides or [])

    import pandas as pd

    from grn.api.report import write_run_report
    from grn.cli.console import console, plain
    from grn.cli.train_result import print_result
    from grn.network.signed_network import open_network
    from grn.training.run import train

    to = console(quiet)
    result = train(loaded, output, resume=resume, name=Path(config).stem, say=plain(to), terminal=to.is_terminal)
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
