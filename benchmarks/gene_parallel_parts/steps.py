"""Training steps with the genes of each cell split over the processes of a group, as `trainer.gene_parallel` does."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from training_parts.cells import Point
from training_parts.steps import Training

from grn.bags import Batch
from grn.model.objectives import mean_losses, total_loss
from grn.training.task import Task


class Loss(nn.Module):
    """What DistributedDataParallel wraps: the loss of this process's genes of a batch."""

    def __init__(self, task: Task):
        super().__init__()
        self.task = task

    def forward(self, batch: Batch) -> Tensor:
        _, losses = self.task.losses(batch)
        return total_loss(mean_losses(losses, mean_over_processes), self.task.weights)


class GeneParallelTraining(Training):
    """A model in training on this process's genes of some batches; `batches` have all genes, in every process."""

    def __init__(
        self,
        point: Point,
        batches: list[Batch],
        device: torch.device,
        precision: str,
        group: distributed.ProcessGroup,
        **more,
    ):
        super().__init__(point, batches, device, precision, **more)
        parts = [batch.part_of_genes(group.rank(), group.size()).to(device) for batch in batches]
        self.batches = itertools.cycle(parts)
        self.task.model.group = group
        # DDP's own collectives use the default group, as under Lightning (grn/training/task.py).
        self.whole = DistributedDataParallel(Loss(self.task), device_ids=[device] if device.type == "cuda" else None)

    def loss(self, batch: Batch) -> Tensor:
        return self.whole(batch)


def mean_over_processes(count: Tensor) -> Tensor:
    count = count.clone()
    distributed.all_reduce(count)
    return count / distributed.get_world_size()
