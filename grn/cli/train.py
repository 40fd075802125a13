"""`grn train`: from an expression matrix to a model and its network, in one run folder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grn.cli.options import ORIENTATION, Label, Regulators

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from grn.config.schema import Config
    from grn.edges.signed_network import SignedNetwork
    from grn.training.run import TrainResult

DEFAULTS = "own_data.yaml"
EDGES = 12  # on the terminal, and effects of interventions
ACTIVE = 3  # regulators of each cell type

Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Set one field, for example trainer.max_epochs=5; own_data.yaml explains all. "
        "Repeatable.",
    ),
]


def command(
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA",
            help="Cells to train on, as in data.path, or a configuration (.yaml).",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            help="A configuration: a file, or the name of one that comes with grn (pbmc.yaml).",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", help="The run folder to make. Default: runs/<config>-<date>-<n>."),
    ] = None,
    label_key: Label = None,
    regulators: Regulators = None,
    orientation: ORIENTATION = None,
    overrides: Overrides = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume",
            metavar="RUN",
            help="Continue the interrupted run in this folder; --set trainer.devices=N: with N "
            "processes.",
        ),
    ] = None,
) -> None:
    """Train a model, and write its predictions of cell types and its network into a run folder."""
    from grn.cli.console import console, plain
    from grn.config.schema import WHERE
    from grn.runtime.errors import ConfigError
    from grn.runtime.run_folder import COMPLETE, config_of, refuse_lost

    to = console()
    if resume is not None:
        allowed = [f"trainer.{name}" for name in WHERE]
        others = {override.partition("=")[0] for override in overrides or []}.difference(allowed)
        if others or any((path, config, output, label_key, regulators, orientation)):
            raise ConfigError(
                f"--resume continues {resume} as it was started; leave out everything else (--set "
                f"may change {', '.join(allowed)})."
            )
        config = str(config_of(resume))
        refuse_lost(resume)
        # a queue that gives the same command until it succeeds must end
        if (resume / COMPLETE).exists():
            plain(to)(f"The run in {resume} is complete; there is nothing to resume.")
            return
    # The configuration is checked before torch and Lightning are imported, which takes seconds.
    loaded = loaded_config(path, config, label_key, regulators, orientation, overrides)
    name = re.sub(r"[^\w.-]+", "_", Path(config or path or "").stem).strip("_")
    from grn.cells.genes.lists import refuse_missing_lists

    refuse_missing_lists(loaded.data)

    import pandas as pd

    from grn.edges.signed_network import open_network
    from grn.features.activity.of_run import write_activity
    from grn.features.findings.drivers import ACTIVITY
    from grn.features.findings.summary import certain
    from grn.features.given_networks import known_regulons
    from grn.features.report.write import edges_of_types, read_table_of, write_run_report
    from grn.training.run import train

    if loaded.network.regulons is not None:
        # what is wrong with them is said before the training
        known_regulons(loaded.network.regulons)
    result = train(loaded, output, resume=resume, name=name, say=plain(to), terminal=to.is_terminal)
    if result:
        network = open_network(result.folder / "network.h5ad")
        history = pd.read_csv(result.folder / "metrics.csv")
        found = {
            "metrics": result.metrics,
            "confusion": result.confusion,
            "edges": result.edges,
            "network": network,
        }
        write_activity(result.folder, loaded, result.cells, result.edges, plain(to))
        report = write_run_report(result.folder, config=loaded, history=history, **found)
        of_types = certain(edges_of_types(result.folder / "edges_by_type.parquet"))
        print_result(result, network, of_types, read_table_of(result.folder, ACTIVITY), to)
        to.print(f"\nFigures and tables: {report}", markup=False)


def loaded_config(
    path: str | None,
    config: str | None = None,
    label_key: str | None = None,
    regulators: str | None = None,
    orientation: str | None = None,
    overrides: list[str] | None = None,
) -> Config:
    """Return the configuration of a run.

    path: cells, or a configuration.
    config: a configuration; None: the defaults.
    label_key, regulators, orientation: values of these fields, where they are given as options;
        regulators may be several names, with commas between them.
    overrides: texts of the form `section.field=value`.
    Raises ConfigError.
    """
    from grn.config.files import change_config, is_configuration, parse_override
    from grn.features.train import changed_fields
    from grn.runtime.errors import ConfigError

    both = is_configuration(path) and config is not None
    if both or (path is None and config is None):
        found = (
            f"There are two configurations, {path} and {config}" if both else "No cells are given"
        )
        raise ConfigError(f"{found}; give DATA, --config FILE, or --resume RUN to continue a run.")
    if is_configuration(path):
        config, path = path, None
    names = regulators is not None and re.search(r",|^\[.*\]$", regulators) is not None
    chosen = re.findall(r"[^\s,\[\]]+", regulators or "") if names else regulators
    keywords = {
        "path": path,
        "label_key": label_key,
        "regulators": chosen,
        "orientation": orientation,
    }
    return change_config(
        config or DEFAULTS, changed_fields(keywords, dict(map(parse_override, overrides or [])))
    )


def print_result(
    result: TrainResult,
    network: SignedNetwork,
    of_types: pd.DataFrame,
    activity: pd.DataFrame | None,
    to: Console,
) -> None:
    """Print the effects of interventions, the certain edges, the activity of regulators and the
    scores of the test cells.

    network: of all cells.
    of_types: certain edges of single cell types.
    activity: the table of activity.csv; None where there is none.
    """
    from grn.cli.console import print_table
    from grn.evidence.q_values import SIGNIFICANT
    from grn.features.findings.drivers import named
    from grn.features.findings.summary import (
        CLASS_COLUMNS,
        activity_texts,
        caused,
        certain,
        certain_sentence,
        class_rows,
        edge_texts,
        found_texts,
        score_rows,
    )

    tables: list[tuple[str, Sequence[str], Sequence[Sequence[object]]]] = []
    if len(effects := caused(result.edges)):
        tables.append(
            (
                f"Effects of interventions, {EDGES} of {len(effects)}",
                *edge_texts(effects.head(EDGES)),
            )
        )
    tables.append((certain_sentence(network.about), *found_texts(network.about)))
    for whose, edges in (
        ("over all cells", certain(result.edges)),
        ("by the cells of one type alone", of_types),
    ):
        if len(edges):
            title = f"Certain edges {whose}, {min(EDGES, len(edges))} of {len(edges)}"
            tables.append((title, *edge_texts(edges.head(EDGES))))
    if activity is not None:
        may = named(activity)
        active = may[may["q_value"] <= SIGNIFICANT].groupby("cell_type", sort=False).head(ACTIVE)
        tables.append(
            (
                f"Activity of regulators ({activity['regulons'].iloc[0]}), t-values",
                *activity_texts(active),
            )
        )
    tables += [
        ("Test cells", ["metric", "value"], score_rows(result.metrics)),
        ("F1 of the cell types", CLASS_COLUMNS, class_rows(result.per_class, network.levels)),
    ]
    for title, columns, rows in tables:
        if rows:
            to.print()
            print_table(title, columns, rows, to)
