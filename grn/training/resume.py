"""Going on with a run that was cut off: what is left of it, and whether it is still the same run.

A checkpoint holds all that training has changed. The rest (cells, split, masks, dropout's draws, the regulation layer)
follows from the configuration, the seed and the cells, which therefore have to be those of the first start: every
checkpoint carries its Origin. On the same machine the run then ends as it would have without the break.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pandas as pd
import torch
from lightning.pytorch.loggers import CSVLogger

from grn.config import Config
from grn.data.cells import Cells
from grn.data.split import Split
from grn.errors import ConfigError, DataError, RunFolderError
from grn.files import replacing_file
from grn.training.folder import config_of
from grn.training.machine import processes

METRICS = "metrics.csv"
COMPLETE = "report.html"  # what a run writes last
# Where a run takes place, and how it is watched; everything else makes it another run.
PLACES = ("accelerator", "devices", "num_nodes", "strategy", "workers", "compile", "tensorboard")
MAY_CHANGE = {"data.path", "data.backed", *(f"trainer.{name}" for name in PLACES)}


@dataclass(frozen=True)
class Start:
    """Where a run goes on: its last checkpoint with that one's step and origin (none: at step 0), and its metrics.

    metrics: the rows of metrics.csv up to that step; later ones come again.
    """

    folder: Path
    checkpoint: Path | None
    step: int
    origin: dict[str, Any] | None
    metrics: pd.DataFrame | None

    def refuse_another_configuration(self, config: Config) -> None:
        """Raises ConfigError where the run was started with another one, or by another number of processes."""
        if self.origin is None:
            return
        ours, theirs = fields(config), self.origin["fields"]
        for name in sorted((ours.keys() | theirs.keys()) - MAY_CHANGE):
            if ours.get(name) != theirs.get(name):
                raise ConfigError(
                    f"{self.folder / 'config.yaml'} has {name}: {ours.get(name)}, and the run was started with "
                    f"{theirs.get(name)}; put that back, or train anew."
                )
        if processes(config.trainer) != self.origin["processes"]:
            raise ConfigError(
                f"The run in {self.folder} was started with {self.origin['processes']} processes, which share each "
                f"batch, and these are {processes(config.trainer)}; start as many, or train anew."
            )

    def refuse_other_cells(self, origin: Origin) -> None:
        """Raises DataError where the run was started with other cells than those of `origin`."""
        if self.origin is not None and origin.cells != self.origin["cells"]:
            raise DataError(
                f"The cells of {origin.config.data.path} are not those that the run in {self.folder} was started with; "
                "restore them, or train anew."
            )


class Origin(L.Callback):
    """What a run was started with, in all of its checkpoints: its configuration, a digest of its cells, processes."""

    def __init__(self, config: Config, cells: Cells, split: Split):
        self.config, self.cells = config, digest(cells, split)

    def state_dict(self) -> dict[str, Any]:
        return {"fields": fields(self.config), "cells": self.cells, "processes": processes(self.config.trainer)}


def find_start(folder: Path) -> Start:
    """Where the run in `folder` goes on. Raises RunFolderError where there is none, it is complete or damaged."""
    config_of(folder)
    if (folder / COMPLETE).exists():
        raise RunFolderError(f"The run in {folder} is complete; there is nothing to go on with.")
    checkpoint = folder / "checkpoints" / "last.ckpt"
    if not checkpoint.is_file():
        return Start(folder, None, 0, None, None)
    try:
        saved = torch.load(checkpoint, map_location="cpu", weights_only=True)
        step, origin = saved["global_step"], saved["callbacks"]["Origin"]
    except Exception as error:  # torch has no one error for damaged files
        raise RunFolderError(
            f"{checkpoint} is damaged, or of an older version of grn; remove it to begin at step 0 again."
        ) from error
    return Start(folder, checkpoint, step, origin, metrics_before(step, folder / METRICS))


def metrics_before(step: int, path: Path) -> pd.DataFrame | None:
    """The rows of a metrics.csv of the first so many steps, as they were written; None where there is no such file."""
    if not path.is_file():
        return None
    try:
        rows = pd.read_csv(path, dtype=str)
        rows = rows[rows["step"].astype(int) < step]
    except (ValueError, KeyError) as error:
        raise RunFolderError(f"{path} is damaged; move it away to go on without the curves until here.") from error
    return rows[rows.filter(regex="^test/").isna().all(axis=1)]


def metrics_logger(folder: Path, start: Start | None) -> CSVLogger:
    """Writes metrics.csv; of a run that goes on, behind the rows that stay."""
    logger = CSVLogger(folder, name="", version="", flush_logs_every_n_steps=1)  # rows are few: one a validation
    if start is not None and start.metrics is not None:
        with replacing_file(folder / METRICS) as beside:
            start.metrics.to_csv(beside, index=False)
            logger.experiment.metrics_keys = list(start.metrics.columns)  # making the writer removed the old file
    return logger


def fields(config: Config) -> dict[str, Any]:
    """Every field by its dotted name, as plain values."""

    def walk(values: dict[str, Any], above: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in values.items():
            found |= walk(value, f"{above}{name}.") if isinstance(value, dict) else {f"{above}{name}": value}
        return found

    return walk(config.model_dump(mode="json"), "")


def digest(cells: Cells, split: Split) -> str:
    """Of all that training reads from the cells."""
    found = hashlib.blake2b(digest_size=16)
    matrix = cells.multiplicity
    arrays = [matrix.indptr, matrix.indices, matrix.data, cells.labels, cells.property, cells.basal, cells.weight]
    arrays += [split.train, split.validation, split.test]
    arrays += [array for array in (cells.regulators, cells.groups) if array is not None]
    for array in arrays:
        found.update(np.ascontiguousarray(array).data)
    found.update("\n".join([*cells.vocabulary, *cells.classes]).encode())
    return found.hexdigest()
