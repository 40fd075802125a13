"""Tile sizes, measured on an H200: what a kernel launches with, by head width and bytes of a number.

A table and not an autotuner, as an autotuner costs every user seconds at the first call. benchmarks/tiles.py checks
every row against float64 on the GPU that it runs on. GPUs with less shared memory take the first tile that fits; none
was at hand. Who wants tiles of a GPU of their own finds them with autotune.py, and names their file in FLASHSIGN_TILES.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from flashsign.tuning.tile import Kernel, Pass, Tile
from flashsign.tuning.tile_file import VARIABLE, read

ROW_STEP = 16
"""What heads' widths and all steps from row to row are multiples of: so Triton knows that it can load 16 bytes at once.

Else every number of a tile wants an address of its own. Kernels then ran out of registers, and there ptxas 12.8 made
matrix products of a 16-bit 64-wide tile read from an address that was never set (docs/log.md).
"""


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

HOPPER: dict[tuple[int, int], list[Tile]] = {
    (2, 64): [Tile(256, 128, 8, 5), Tile(128, 128, 8, 5)],
    (2, 128): [Tile(256, 64, 8, 5), Tile(128, 64, 8, 5)],
}
"""Tiles of the forward kernel written for Hopper; other widths take the other kernel."""

MEND = Tile(128, 32, 8, 1)
"""Of triton/mend.py: little memory, as nearly all programs end at once."""

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


EDGE_SUMS: dict[tuple[int, int], list[Tile]] = {
    (2, 16): [Tile(128, 128, 8, 4)],
    (2, 32): [Tile(128, 128, 8, 4)],
    (2, 64): [Tile(128, 128, 8, 3)],
    (2, 128): [Tile(128, 128, 8, 2)],
    (2, 256): [Tile(64, 64, 4, 2)],
    (4, 16): [Tile(64, 128, 8, 3)],
    (4, 32): [Tile(64, 128, 8, 3)],
    (4, 64): [Tile(64, 64, 4, 3)],
    (4, 128): [Tile(64, 64, 4, 2)],
    (4, 256): [Tile(32, 32, 4, 2)],
}
"""Tiles of targets by tiles of regulators, as tall at most as wide: two sums of a tile wait in registers."""


MOMENT_KEYS: dict[tuple[int, int], Pass] = {
    (2, 16): Pass(128, 4, 3, 2),
    (2, 32): Pass(128, 2, 2, 4),
    (2, 64): Pass(256, 4, 3, 1),
    (2, 128): Pass(64, 8, 6, 1),
    (4, 16): Pass(64, 4, 3, 2),
    (4, 32): Pass(64, 4, 3, 2),
    (4, 64): Pass(32, 4, 3, 1),
    (4, 128): Pass(16, 8, 2, 1),
}
"""The moments' passes over keys, forward; (bytes of a number, padded head width)."""

MOMENT_QUERIES: dict[tuple[int, int], Pass] = {
    (2, 16): Pass(128, 4, 3, 4),
    (2, 32): Pass(64, 4, 3, 4),
    (2, 64): Pass(64, 4, 3, 2),
    (2, 128): Pass(64, 4, 3, 2),
    (4, 16): Pass(64, 4, 2, 4),
    (4, 32): Pass(64, 4, 2, 4),
    (4, 64): Pass(64, 4, 2, 2),
    (4, 128): Pass(32, 4, 1, 2),
}
"""Over queries, forward."""

MOMENT_QUERY_SUMS: dict[tuple[int, int], Pass] = {
    (2, 16): Pass(64, 4, 3, 3),
    (2, 32): Pass(64, 4, 3, 3),
    (2, 64): Pass(64, 4, 3, 2),
    (2, 128): Pass(64, 8, 3, 1),
    (4, 16): Pass(64, 4, 1, 2),
    (4, 32): Pass(64, 4, 1, 2),
    (4, 64): Pass(32, 4, 1, 1),
    (4, 128): Pass(16, 8, 1, 1),
}
"""Over queries, backward: the sums."""

MOMENT_QUERY_GRADIENTS: dict[tuple[int, int], Pass] = {
    (2, 16): Pass(64, 4, 3, 4),
    (2, 32): Pass(64, 4, 3, 4),
    (2, 64): Pass(32, 4, 3, 3),
    (2, 128): Pass(64, 8, 3, 1),
    (4, 16): Pass(64, 4, 1, 2),
    (4, 32): Pass(64, 4, 1, 2),
    (4, 64): Pass(32, 4, 1, 2),
    (4, 128): Pass(32, 4, 1, 2),
}
"""Over queries, backward: dq."""

MOMENT_KEY_GRADIENTS: dict[tuple[int, int], Pass] = {
    (2, 16): Pass(64, 4, 3, 4),
    (2, 32): Pass(64, 4, 3, 2),
    (2, 64): Pass(64, 4, 3, 2),
    (2, 128): Pass(64, 8, 3, 1),
    (4, 16): Pass(64, 4, 1, 2),
    (4, 32): Pass(64, 4, 1, 2),
    (4, 64): Pass(32, 4, 1, 2),
    (4, 128): Pass(32, 8, 1, 1),
}
"""Over keys, backward."""


@dataclass(frozen=True)
class SmallTile:
    """Queries that a program does at a time, fewer where that would be more scores than these; and its warps."""

    queries: int
    warps: int
    scores: int = 8192


@dataclass(frozen=True)
class SmallBags:
    """Bags that one program does: at most so many keys; forward and backward. 64 KiB of shared memory are enough."""

    keys: int
    forward: SmallTile
    backward: SmallTile


SMALL_BAGS: dict[tuple[int, int], SmallBags] = {
    (2, 16): SmallBags(128, SmallTile(64, 4), SmallTile(64, 4)),
    (2, 32): SmallBags(128, SmallTile(64, 4), SmallTile(64, 4, 4096)),
    (2, 64): SmallBags(128, SmallTile(64, 4), SmallTile(32, 8)),
    (4, 16): SmallBags(64, SmallTile(64, 4), SmallTile(32, 4)),
    (4, 32): SmallBags(64, SmallTile(64, 4), SmallTile(16, 4)),
}
"""(bytes of a number, padded head width) -> bags that one program does. Of aligned rows none spills 3 registers."""

MOST_QUERIES = 128
"""Queries of such a bag: of more, other kernels make more programs."""


KEPT = {"forward": 1, "key_gradients": 2, "query_gradient": 2, "edge_sums": 0}
"""How many tensors' own tiles a program keeps in shared memory."""
TABLES: dict[str, dict[tuple[int, int], list[Tile]]] = {
    "forward": FORWARD,
    "key_gradients": KEY_GRADIENTS,
    "query_gradient": QUERY_GRADIENT,
    "edge_sums": EDGE_SUMS,
}
PASSES: dict[str, dict[tuple[int, int], Pass]] = {
    "moment_keys": MOMENT_KEYS,
    "moment_queries": MOMENT_QUERIES,
    "moment_query_sums": MOMENT_QUERY_SUMS,
    "moment_query_gradients": MOMENT_QUERY_GRADIENTS,
    "moment_key_gradients": MOMENT_KEY_GRADIENTS,
}


@cache
def own_tiles(device: torch.device) -> dict[Kernel, Tile | Pass]:
    """What goes before the tables on a device: tiles of the file that FLASHSIGN_TILES names, and those being tried."""
    path = os.environ.get(VARIABLE)
    return read(Path(path), device_name(device)) if path else {}


def choose_tile(name: str, rows: Tensor, width: int) -> Tile:
    """The tile of a kernel of TABLES for rows [C', heads, rows, E], width padded: the device's own, or else the first
    that fits and of which every multiprocessor gets one, or the last that fits, or SMALL."""
    size = rows.element_size()
    own = own_tiles(rows.device).get(Kernel(name, size, width))
    if isinstance(own, Tile):
        return own
    everyone, room = device_limits(rows.device)
    tiles = [tile for tile in TABLES[name][size, width] if tile.shared(KEPT[name], width * size) <= room] or [SMALL]
    full = (tile for tile in tiles if rows.shape[0] * rows.shape[1] * -(-rows.shape[2] // tile.own) >= everyone)
    return next(full, tiles[-1])


def choose_pass(name: str, rows: Tensor, width: int) -> Pass:
    """The same of a kernel of PASSES."""
    own = own_tiles(rows.device).get(Kernel(name, rows.element_size(), width))
    return own if isinstance(own, Pass) else PASSES[name][rows.element_size(), width]


def padded_width(width: int) -> int:
    """The power of two from `width` up, 16 at least: what tiles are wide."""
    return max(16, 1 << (width - 1).bit_length())


def moment_block(width: int) -> int:
    """Entries of a square [width, width], width padded, that one program sums (triton.moment_sums.add_parts)."""
    return min(1024, width**2)


@cache
def device_limits(device: torch.device) -> tuple[int, int]:
    """Multiprocessors, and bytes of shared memory that a program may have."""
    if device.type != "cuda":
        return 1, 2**30
    limits = torch.cuda.get_device_properties(device)
    # Not every build of torch says how much shared memory there is.
    return limits.multi_processor_count, getattr(limits, "shared_memory_per_block_optin", 2**30)


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


@cache
def capability(device: torch.device) -> tuple[int, int]:
    """Of a CUDA device; inside torch.compile nobody could ask."""
    return torch.cuda.get_device_capability(device)


def processors(device: torch.device) -> int:
    return device_limits(device)[0]
