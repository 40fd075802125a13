"""Signals during training, and which process writes its files."""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities.exceptions import SIGTERMException

from grn.bags import Batch
from grn.runtime.errors import Interrupted
from grn.training.checkpoints import save_checkpoint
from grn.training.together import leave


class Signals(L.Callback):
    """Ctrl-C, SIGTERM, SIGUSR1 and SIGHUP save and end the run after the current step or
    validation; where several processes train, after the next step.

    A second Ctrl-C ends it at once. Under `nohup`, SIGHUP stays ignored.
    """

    WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)

    def __init__(self, folder: Path):
        self.folder = folder
        self.received: int | None = None
        self.process, self.group = 0, None
        self.asked: tuple[torch.distributed.Work, torch.Tensor] | None = None
        self.previous: dict[int, Any] = {}

    def on_fit_start(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        # elsewhere Python refuses to set handlers
        if threading.current_thread() is threading.main_thread():
            self.previous = {number: signal.getsignal(number) for number in self.WATCHED}
            if self.previous[signal.SIGHUP] == signal.SIG_IGN:
                del self.previous[signal.SIGHUP]

    def on_train_start(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        # Not in on_fit_start, after which Lightning sets its own handler of SIGTERM: that one
        # leaves a validation by a SystemExit without an exit code.
        self.process = os.getpid()
        for number in self.previous:
            signal.signal(number, self.receive)
        if trainer.received_sigterm:  # between the two
            self.received = signal.SIGTERM
        if trainer.world_size > 1:
            # On the hosts: no GPU has to finish a step before the question is asked.
            self.group = torch.distributed.new_group(backend="gloo")
            atexit.register(leave)
            # Lightning asks through the GPUs before every step, and has no public way to turn that
            # off. With such questions, two GPUs trained on 1.5 times the cells of one.
            trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]

    def receive(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self.process:
            return  # this is a worker that prepares batches; it ends with its main process
        if number == signal.SIGINT and self.received is not None:
            # Not KeyboardInterrupt, which Lightning turns into an exit with code 1.
            raise Interrupted(number, f"at once; the checkpoints so far are in {self.folder}")
        self.received = number

    def on_train_batch_end(
        self, trainer: L.Trainer, task: L.LightningModule, outputs: Any, batch: Batch, index: int
    ) -> None:
        # A validation that is due comes first: a run that resumes from here would skip it.
        every = trainer.val_check_batch
        if every is None or trainer.global_step == 0 or trainer.global_step % every:
            self.stop_if_asked(trainer, save=True, at_once=trainer.global_step == trainer.max_steps)

    def on_validation_end(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        self.stop_if_asked(trainer)  # Checkpoints has saved this step

    def on_train_end(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        # The model already holds the average of its weights, so that no checkpoint can be saved
        # here.
        self.stop_if_asked(trainer, f"after the last step; the checkpoints are in {self.folder}")

    def stop_if_asked(
        self,
        trainer: L.Trainer,
        how: str | None = None,
        *,
        save: bool = False,
        at_once: bool = True,
    ) -> None:
        """Raise Interrupted where any process received a signal; a collective that every process
        has to call.

        at_once: processes wait until all have said whether they received one; else they stop by
            what they said a step ago, for which none waits.
        """
        stop = self.received is not None
        if self.group is not None:
            own = torch.tensor(stop)
            said = torch.distributed.all_reduce(
                own, torch.distributed.ReduceOp.MAX, self.group, async_op=True
            )
            before, self.asked = self.asked, (said, own)
            stop = answer(self.asked if at_once else before)
        if stop:
            if save:
                save_checkpoint(trainer, self.folder / "last.ckpt")
            how = how or f"saved step {trainer.global_step} in {self.folder}"
            raise Interrupted(self.received or signal.SIGTERM, how)

    def on_exception(
        self, trainer: L.Trainer, task: L.LightningModule, exception: BaseException
    ) -> None:
        self.restore()

    def teardown(self, trainer: L.Trainer, task: L.LightningModule, stage: str) -> None:
        self.restore()

    def restore(self) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)
        self.previous = {}


def answer(asked: tuple[torch.distributed.Work, torch.Tensor] | None) -> bool:
    """Return whether any process answered a question with yes, once the last has answered."""
    if asked is None:
        return False
    asked[0].wait()
    return bool(asked[1])


@contextmanager
def exits_are_interruptions() -> Iterator[None]:
    """Raise Interrupted where Lightning answers a signal with SystemExit, as it does before Signals
    handles them.
    """
    ctrl_c = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit as left:
        by_ctrl_c = isinstance(left.__context__, KeyboardInterrupt)
        if by_ctrl_c:
            signal.signal(signal.SIGINT, ctrl_c)  # Lightning leaves Ctrl-C ignored
        elif not isinstance(left, SIGTERMException):
            raise
        number = signal.SIGINT if by_ctrl_c else signal.SIGTERM
        raise Interrupted(number, "as training began; nothing was saved") from None


RANKS = (("RANK",), ("NODE_RANK", "LOCAL_RANK"), ("SLURM_PROCID",))  # the first that are set tell


def process_rank() -> int:
    """Return 0 in the process that writes all files, and a number above 0 in others.

    It is known before Lightning has started.

    Processes that Lightning starts under sbatch inherit the SLURM_PROCID of the first one; nodes
    that are started by hand have a NODE_RANK.
    """
    of_names = [
        [int(os.environ[name]) for name in names if os.environ.get(name)] for names in RANKS
    ]
    return next((max(ranks) for ranks in of_names if ranks), 0)
