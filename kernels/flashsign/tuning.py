"""Tile sizes, measured on an H200: what a kernel launches with, by head width and bytes of a number.

A table and not an autotuner, as an autotuner costs every user seconds at the first call. benchmarks/tiles.py checks
every row against float64 on the GPU that it runs on. GPUs with less shared memory take the first tile that fits; none
was at hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tile:
    """Rows of a program's own tile, rows of the tiles that stream by, warps of a program, stages of the pipeline."""

    own: int
    other: int
    warps: int
    stages: int

    def shared(self, kept: int, row: int) -> int:
        """Bytes of shared memory: own tiles that are kept, and two tensors' tiles streaming by; row: bytes of one."""
        return (kept * self.own + 2 * self.stages * self.other) * row


SMALL = Tile(32, 16, 4, 1)
"""For GPUs whose shared memory holds none of the measured tiles."""

FORWARD: dict[tuple[int, int], list[Tile]] = {
    (2, 16): [Tile(128, 128, 4, 4)],
    (2, 32): [Tile(128, 128, 4, 4)],
    (2, 64): [Tile(128, 64, 8, 4), Tile(64, 128, 4, 3)],
    (2, 128): [Tile(256, 64, 8, 4), Tile(128, 64, 8, 4)],
    (2, 256): [Tile(128, 64, 8, 2)],
    (4, 16): [Tile(64, 32, 4, 2)],
    (4, 32): [Tile(64, 32, 4, 2)],
    (4, 64): [Tile(128, 32, 8, 2)],
    (4, 128): [Tile(32, 32, 4, 2)],
    (4, 256): [Tile(32, 16, 4, 1)],
}
"""(bytes of a number, padded head width) -> tiles of queries by tiles of keys, for long bags first."""

HOPPER: dict[tuple[int, int], Tile] = {(2, 64): Tile(256, 128, 8, 5), (2, 128): Tile(256, 64, 8, 5)}
"""Tiles of the forward kernel written for Hopper; widths that are no power of two take the other."""

KEY_GRADIENTS: dict[tuple[int, int], list[Tile]] = {
    (2, 16): [Tile(64, 64, 4, 4)],
    (2, 32): [Tile(128, 64, 4, 3)],
    (2, 64): [Tile(64, 64, 4, 3)],
    (2, 128): [Tile(128, 64, 8, 3)],
    (2, 256): [Tile(64, 64, 8, 1)],
    (4, 16): [Tile(64, 32, 4, 2)],
    (4, 32): [Tile(64, 32, 4, 2)],
    (4, 64): [Tile(128, 32, 8, 2)],
    (4, 128): [Tile(64, 32, 4, 2)],
    (4, 256): [Tile(16, 16, 4, 1)],
}
"""Tiles of keys by tiles of queries."""

QUERY_GRADIENT: dict[tuple[int, int], list[Tile]] = {
    (2, 16): [Tile(128, 64, 4, 3)],
    (2, 32): [Tile(128, 64, 4, 3)],
    (2, 64): [Tile(64, 64, 4, 3)],
    (2, 128): [Tile(64, 64, 4, 2)],
    (2, 256): [Tile(64, 32, 4, 2)],
    (4, 16): [Tile(64, 32, 4, 2)],
    (4, 32): [Tile(64, 32, 4, 2)],
    (4, 64): [Tile(32, 32, 4, 2)],
    (4, 128): [Tile(32, 32, 4, 1)],
    (4, 256): [Tile(16, 16, 4, 1)],
}
"""Tiles of queries by tiles of keys."""


def choose(table: dict[tuple[int, int], list[Tile]], rows: Tensor, width: int, kept: int) -> Tile:
    """The first tile that fits and of which every multiprocessor gets one, or the last that fits, or SMALL.

    rows [C', heads, rows, E]; width: padded; kept: how many tensors' own tiles a program keeps in shared memory.
    """
    size = rows.element_size()
    everyone, room = device_limits(rows.device)
    tiles = [tile for tile in table[size, width] if tile.shared(kept, width * size) <= room] or [SMALL]
    full = (tile for tile in tiles if rows.shape[0] * rows.shape[1] * -(-rows.shape[2] // tile.own) >= everyone)
    return next(full, tiles[-1])


@cache
def device_limits(device: torch.device) -> tuple[int, int]:
    """Multiprocessors, and bytes of shared memory that a program may have."""
    if device.type != "cuda":
        return 1, 2**30
    limits = torch.cuda.get_device_properties(device)
    # Not every build of torch says how much shared memory there is.
    return limits.multi_processor_count, getattr(limits, "shared_memory_per_block_optin", 2**30)


def processors(device: torch.device) -> int:
    return device_limits(device)[0]
