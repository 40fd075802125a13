"""The cells of each batch: P processes with batch size B train as one process with batch size P B
does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from torch.utils.data import Sampler

from grn.runtime.errors import DataError

# cells that lie side by side in a file, and cells that are mixed with each other
BLOCK, BUFFER = 128, 2**14
LANES = 64  # parts of a buffer, each of a few blocks


class Request(NamedTuple):
    """All that is needed to make a batch.

    rows [B]: of its cells.
    step: its number in training.
    buffer: sorted, the rows that are mixed with these, where cells are read from a file; else None.
    following: sorted, the rows of the next buffer, which may be one of the next epoch.
    """

    epoch: int
    rows: np.ndarray
    step: int = 0
    buffer: np.ndarray | None = None
    following: np.ndarray | None = None


class EpochOrder(Sampler[Request]):
    """The order of one process: its batches, shuffled anew each epoch from (seed, epoch).

    The k-th batches of all `world` processes together are the k-th batch of one process with batch
    size world * batch_size. The last global batch is dropped where it is incomplete, unless it is
    the only one. After a resume, the first `start` batches of the epoch are left out: training has
    had them before.

    More than BUFFER rows are shuffled in two steps, so that few cells have to be in memory. First
    blocks of BLOCK neighbours change places. Then each buffer of BUFFER consecutive rows is cut
    into lanes of a few blocks, the rows of a lane are shuffled, and every batch takes equally many
    from each lane. Where `world` divides LANES, and the cells of a batch are a multiple of LANES, a
    process has lanes of its own, so that no other process reads its blocks.

    rows: to train on.
    batch_size: cells of a batch in each process.
    rank, world: of this process, and how many processes there are.
    buffered: whether requests name the rows of their buffer.
    times: how often each batch comes, one time after the other.
    """

    def __init__(
        self,
        rows: np.ndarray,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world: int = 1,
        buffered: bool = False,
        times: int = 1,
    ):
        if len(rows) < world:
            problem = f"There are {len(rows)} training cells for {world} processes"
            raise DataError(
                problem, field="trainer.devices", advice="set {field} to 1, or use more cells"
            )
        self.rows = rows
        self.batch_size = batch_size
        self.seed = seed
        self.rank = rank
        self.world = world
        self.buffered, self.times, self.epoch, self.start = buffered, times, 0, 0

    def __len__(self) -> int:
        return self.times * self.count

    @property
    def count(self) -> int:
        """Return the number of different batches of an epoch."""
        return max(len(self.rows) // (self.world * self.batch_size), 1)

    def __iter__(self) -> Iterator[Request]:
        batches, buffer, following = self.batches(self.epoch), None, None
        for number in range(self.start, len(self)):
            batch = number // self.times
            if self.buffered and (buffer is None or number % (self.times * self.mixed) == 0):
                first = batch - batch % self.mixed
                buffer = self.buffer(batches[first:]) if following is None else following
                following = self.buffer(
                    batches[first + self.mixed :] or self.batches(self.epoch + 1)
                )
            yield Request(
                self.epoch, batches[batch], self.epoch * len(self) + number, buffer, following
            )

    @property
    def mixed(self) -> int:
        """Return the number of batches in a buffer, whose cells are mixed with each other."""
        return max(BUFFER // (self.world * self.batch_size), 1)

    def batches(self, epoch: int) -> list[np.ndarray]:
        """Return the rows of each batch of this process in an epoch."""
        size = self.world * self.batch_size
        order = self.shuffled(epoch, self.mixed, size)
        of_all = (order[batch * size : (batch + 1) * size] for batch in range(self.count))
        return [np.array_split(rows, self.world)[self.rank] for rows in of_all]

    def buffer(self, batches: list[np.ndarray]) -> np.ndarray:
        """Return the rows of the first buffer in these batches, sorted."""
        return np.sort(np.concatenate(batches[: self.mixed]))

    def shuffled(self, epoch: int, mixed: int, size: int) -> np.ndarray:
        """Return the rows in the order of an epoch.

        mixed: the number of batches in a buffer.
        size: rows of a batch of all processes.
        """
        generator = np.random.default_rng((self.seed, epoch))
        if len(self.rows) <= BUFFER:
            return generator.permutation(self.rows)
        first = generator.permutation(np.arange(0, len(self.rows), BLOCK))
        place = (first[:, None] + np.arange(BLOCK)).ravel()
        order = self.rows[place[place < len(self.rows)]]
        for start in range(0, self.count * size, mixed * size):
            batches = min(mixed, self.count - start // size)
            buffer = order[start : start + batches * size]
            lanes = math.gcd(len(buffer) // batches, LANES)
            mixture = generator.permuted(buffer.reshape(lanes, -1), axis=1)
            buffer[:] = mixture.reshape(lanes, batches, -1).swapaxes(0, 1).ravel()
        return order


def once_in_order(
    rows: np.ndarray, batch_size: int, rank: int = 0, world: int = 1
) -> list[Request]:
    """Return requests for every cell once over all processes, in order. With enough cells, each
    process has the same number of batches.

    rank, world: of this process, and how many processes there are.
    """
    own = np.array_split(rows, world)[rank]
    batches = -(-len(rows) // (world * batch_size))
    return [Request(0, batch) for batch in np.array_split(own, max(batches, 1)) if len(batch)]
