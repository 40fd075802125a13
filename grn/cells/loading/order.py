"""Which cells form which batch: P processes with batch size B train as one process with batch size P B does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from torch.utils.data import Sampler

from grn.errors import DataError


class Request(NamedTuple):
    """All that is needed to make a batch: its epoch, its rows and, in training, the number of its step."""

    epoch: int
    rows: np.ndarray
    step: int = 0


class EpochOrder(Sampler[Request]):
    """The batches of one process, shuffled anew each epoch from (seed, epoch).

    The k-th batches of all `world` processes together are the k-th batch of one process with batch size
    world * batch_size. The last global batch is dropped where it is incomplete, unless it is the only one.
    After a resume, the first `start` batches of the epoch are left out: training has had them before.
    """

    def __init__(self, rows: np.ndarray, batch_size: int, seed: int, rank: int = 0, world: int = 1):
        if len(rows) < world:
            problem = f"There are {len(rows)} training cells for {world} processes"
            raise DataError(problem, field="trainer.devices", advice="set {field} to 1, or use more cells")
        self.rows, self.batch_size, self.seed, self.rank, self.world = rows, batch_size, seed, rank, world
        self.epoch = self.start = 0

    def __len__(self) -> int:
        return max(len(self.rows) // (self.world * self.batch_size), 1)

    def __iter__(self) -> Iterator[Request]:
        order = np.random.default_rng((self.seed, self.epoch)).permutation(self.rows)
        size = self.world * self.batch_size
        for batch in range(self.start, len(self)):
            rows = order[batch * size : (batch + 1) * size]  # of all processes
            yield Request(self.epoch, np.array_split(rows, self.world)[self.rank], self.epoch * len(self) + batch)


def once_in_order(rows: np.ndarray, batch_size: int, rank: int = 0, world: int = 1) -> list[Request]:
    """Every cell once over all processes, in order. With enough cells, each process has the same number of batches."""
    own = np.array_split(rows, world)[rank]
    batches = -(-len(rows) // (world * batch_size))
    return [Request(0, batch) for batch in np.array_split(own, max(batches, 1)) if len(batch)]
