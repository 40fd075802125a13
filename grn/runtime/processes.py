"""Several processes that a launcher has started together: the share of each, and what they tell
each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import distributed

from grn.runtime.errors import UserError

Value = TypeVar("Value")


@dataclass(frozen=True)
class Processes:
    """The processes that work together.

    rank: of this process.
    world: how many there are.
    group: of their hosts; None: this process is alone.
    """

    rank: int = 0
    world: int = 1
    group: distributed.ProcessGroup | None = None

    def share(self, count: int, piece: int) -> slice:
        """Which of `count` rows this process reads: whole pieces of `piece` rows; the last piece
        may be shorter.
        """
        pieces = -(-count // piece)
        first, end = (
            min(pieces * rank // self.world * piece, count) for rank in (self.rank, self.rank + 1)
        )
        return slice(first, end)

    def of_all(self, make: Callable[[], Value]) -> list[Value]:
        """Return what `make` returns in every process, by rank.

        A UserError of one is raised in all; where the first process has found one, it alone says
        it.
        """
        if self.world == 1:
            return [make()]
        own: Any
        try:
            own = make()
        except UserError as error:
            own = error
        found: list[Any] = [None] * self.world
        distributed.all_gather_object(found, own, self.group)
        for each in found:
            if isinstance(each, UserError):
                each.said = self.rank > 0 and isinstance(found[0], UserError)
                raise each
        return found

    def spread(self, make: Callable[[int], Value], count: int) -> list[Value]:
        """make(0), ..., make(count - 1), of which each process makes some. The first gets all of
        them, others none.
        """
        own = [make(number) for number in range(self.rank, count, self.world)]
        if self.world == 1:
            return own
        found: list[Any] | None = [None] * self.world if self.rank == 0 else None
        distributed.gather_object(own, found, 0, self.group)
        return (
            []
            if found is None
            else [found[number % self.world][number // self.world] for number in range(count)]
        )

    def copy_of_first(self, tensors: Iterable[torch.Tensor]) -> None:
        """Give the tensors of all processes, in place, the numbers of the first one's."""
        for tensor in tensors if self.world > 1 else ():
            values = tensor.detach().cpu().contiguous()
            distributed.broadcast(values, 0, self.group)
            tensor.detach().copy_(values)

    def joined(self, own: np.ndarray) -> np.ndarray:
        """The arrays [n] of all processes as one, by rank, all of one dtype. (Pickled, they take
        twice as long.)
        """
        if self.world == 1:
            return own
        sizes = self.of_all(lambda: len(own))
        whole = np.empty(sum(sizes), own.dtype)
        for rank, part in enumerate(np.split(whole, np.cumsum(sizes)[:-1])):
            if rank == self.rank:
                part[:] = own
            distributed.broadcast(torch.from_numpy(part), rank, self.group)
        return whole


ALONE = Processes()
