"""Which tile of rows each program of a launch does, where bags are dense and where they are packed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flashsign.tensor_cache import cached
from flashsign.triton.common.layout import cdiv


@dataclass(frozen=True)
class TileAssignment:
    """The tiles of all bags, one program a tile and head: device_functions.program_tile reads it.

    count: tiles of a dense bag, or of all packed bags together. schedule [2, count], of packed bags alone: bag (-1:
    none) and first row of each tile.
    """

    count: int
    bags: int
    schedule: Tensor | None

    @classmethod
    def of(cls, rows: int, bags: int, block: int, offsets: Tensor | None) -> TileAssignment:
        """Tiles of `block` rows. Packed: as many as any offsets can need, known without synchronising with the GPU."""
        if offsets is None:
            return cls(cdiv(rows, block), bags, None)
        bags = len(offsets) - 1
        count = rows // block + bags
        return cls(count, bags, cached(offsets, (block, count), lambda: schedule(offsets, block, count)))

    def grid(self, heads: int) -> tuple[int]:
        return (self.count * heads * (1 if self.schedule is not None else self.bags),)


def schedule(offsets: Tensor, block: int, count: int) -> Tensor:
    """Bag (-1: none) and first row of `count` tiles, int32 [2, count]. Long bags first: the last to start are short."""
    sizes = offsets.diff()
    order = sizes.argsort(descending=True, stable=True)
    tiles = (sizes[order] + block - 1) // block
    ends = tiles.cumsum(0)
    position = torch.arange(count, device=offsets.device)
    slot = torch.searchsorted(ends, position, right=True)
    inside = slot.clamp_max(len(sizes) - 1)
    start = (position - ends[inside] + tiles[inside]) * block
    return torch.stack([torch.where(slot < len(sizes), order[inside], -1), start]).int()
