"""Several processes that train one model: what they tell each other in a step, none of which makes
the host wait for a GPU.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, distributed


def leave() -> None:
    """Ends Gloo's threads while Python still runs: a thread that drops its last tensor later aborts
    the process, and torchrun then ends the others, of which one may be reading the network.
    Lightning leaves a group of Gloo open.
    """
    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def mean_over_processes(values: Tensor) -> Tensor:
    """Return the mean of each number over the processes. (Lightning's `reduce` makes the processes
    wait for each other.)
    """
    if not distributed.is_initialized():
        return values
    total = values.detach().clone()
    distributed.all_reduce(total)
    return total / distributed.get_world_size()


def means_over_processes(values: Collection[Tensor]) -> list[Tensor]:
    """Return the mean of each tensor over the processes, all of them in one message."""
    if not values:
        return []
    means = mean_over_processes(torch.cat([each.flatten() for each in values]))
    parts = means.split([each.numel() for each in values])
    return [part.view_as(each) for part, each in zip(parts, values, strict=True)]


class MeanGradients(DDPStrategy):
    """Every process has the whole model and cells of its own; after the backward pass, gradients
    become their mean, all in one message.

    Torch's DistributedDataParallel asks all processes in every step which parameters it has used,
    as the identity token learns in every second step alone, and the host waits for the answer.
    """

    def configure_ddp(self) -> None:
        """Every process begins with the numbers of the first."""
        assert self.model is not None
        for each in (*self.model.parameters(), *self.model.buffers()):
            distributed.broadcast(each.detach(), src=0)

    def post_backward(self, closure_loss: Tensor) -> None:
        assert self.model is not None
        gradients = [each.grad for each in self.model.parameters() if each.grad is not None]
        if gradients:  # a recorded step keeps them to itself
            torch._foreach_copy_(gradients, means_over_processes(gradients))
