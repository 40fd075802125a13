"""Checkpoints: written beside their final name, and checked whenever they are read.

A checkpoint is a zip file with a checksum of each of its parts. torch does not check them.
"""

from __future__ import annotations

import math
import os
import shutil
import zipfile
from pathlib import Path
from typing import IO, Any, cast

import lightning as L
import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from grn.runtime.atomic import replacing_file
from grn.runtime.errors import RunFolderError, TrainingDiverged, one_line
from grn.runtime.h5ad import RememberingFile

MONITOR = "validation/loss"
INSTEAD = (
    "restore it, copy the other checkpoint over it, or move the folder away to start again at "
    "step 0"
)


class StreamedCheckpoints(TorchCheckpointIO):
    """Writes a checkpoint straight into its file. Lightning's own way has all its bytes in memory
    first.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        # torch's own error does not say what the system did
        with RememberingFile(Path(path)) as file:
            torch.save(checkpoint, cast(IO[bytes], file))
            file.raise_problem()


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Return the content of an undamaged checkpoint, on the CPU. Raises RunFolderError."""
    problem = "a checksum is wrong"
    try:
        with zipfile.ZipFile(path) as parts:
            if parts.testzip() is None:
                # Mapped: what nobody uses of it is never in memory.
                return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as damage:  # zipfile and torch have no single error for damaged files
        problem = one_line(damage)
    raise RunFolderError(f"{path} is missing or damaged ({problem})", advice=INSTEAD)


def save_checkpoint(trainer: L.Trainer, path: Path) -> None:
    """Write a checkpoint beside `path` and move it to `path` when it is whole. Raises
    RunFolderError.
    """
    if not trainer.is_global_zero:
        # takes part in the collectives; only the first process writes
        trainer.save_checkpoint(path)
        return
    with replacing_file(path) as beside:
        trainer.save_checkpoint(beside)
        if not zipfile.is_zipfile(beside):  # Lightning may write nothing and say nothing
            raise RunFolderError(
                f"{path} could not be written", advice="look for what removes files there"
            )


def link_or_copy(path: Path, other: Path) -> None:
    """Make `other` a second name of the file, or a copy where the disk has no second names."""
    other.unlink()
    try:
        os.link(path, other)
    except OSError:
        shutil.copyfile(path, other)


class Checkpoints(L.Callback):
    """Keeps last.ckpt and best.ckpt (lowest validation loss), and stops training when that loss no
    longer improves.

    origin: what the run was started with (see Origin), which each of them records.
    """

    def __init__(self, folder: Path, patience: int, origin: dict[str, Any]):
        self.folder, self.patience, self.origin = folder, patience, origin
        self.best, self.best_step, self.waited = float("inf"), 0, 0
        self.reason = "the last step was reached"

    def on_validation_end(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        if trainer.sanity_checking:
            return
        value = float(trainer.callback_metrics[MONITOR])
        # checked before anything is saved, so that the last checkpoint stays good
        if not math.isfinite(value):
            raise TrainingDiverged(
                f"The validation loss is not finite at step {trainer.global_step}; checkpoints of "
                "earlier steps are kept",
                field="trainer.learning_rate",
                advice="lower {field}, or look for cells with extreme values",
            )
        improved = value < self.best
        if improved:
            self.best, self.best_step, self.waited = value, trainer.global_step, 0
        else:
            self.waited += 1
        # last.ckpt comes last: a run that is interrupted between the two resumes before this
        # validation.
        last, best = self.folder / "last.ckpt", self.folder / "best.ckpt"
        save_checkpoint(trainer, best if improved else last)
        if improved and trainer.is_global_zero:
            with replacing_file(last) as beside:
                link_or_copy(best, beside)
        self.stop_if_patience_is_over(trainer)

    def on_train_start(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        self.stop_if_patience_is_over(trainer)  # a resumed run may have ended its training already

    def stop_if_patience_is_over(self, trainer: L.Trainer) -> None:
        if self.waited >= self.patience:
            trainer.should_stop = True
            self.reason = (
                f"the validation loss has not improved on {self.best:.4f} (step {self.best_step}) "
                f"in {self.patience} validations"
            )

    def on_save_checkpoint(
        self, trainer: L.Trainer, task: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        checkpoint["origin"] = self.origin

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "best_step": self.best_step, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.best_step, self.waited = state["best"], state["best_step"], state["waited"]
