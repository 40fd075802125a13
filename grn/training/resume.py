"""Resuming a run that was interrupted: what it has saved, and whether it is still the same run.

A checkpoint holds all that training has changed. The rest (cells, split, hidden genes, dropout's
draws, penalties) follows from the configuration, the seed and the cells, which every checkpoint
records as its Origin. On the same CPU, a resumed run ends as it would have without the
interruption, to the last bit. With another number of processes, each step has the same cells; lost
counts, the genes it predicts and what the basal gene does not see are drawn anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grn
from grn.cells.cells import Cells
from grn.config.files import change_config
from grn.config.schema import WHERE, Config
from grn.runtime.errors import ConfigError, DataError, RunFolderError
from grn.runtime.run_folder import CHECKPOINTS, COMPLETE, CONFIG, refuse_lost
from grn.training.checkpoints import INSTEAD, load_checkpoint
from grn.training.machine import processes
from grn.training.metrics import METRICS, Rows, rows_before

# Fields that may change: where the run is computed, and what the digest of the cells checks anyway.
CELLS = ("path", "genes", "regulators")
MAY_CHANGE = {*(f"trainer.{name}" for name in WHERE), *(f"data.{name}" for name in CELLS)}


@dataclass(frozen=True)
class Start:
    """The point where training begins: step 0, or the last checkpoint of an interrupted run.

    step, origin: of the checkpoint.
    rows: of metrics.csv before that step; later ones are written again.
    """

    folder: Path
    checkpoint: Path | None = None
    step: int = 0
    origin: dict[str, Any] | None = None
    rows: Rows = field(default_factory=list)

    def refuse_another_configuration(self, config: Config) -> None:
        """Raise ConfigError where the run was started with another configuration."""
        if self.origin is None:
            return
        ours, theirs = fields(config), self.origin["fields"]
        for name in sorted((ours.keys() | theirs.keys()) - MAY_CHANGE):
            if ours.get(name) != theirs.get(name):
                raise ConfigError(
                    f"{name} is {ours.get(name)}, but the run in {self.folder} was started with "
                    f"{theirs.get(name)}",
                    field=name,
                    advice=f"restore that value ({self.folder / CONFIG}), or train again",
                )

    def with_its_steps(self, config: Config) -> Config:
        """Return the configuration with the cells per process that make a step of the interrupted
        run.

        Raises ConfigError.
        """
        cells, count = (self.origin or {}).get("cells_of_step"), processes(config.trainer)
        if cells is None:  # nothing was trained, or by a version that did not record it
            return config
        if cells % count:
            raise ConfigError(
                f"A step of the run in {self.folder} has {cells} cells, which {count} processes "
                "cannot share evenly",
                field="trainer.devices",
                advice=f"set {{field}} x trainer.num_nodes to a divisor of {cells}",
            )
        return change_config(config, {"trainer.batch_size": cells // count})

    def refuse_other_cells(self, origin: Origin) -> None:
        """Raise DataError where the run was started with other cells than those of `origin`."""
        if self.origin is not None and origin.cells != self.origin["cells"]:
            raise DataError(
                f"The cells, genes or regulators of {origin.config.data.path} are not those that "
                f"the run in {self.folder} was started with",
                advice="restore them, or train again",
            )


class Origin:
    """The configuration and the cells that a run is started with."""

    def __init__(self, config: Config, cells: Cells):
        self.config, self.cells = config, cells.digest

    def record(self, cells_of_step: int) -> dict[str, Any]:
        """Return it as every checkpoint has it. cells_of_step: of all processes."""
        return {
            "version": grn.__version__,
            "fields": fields(self.config),
            "cells": self.cells,
            "cells_of_step": cells_of_step,
        }


def find_start(folder: Path) -> Start:
    """Return where the run in `folder` resumes.

    Raises RunFolderError where that is complete or damaged.
    """
    refuse_lost(folder)
    if (folder / COMPLETE).exists():
        raise RunFolderError(f"The run in {folder} is complete; there is nothing to resume.")
    last, best = (folder / CHECKPOINTS / f"{name}.ckpt" for name in ("last", "best"))
    if not last.exists():
        return Start(folder)
    step, best_step, origin = read_checkpoint(last)
    if best_step:
        read_checkpoint(best)
    return Start(folder, last, step, origin, rows_before(step, folder / METRICS))


def read_checkpoint(path: Path) -> tuple[int, int, dict[str, Any]]:
    """Its step, the step of the best one so far, and its origin. RunFolderError: damaged, or of
    another version.
    """
    saved = load_checkpoint(path)
    origin = saved.get("origin", {"version": "another program"})
    if origin["version"] != grn.__version__:
        raise RunFolderError(
            f"{path} was written by {origin['version']}, not {grn.__version__}", advice=INSTEAD
        )
    return saved["global_step"], saved["callbacks"]["Checkpoints"]["best_step"], origin


def fields(config: Config) -> dict[str, Any]:
    """Every field by its dotted name, with its plain value."""

    def walk(values: dict[str, Any], above: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in values.items():
            found |= (
                walk(value, f"{above}{name}.")
                if isinstance(value, dict)
                else {f"{above}{name}": value}
            )
        return found

    return walk(config.model_dump(mode="json"), "")
