"""Which block sizes a launch takes on a device: those that it is given, else of the tile file, else of the tables."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from flashsign.tuning import tables
from flashsign.tuning.block_sizes import BlockSizes, Kernel, RowBlockSizes
from flashsign.tuning.device import device_limits, device_name
from flashsign.tuning.tile_file import VARIABLE, read

Tiles = Mapping[str, BlockSizes | RowBlockSizes]
"""Block sizes of some kernels, by the names of tables.TABLES and tables.PASSES, which a launch takes for its own."""
TABLES_ALONE: Tiles = MappingProxyType({})


@cache
def file_block_sizes(device: torch.device) -> Mapping[Kernel, BlockSizes | RowBlockSizes]:
    """Block sizes for a device in the file that FLASHSIGN_TILES names. Raises UnusableTiles where it cannot be used."""
    path = os.environ.get(VARIABLE)
    return read(Path(path), device_name(device)) if path else {}


def choose_block_sizes(
    name: str, rows: Tensor, width: int, tiles: Tiles = TABLES_ALONE, values: int | None = None
) -> BlockSizes:
    """Block sizes of a kernel of TABLES whose own tiles are of rows [C', heads, rows, E]; width, values: E, V, padded.

    Of the table's entries that fit into shared memory, the first that makes a tile for every multiprocessor, or the
    last; tables.FALLBACK or tables.SMALLEST where none fits.
    """
    size = rows.element_size()
    own = tiles.get(name) or file_block_sizes(rows.device).get(Kernel(name, size, width))
    if isinstance(own, BlockSizes):
        return own
    multiprocessors, memory = device_limits(rows.device)

    # Where a program keeps a tile of two tensors, one of them is of values.
    row = width if values is None or tables.KEPT[name] != 2 else (width + values) // 2

    def fit(some: Sequence[BlockSizes]) -> list[BlockSizes]:
        return [each for each in some if each.shared(tables.KEPT[name], row * size, size) <= memory]

    fitting = fit(tables.tiles_of(name, size, width, values)) or fit([tables.FALLBACK]) or [tables.SMALLEST]
    bags_and_heads = rows.shape[0] * rows.shape[1]
    filling = (each for each in fitting if bags_and_heads * -(-rows.shape[2] // each.own) >= multiprocessors)
    return next(filling, fitting[-1])


def choose_row_block_sizes(name: str, rows: Tensor, width: int, tiles: Tiles = TABLES_ALONE) -> RowBlockSizes:
    """Block sizes of a kernel of tables.PASSES over rows [C', heads, rows, E]; width: E, padded."""
    key = rows.element_size(), width
    own = tiles.get(name) or file_block_sizes(rows.device).get(Kernel(name, *key))
    if isinstance(own, RowBlockSizes):
        return own
    little = device_limits(rows.device)[1] < tables.LITTLE_MEMORY
    return (tables.IN_LITTLE_MEMORY.get(name, {}).get(key) if little else None) or tables.PASSES[name][key]
