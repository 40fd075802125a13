"""Whether a step's loss and gradient were finite, asked without making the host wait for a GPU.

A look at a number on a GPU waits for everything that the GPU has in hand, and leaves it idle until new work arrives. So
the numbers of a step are looked at in the next one, and a fused optimiser is told on the device to leave the parameters
alone where they are bad. On a CPU the look is at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer


@dataclass(frozen=True)
class Step:
    """number: of the step.   cells: rows of its batch.   finite: bool [2], of loss and gradient norm, on the host as
    soon as `copied` has happened."""

    number: int
    cells: Tensor
    finite: Tensor
    copied: torch.cuda.Event | None = None

    def problem(self) -> str | None:
        if self.copied is not None:
            self.copied.synchronize()
        loss, norm = self.finite.tolist()
        return None if loss and norm else "gradient norm" if loss else "loss"


class Watch:
    """Hands each step's numbers back when they may be looked at."""

    def __init__(self) -> None:
        self.waiting: Step | None = None

    def next(self, number: int, cells: Tensor, loss: Tensor, norm: Tensor, optimizer: Optimizer) -> Step | None:
        """To be called before the optimiser steps -> the step to look at now: this one or, on a GPU, the one before."""
        finite = torch.stack([loss.detach(), norm]).isfinite()
        if not (finite.is_cuda and optimizer.defaults.get("fused")):
            return Step(number, cells, finite)
        skip_where_bad(optimizer, finite)
        host = torch.empty(2, dtype=torch.bool, pin_memory=True).copy_(finite, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()
        before, self.waiting = self.waiting, Step(number, cells, host, copied)
        return before

    def last(self) -> Step | None:
        """The step that nobody has looked at yet."""
        before, self.waiting = self.waiting, None
        return before


def skip_where_bad(optimizer: Optimizer, finite: Tensor) -> None:
    """Has a fused optimiser change nothing in its next step unless all of `finite` is true: a gradient scaler's way."""
    optimizer.found_inf = (~finite.all()).float()  # type: ignore[attr-defined]
