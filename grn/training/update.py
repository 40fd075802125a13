"""What follows the gradients of a step, as a CUDA graph can record it: the optimiser, and the
average of weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim import Optimizer

from grn.training.finite import skip_unless_finite


class Update:
    """Moves parameters as the optimiser does, unless their gradients are not finite.

    optimizer: a fused one that has moved these parameters before, since a graph that made its state
        would make it anew in every step.
    processes: that train together.
    then: what is called after it.
    """

    def __init__(
        self, optimizer: Optimizer, processes: int = 1, then: Sequence[Callable[[], None]] = ()
    ):
        self.optimizer, self.processes, self.then = optimizer, processes, then

    def rates(self) -> list[float]:
        """Return the learning rate of each group of parameters."""
        return [group["lr"] for group in self.optimizer.param_groups]

    @torch.no_grad()
    def __call__(
        self, loss: Tensor, parameters: Sequence[Tensor], gradient: Tensor, rates: Tensor
    ) -> Tensor:
        """Update the parameters; return whether the loss and the gradient's norm are finite, bool
        [2].

        gradient: of the parameters, one after another, summed over the processes.
        rates: learning rates, on the GPU.
        """
        gradient.div_(self.processes)
        finite = torch.stack([loss, torch.linalg.vector_norm(gradient)]).isfinite()
        skip_unless_finite(self.optimizer, finite)
        self.optimizer.zero_grad()  # of the step before, which may have used other parameters
        parts = gradient.split([each.numel() for each in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter)
        with recordable(self.optimizer, rates):
            self.optimizer.step()
        for parameter in parameters:
            parameter.grad = None
        for call in self.then:
            call()
        return finite


@contextmanager
def recordable(optimizer: Optimizer, rates: Tensor) -> Iterator[None]:
    """Let a graph record the optimiser, which then reads its learning rates from the GPU."""
    groups = optimizer.param_groups
    kept = [{name: group[name] for name in ("lr", "capturable")} for group in groups]
    for group, rate in zip(groups, rates, strict=True):
        group.update(lr=rate, capturable=True)
    try:
        yield
    finally:
        for group, own in zip(groups, kept, strict=True):
            group.update(own)
