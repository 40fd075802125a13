"""Which tile of rows each program of a launch does, for dense and for packed bags."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flashsign.tensor_cache import cached
from flashsign.triton.common.layout import cdiv


@dataclass(frozen=True)
class TileAssignment:
    """The tiles of all bags. Each tile and head has one program, which reads its own by device_functions.program_tile.

    count: tiles of a dense bag, or of all packed bags together. schedule [2, count], for packed bags only: the bag (-1:
    none) and the first row of each tile.
    """

    count: int
    bags: int
    schedule: Tensor | None

    @classmethod
    def of(cls, rows: int, bags: int, block: int, offsets: Tensor | None) -> TileAssignment:
        """Tiles of `block` rows; rows: of a dense bag, or of all packed bags together.

        Packed bags get as many tiles as any offsets can need, so that nothing synchronises with the GPU.
        """
        if offsets is None:
            return cls(cdiv(rows, block), bags, None)
        bags = len(offsets) - 1
        count = rows // block + bags
        return cls(count, bags, cached(offsets, (block, count), lambda: schedule(offsets, block, count)))

    def grid(self, heads: int) -> tuple[int]:
        """The number of programs, for `heads` heads."""
        return (self.count * heads * (1 if self.schedule is not None else self.bags),)


def schedule(offsets: Tensor, block: int, count: int) -> Tensor:
    """Bag (-1: none) and first row of `count` tiles, int32 [2, count]. Long bags first, so that the last tiles are of
    short ones."""
    sizes = offsets.diff()
    order = sizes.argsort(descending=True, stable=True)
    tiles = (sizes[order] + block - 1) // block
    ends = tiles.cumsum(0)
    position = torch.arange(count, device=offsets.device)
    slot = torch.searchsorted(ends, position, right=True)
    inside = slot.clamp_max(len(sizes) - 1)
    start = (position - ends[inside] + tiles[inside]) * block
    return torch.stack([torch.where(slot < len(sizes), order[inside], -1), start]).int()
