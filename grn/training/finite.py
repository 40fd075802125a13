"""Whether the loss and the gradient of each step are finite, checked without making the host wait
for a GPU.

The numbers of a step are read during the next one. A fused optimiser learns on the GPU that they
are not finite, and leaves the parameters alone. On a CPU they are read at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer


@dataclass(frozen=True)
class Step:
    """A step, and whether its numbers are finite.

    number: of the step.
    cells: rows of its batch.
    finite: bool [2], whether loss and gradient norm are finite, on the host once `copied` has
        happened.
    """

    number: int
    cells: Tensor
    finite: Tensor
    copied: torch.cuda.Event | None = None

    def problem(self) -> str | None:
        """Return the name of the number that is not finite, if any."""
        if self.copied is not None:
            self.copied.synchronize()
        loss, norm = self.finite.tolist()
        return None if loss and norm else "gradient norm" if loss else "loss"


class FiniteCheck:
    """Returns each step when its numbers can be read without waiting."""

    def __init__(self) -> None:
        self.unread: Step | None = None

    def next(
        self, number: int, cells: Tensor, loss: Tensor, norm: Tensor, optimizer: Optimizer
    ) -> Step | None:
        """Check loss and gradient norm before the optimiser steps; return the step to read now:
        this one or, on a GPU, the previous one.
        """
        finite = torch.stack([loss.detach(), norm]).isfinite()
        if not (finite.is_cuda and optimizer.defaults.get("fused")):
            return Step(number, cells, finite)
        skip_unless_finite(optimizer, finite)
        return self.read_later(number, cells, finite)

    def read_later(self, number: int, cells: Tensor, finite: Tensor) -> Step | None:
        """Start copying the numbers of a recorded step, which the optimiser has checked itself;
        return the step before it.
        """
        host = torch.empty(2, dtype=torch.bool, pin_memory=True).copy_(finite, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()
        previous, self.unread = self.unread, Step(number, cells, host, copied)
        return previous

    def last(self) -> Step | None:
        """Return the step that has not been read yet, if any."""
        previous, self.unread = self.unread, None
        return previous


def skip_unless_finite(optimizer: Optimizer, finite: Tensor) -> None:
    """Make the next step of a fused optimiser change nothing unless all of `finite` is true."""
    optimizer.found_inf = (~finite.all()).float()  # type: ignore[attr-defined]
