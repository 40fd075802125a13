"""What a run will take in time and memory, from a rehearsal with few steps of training."""

from __future__ import annotations

import multiprocessing
import resource
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import lightning as L
import torch

from grn.config.files import change_config
from grn.config.schema import Config
from grn.errors import UserError
from grn.messages import Say, silent
from grn.training.machine import processes
from grn.training.run import train

BLOCKS = 4  # validations that are rehearsed; the first block of steps is slower, and the others are the measure


@dataclass(frozen=True)
class Estimate:
    """What a run takes at most: training may end before its last step (trainer.patience).

    before, training, after: seconds until training begins, of all its steps, and after them.   per_step: seconds,
    validations included.   memory, gpu_memory: the most bytes that the process held.   rehearsed: seconds.
    """

    before: float
    training: float
    after: float
    steps: int
    per_step: float
    memory: int
    gpu_memory: int | None
    rehearsed: float

    @property
    def seconds(self) -> float:
        return self.before + self.training + self.after


class Clock(L.Callback):
    """When training began and ended, and the steps and times of its validations, in seconds since 1970."""

    def __init__(self) -> None:
        self.begun = self.ended = 0.0
        self.per_epoch = 1
        self.validations: list[tuple[int, float]] = []

    def on_train_start(self, trainer, task) -> None:
        self.begun = time.time()
        self.per_epoch = trainer.datamodule.steps_per_epoch(processes(task.settings))

    def on_validation_end(self, trainer, task) -> None:
        self.validations.append((trainer.global_step, time.time()))

    def on_train_end(self, trainer, task) -> None:
        self.ended = time.time()


def rehearse(config: Config, say: Say) -> Estimate:
    """Rehearses the run of a configuration, in a process of its own. Raises the run's own UserError where it fails."""
    short = min(config.trainer.max_steps, BLOCKS * config.trainer.validate_every)
    say(f"Rehearsing the run with at most {short} steps of training ...")
    context = multiprocessing.get_context("spawn")
    answers, answer = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as home:
        arguments = config, short, Path(home) / "run", time.time(), answer
        process = context.Process(target=_rehearsed, args=arguments)
        process.start()
        answer.close()
        try:
            found = answers.recv()
        except EOFError:
            process.join()
            found = UserError(f"The rehearsal ended with exit code {process.exitcode}.")
        finally:
            process.terminate()
            process.join()
    if isinstance(found, Exception):
        raise found
    return found


def _rehearsed(config: Config, short: int, folder: Path, started: float, answer: Connection) -> None:
    """Sends the estimate, or the exception with which the run ended."""
    try:
        clock = Clock()
        train(change_config(config, {"trainer.max_steps": short}), folder, say=silent, watch=[clock])
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        gpu_memory = torch.cuda.max_memory_reserved() if torch.cuda.is_available() else None
        answer.send(estimate(clock, config, started, time.time(), memory, gpu_memory))
    except Exception as error:
        answer.send(error)


def estimate(
    clock: Clock, config: Config, started: float, over: float, memory: int, gpu_memory: int | None
) -> Estimate:
    """From a rehearsal between `started` and `over`."""
    most = config.trainer.max_steps
    steps = min(most, (config.trainer.max_epochs or most) * clock.per_epoch)
    (first, first_at), (last, last_at) = clock.validations[0], clock.validations[-1]
    per_step = (last_at - first_at) / (last - first) if last > first else (first_at - clock.begun) / first
    training = clock.ended - clock.begun + max(0, steps - last) * per_step
    before, after = clock.begun - started, over - clock.ended
    return Estimate(before, training, after, steps, per_step, memory, gpu_memory, over - started)
