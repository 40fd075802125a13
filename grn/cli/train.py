"""`grn train`: from an expression matrix to a model and its network, in one run folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from grn.cli.options import Debug, Quiet

DEFAULTS = "own_data.yaml"


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
    from grn.config.files import change_config, load_config
    from grn.errors import ConfigError
    from grn.run_folder import COMPLETE, config_of

    if data is not None and data.lower().endswith((".yaml", ".yml")):
        if config is not None:
            raise ConfigError(f"There are two configurations, {data} and --config {config}; leave one of them out.")
        config, data = data, None
    if resume is not None:
        if data is not None or config is not None or overrides or output is not None:
            raise ConfigError(
                f"--resume continues {resume} as it was started; leave out DATA, --config, --set and --output."
            )
        config = str(config_of(resume))
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
    loaded = load_config(config or DEFAULTS, overrides or [])
    if data is not None:
        loaded = change_config(loaded, {"data.path": data})
    name = Path(config).stem if config else re.sub(r"[^\w.-]+", "_", Path(data or "").stem).strip("_")

    import pandas as pd

    from grn.api.report import write_run_report
    from grn.cli.console import console, plain
    from grn.cli.train_result import print_result
    from grn.network.signed_network import open_network
    from grn.training.run import train

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
