"""How far a training is: a bar on a terminal, and lines elsewhere."""

from __future__ import annotations

import time
from typing import Any

import lightning as L

from grn.runtime.messages import PAUSE, Say
from grn.training.checkpoints import MONITOR


class ProgressLines(L.Callback):
    """A line for each validation and, between them, one every ten seconds: for log files and batch
    queues.

    every: seconds after which a line is due.
    """

    def __init__(self, say: Say, total_steps: int, every: float = PAUSE):
        self.say, self.total_steps, self.every = say, total_steps, every

    def on_train_start(self, trainer: L.Trainer, *_: Any) -> None:
        self.first = trainer.global_step
        self.started = self.latest = time.monotonic()

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        now, step = time.monotonic(), trainer.global_step
        if not trainer.is_global_zero or now - self.latest < self.every or step == self.first:
            return
        left = (now - self.started) / (step - self.first) * (self.total_steps - step)
        self.line(trainer, f"{now - self.started:.0f} s, about {left:.0f} s left")

    def on_validation_end(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        if trainer.sanity_checking or not trainer.is_global_zero:
            return
        loss = trainer.callback_metrics[MONITOR]
        self.line(trainer, f"validation loss {loss:.4f}  {time.monotonic() - self.started:.0f} s")

    def line(self, trainer: L.Trainer, what: str) -> None:
        self.latest = time.monotonic()
        self.say(f"step {trainer.global_step}/{self.total_steps}  {what}")


class ProgressBar(L.Callback):
    """A bar of the steps, with the latest validation loss and the time that is left."""

    def __init__(self, total_steps: int):
        from rich.progress import (
            BarColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        steps = TextColumn("step {task.completed:.0f}/{task.total:.0f}")
        times = TimeElapsedColumn(), TextColumn("and"), TimeRemainingColumn(), TextColumn("left")
        self.bar = Progress(
            steps, BarColumn(), TextColumn("{task.fields[loss]}"), *times, transient=True
        )
        self.steps = self.bar.add_task("training", total=total_steps, loss="")

    def on_train_start(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.is_global_zero:
            self.bar.reset(self.steps, completed=trainer.global_step)
            self.bar.start()

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        self.bar.update(self.steps, completed=trainer.global_step)

    def on_validation_end(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        if not trainer.sanity_checking:
            self.bar.update(
                self.steps, loss=f"validation loss {trainer.callback_metrics[MONITOR]:.4f}"
            )

    def on_train_end(self, *_: Any) -> None:
        self.bar.stop()

    def on_exception(self, *_: Any) -> None:
        self.bar.stop()
