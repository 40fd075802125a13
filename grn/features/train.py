"""Training from Python: cells in memory, a path or a configuration in, a Run out."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from grn.features.arguments.checked import Positive, Seed, checked
from grn.features.arguments.given_cells import checked_anndata, is_anndata
from grn.features.run import Run, write_report_of
from grn.runtime.errors import ConfigError, Interrupted
from grn.runtime.messages import Say, show, silent

if TYPE_CHECKING:
    from anndata import AnnData

    from grn.config.schema import Config

SECTIONS = {
    "max_steps": "trainer",
    "seed": "trainer",
    "regulons": "network",
}  # of keywords; the others are of `data`


@checked({"data.path": "data", "data.label_key": "label"})
def train(
    data: AnnData | Config | str | os.PathLike[str],
    *,
    config: Config | str | os.PathLike[str] | None = None,
    output: str | os.PathLike[str] | None = None,
    label: str | None = None,
    group_key: str | None = None,
    state_key: str | None = None,
    regulators: Sequence[str] | str | os.PathLike[str] | None = None,
    genes: Positive | str | os.PathLike[str] | None = None,
    orientation: Literal["cells_by_genes", "genes_by_cells"] | None = None,
    values: Literal["counts", "expression"] | None = None,
    counts: str | None = None,
    regulons: str | os.PathLike[str] | None = None,
    max_steps: Positive | None = None,
    seed: Seed | None = None,
    set: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> Run:
    """Train a model on cells, score it on cells that it has not seen, and read its signed network.

    A keyword that is None leaves its field as `config` or the defaults have it. Every other field
    is changed with `set`, as on the command line with `--set`; configs/own_data.yaml explains them
    all.

    Args:
        data: cells: an AnnData, cells x genes, which is not changed, or what `data.path` may name
            (.h5ad, .zarr, 10x, .csv, .tsv, `simulated:`, `scanpy:pbmc68k_reduced`). Or a
            configuration: its name, its path or a Config.
        config: the configuration to start from where `data` are cells; None: the defaults.
        output: the run folder to make; None: a temporary one, which goes with the Run unless
            `Run.save` keeps it.
        label: column of obs with the cell types.
        group_key: column of obs (donor, batch) whose cells stay together in the split.
        state_key: column of obs along which regulation may change: numbers, or conditions (treated,
            control).
        regulators: names of the genes that may regulate, a file with one a line, or `all`.
        genes: how many of the most variable genes are used, a file with one a line, or `all`.
        orientation: what the rows and columns of a text file are.
        values: `counts`: UMI counts; `expression`: continuous or log values, taken as they are.
        counts: where the counts are: `X`, `raw`, `layer:NAME`, or `recover`, from log1p values.
        regulons: known ones, whose activity the report shows: `collectri` or `dorothea`, or a table
            of edges.
        max_steps: optimiser steps.
        seed: of split, initialisation, order and masks. Global random states stay as they are.
        set: any other fields by dotted name, `{"network.top_k": 10}`.
        quiet: print nothing; otherwise one line per validation.

    Returns:
        The run, with its model, its scores and its network.

    Raises:
        ConfigError: an unknown field or a value that it cannot have.
        DataError: cells, labels or genes that cannot be used: negative counts, log values given as
            counts, ...
        RunFolderError: `output` exists already or cannot be written.
        TrainingDiverged: the loss is no longer finite.
        KeyboardInterrupt: after Ctrl-C. The folder `output` stays, and `grn train --resume`
            continues the run.

    Source: arXiv 2505.09326.

    Examples:
        >>> import anndata, numpy, grn
        >>> counts = numpy.random.default_rng(0).poisson(2.0, (100, 20)).astype("float32")
        >>> adata = anndata.AnnData(counts)
        >>> run = grn.train(adata, max_steps=20, set={"model.members": 2}, quiet=True)
        >>> run.edges[["source", "target", "weight"]].shape
        (380, 3)
    """
    keywords: dict[str, Any] = {"label_key": label, "group_key": group_key, "state_key": state_key}
    keywords |= {
        "regulators": regulators,
        "genes": genes,
        "orientation": orientation,
        "values": values,
    }
    keywords |= {"counts": counts, "regulons": regulons, "max_steps": max_steps, "seed": seed}
    changes = changed_fields(keywords, set)
    from grn.cells.genes.lists import refuse_missing_lists

    with interrupted_as_python_is():
        settings, adata, name = run_settings(data, config, changes)
        refuse_missing_lists(settings.data)
        if output is not None:
            run = Run(_train(settings, Path(output), adata, silent if quiet else _print_but(None)))
            write_report_of(run)
            return run
        home = Path(tempfile.mkdtemp(prefix="grn-"))
        try:
            return Run(
                _train(settings, home / name, adata, silent if quiet else _print_but(home)),
                temporary=True,
            )
        except BaseException:
            shutil.rmtree(home, ignore_errors=True)
            raise


@contextmanager
def interrupted_as_python_is() -> Iterator[None]:
    """A signal that ended training, which has saved, now does what it does elsewhere in Python."""
    try:
        yield
    except Interrupted as stopped:
        if stopped.signum == signal.SIGINT:
            raise KeyboardInterrupt from None
        signal.raise_signal(stopped.signum)
        raise


def changed_fields(keywords: Mapping[str, Any], others: Mapping[str, Any] | None) -> dict[str, Any]:
    """The fields that a call changes: keywords by name, None for those that are not given, and
    `set`.
    """
    given = {name: _plain(value) for name, value in keywords.items() if value is not None}
    changes = {f"{SECTIONS.get(name, 'data')}.{name}": value for name, value in given.items()}
    for field, value in (others or {}).items():
        if field in changes:
            raise ConfigError(
                "{field} is set a second time by set; give one of the two.", field=field
            )
        changes[field] = _plain(value)
    return changes


def run_settings(
    data: AnnData | Config | str | os.PathLike[str],
    config: Config | str | os.PathLike[str] | None,
    changes: dict[str, Any],
) -> tuple[Config, AnnData | None, str]:
    """The configuration of the run, its cells where they are in memory, and a name for it."""
    from grn.cells.readers.registry import MEMORY
    from grn.config.files import change_config, is_configuration
    from grn.config.schema import Config

    if is_anndata(data):
        # What describes a file is not for cells in memory, whatever the configuration says of its
        # own.
        changes = {"data.orientation": None} | changes | {"data.path": MEMORY}
        return change_config(config, changes), checked_anndata(data), "run"
    if isinstance(data, Config) or is_configuration(data):
        if config is not None:
            raise ConfigError(
                "The first argument is a configuration already; leave config= out, or give cells "
                "first."
            )
        return (
            change_config(data, changes),
            None,
            "run" if isinstance(data, Config) else Path(data).stem,
        )
    path = os.fspath(data)
    return (
        change_config(config, changes | {"data.path": path}),
        None,
        re.sub(r"[^\w.-]+", "_", Path(path).stem),
    )


def _train(settings: Config, folder: Path, adata: AnnData | None, say: Say) -> Path:
    """Train and return the run's folder, in which only the report is missing."""
    from grn.features.activity.of_run import write_activity
    from grn.features.given_networks import known_regulons
    from grn.training.machine import processes
    from grn.training.run import train as train_run

    if processes(settings.trainer) > 1:
        raise ConfigError(
            "grn.train trains in one process; set trainer.devices to 1, or use the command line."
        )
    if settings.network.regulons is not None:
        # what is wrong with them is said before the training
        known_regulons(settings.network.regulons)
    with random_states_kept():
        result = train_run(settings, folder, adata=adata, say=say)
    assert result is not None, "there is one process"
    write_activity(folder, settings, result.cells, result.edges, say)
    return folder


def _print_but(temporary: Path | None) -> Say:
    """Print lines, except those that name a temporary folder: nothing in it can be used later."""
    return lambda line: None if temporary and str(temporary) in line else show(line)


@contextmanager
def random_states_kept() -> Iterator[None]:
    """The global random states are afterwards what they were before; training seeds them."""
    import numpy as np
    import torch

    names = ("PL_GLOBAL_SEED", "PL_SEED_WORKERS")  # Lightning's
    environment = {name: os.environ.get(name) for name in names}
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        for name, value in environment.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _plain(value: Any) -> Any:
    """As YAML could hold it:
    texts, numbers, lists and mappings, whatever library they come from.
    """
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if hasattr(value, "tolist"):  # NumPy's and pandas' arrays and numbers
        return value.tolist()
    if isinstance(value, (set, frozenset)):
        return sorted(map(_plain, value))
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value
