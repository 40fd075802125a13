"""The callbacks of a run: checkpoints and early stopping, signals, progress lines."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import lightning as L
from lightning.pytorch.utilities.exceptions import SIGTERMException

from grn.errors import Interrupted, RunFolderError, TrainingDiverged
from grn.io.atomic import replacing_file
from grn.messages import Say
from grn.training.loop.checkpoint_file import DamagedCheckpoint, load_checkpoint, seal

MONITOR = "validation/loss"


def save_checkpoint(trainer: L.Trainer, path: Path) -> None:
    """Writes a checkpoint beside `path`, reads it back and moves it to `path`, where it is complete at every moment.

    Raises RunFolderError where it cannot be written.
    """
    if not trainer.is_global_zero:
        trainer.save_checkpoint(path)  # takes part in the collectives; only the first process writes
        return
    try:
        with replacing_file(path) as beside:
            trainer.save_checkpoint(beside)
            seal(beside)
            saved = load_checkpoint(beside)
            if saved["global_step"] != trainer.global_step:
                raise RunFolderError(f"The checkpoint {path} does not read back as it was written; check the disk.")
    # torch has no single error for damaged files
    except (OSError, RuntimeError, EOFError, UnpicklingError, DamagedCheckpoint) as error:
        reason = getattr(error, "strerror", None) or "it reads back damaged"
        raise RunFolderError(
            f"The checkpoint {path} cannot be written ({reason}); free some space, or choose another output folder."
        ) from error


class Checkpoints(L.Callback):
    """Keeps last.ckpt and best.ckpt (lowest validation loss), and stops training when that loss no longer improves."""

    def __init__(self, folder: Path, patience: int):
        self.folder, self.patience = folder, patience
        self.best, self.best_step, self.waited = float("inf"), 0, 0
        self.reason = "the last step was reached"

    def on_validation_end(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        if trainer.sanity_checking:
            return
        value = float(trainer.callback_metrics[MONITOR])
        if not math.isfinite(value):  # checked before anything is saved, so that the last checkpoint stays good
            raise TrainingDiverged(
                f"The validation loss is not finite at step {trainer.global_step}; checkpoints of earlier "
                "steps are kept. Lower trainer.learning_rate, or look for cells with extreme values."
            )
        improved = value < self.best
        if improved:
            self.best, self.best_step, self.waited = value, trainer.global_step, 0
        else:
            self.waited += 1
        # last.ckpt is saved last: a run that is interrupted between the two resumes before this validation.
        for name in ["best", "last"] if improved else ["last"]:
            save_checkpoint(trainer, self.folder / f"{name}.ckpt")
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

    def state_dict(self) -> dict:
        return {"best": self.best, "best_step": self.best_step, "waited": self.waited}

    def load_state_dict(self, state: dict) -> None:
        self.best, self.best_step, self.waited = state["best"], state["best_step"], state["waited"]


class Signals(L.Callback):
    """Ctrl-C, SIGTERM and SIGUSR1 save and end the run after the current step or validation.

    A second Ctrl-C ends it at once.
    """

    WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)

    def __init__(self, folder: Path):
        self.folder = folder
        self.received: int | None = None
        self.process = 0
        self.previous: dict[int, Any] = {}

    def on_fit_start(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python refuses to set handlers
            self.previous = {number: signal.getsignal(number) for number in self.WATCHED}

    def on_train_start(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        # Not in on_fit_start, after which Lightning sets its own handler of SIGTERM: that one leaves a validation by a
        # SystemExit without an exit code.
        self.process = os.getpid()
        for number in self.previous:
            signal.signal(number, self.receive)

    def receive(self, number: int, frame) -> None:
        if os.getpid() != self.process:
            return  # this is a worker that prepares batches; it ends with its main process
        if number == signal.SIGINT and self.received is not None:
            # Not KeyboardInterrupt, which Lightning turns into an exit with code 1.
            raise Interrupted(number, f"at once; the checkpoints so far are in {self.folder}")
        self.received = number

    def on_train_batch_end(self, trainer: L.Trainer, task: L.LightningModule, outputs, batch, index) -> None:
        # A validation that is due comes first: a run that resumes from here would skip it.
        if not validation_is_due(trainer) and self.asked_to_stop(trainer):
            save_checkpoint(trainer, self.folder / "last.ckpt")
            raise self.interrupted(trainer)

    def on_validation_end(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        if self.asked_to_stop(trainer):  # Checkpoints has saved this step
            raise self.interrupted(trainer)

    def on_train_end(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        if self.asked_to_stop(trainer):
            # The model already holds the average of its weights, so that no checkpoint can be saved here.
            raise Interrupted(
                self.received or signal.SIGTERM, f"after the last step; the checkpoints are in {self.folder}"
            )

    def asked_to_stop(self, trainer: L.Trainer) -> bool:
        """Whether any process received a signal; a collective, which every process has to call at the same time."""
        stop = self.received is not None
        return trainer.strategy.reduce_boolean_decision(stop, all=False) if trainer.world_size > 1 else stop

    def interrupted(self, trainer: L.Trainer) -> Interrupted:
        return Interrupted(self.received or signal.SIGTERM, f"saved step {trainer.global_step} in {self.folder}")

    def on_exception(self, trainer: L.Trainer, task: L.LightningModule, exception: BaseException) -> None:
        self.restore()

    def teardown(self, trainer: L.Trainer, task: L.LightningModule, stage: str) -> None:
        self.restore()

    def restore(self) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)
        self.previous = {}


@contextmanager
def exits_are_interruptions() -> Iterator[None]:
    """Raises Interrupted where Lightning answers a signal with SystemExit, as it does before Signals handles them."""
    ctrl_c = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit as left:
        if isinstance(left, SIGTERMException):
            number = signal.SIGTERM
        elif isinstance(left.__context__, KeyboardInterrupt):
            number = signal.SIGINT
            signal.signal(number, ctrl_c)  # Lightning leaves Ctrl-C ignored
        else:
            raise
        raise Interrupted(number, "as training began; nothing was saved") from None


def validation_is_due(trainer: L.Trainer) -> bool:
    """Whether a validation follows the current step."""
    every = trainer.val_check_batch
    return every is not None and trainer.global_step > 0 and trainer.global_step % every == 0


class ProgressLines(L.Callback):
    """One plain line for each validation, for log files and batch queues."""

    def __init__(self, say: Say, total_steps: int):
        self.say, self.total_steps, self.started = say, total_steps, time.monotonic()

    def on_validation_end(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        if trainer.sanity_checking or not trainer.is_global_zero:
            return
        metrics = trainer.callback_metrics
        parts = [f"step {trainer.global_step}/{self.total_steps}", f"validation loss {metrics[MONITOR]:.4f}"]
        shown = {name: metrics.get(f"validation/{name}") for name in ("accuracy", "r2")}
        parts += [f"{name} {value:.3f}" for name, value in shown.items() if value is not None]
        self.say("  ".join([*parts, f"{time.monotonic() - self.started:.0f} s"]))


def process_rank() -> int:
    """The rank of this process, before Lightning has started; the process of rank 0 writes all files.

    Raises ConfigError where the variable that says it holds no number.
    """
    name = next((name for name in ("RANK", "SLURM_PROCID", "LOCAL_RANK") if os.environ.get(name)), None)
    return 0 if name is None else int(os.environ[name])
