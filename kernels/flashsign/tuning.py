"""Tile sizes, measured: what a kernel launches with, by architecture, head width and dtype.

A table and not an autotuner, as an autotuner costs every user seconds at the first call. Each row was checked against
float64 on the GPU it names (benchmarks/tiles.py); architectures that are not listed take the nearest older one's row.
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


def choose(table: dict[tuple[int, int], list[Tile]], rows: Tensor, width: int) -> Tile:
    """The first tile of which every multiprocessor gets one, or the last; rows [C', heads, rows, E], width padded."""
    tiles = table[rows.element_size(), width]
    everyone = processors(rows.device)
    full = (tile for tile in tiles if rows.shape[0] * rows.shape[1] * -(-rows.shape[2] // tile.own) >= everyone)
    return next(full, tiles[-1])


@cache
def processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
