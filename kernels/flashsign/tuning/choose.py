"""Which block sizes a launch takes on a device: those of the tile file if it lists the kernel, else of the tables."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from flashsign.tuning.block_sizes import BlockSizes, Kernel, RowBlockSizes
from flashsign.tuning.device import device_limits, device_name
from flashsign.tuning.tables import FALLBACK, KEPT, PASSES, TABLES
from flashsign.tuning.tile_file import VARIABLE, read


@cache
def own_block_sizes(device: torch.device) -> dict[Kernel, BlockSizes | RowBlockSizes]:
    """Block sizes that override the tables on a device: those of the file that FLASHSIGN_TILES names.

    The dictionary is one object per device, into which flashsign.autotune writes the block sizes that it tries.
    Raises UnusableTiles where the file cannot be used.
    """
    path = os.environ.get(VARIABLE)
    return read(Path(path), device_name(device)) if path else {}


def choose_block_sizes(name: str, rows: Tensor, width: int) -> BlockSizes:
    """Block sizes of a kernel of TABLES whose own tiles are of rows [C', heads, rows, E]; width: E, padded.

    Those of own_block_sizes if they list the kernel. Otherwise, of the table's entries that fit into shared memory, the
    first that makes a tile for every multiprocessor, or the last; FALLBACK where none fits.
    """
    size = rows.element_size()
    own = own_block_sizes(rows.device).get(Kernel(name, size, width))
    if isinstance(own, BlockSizes):
        return own
    multiprocessors, memory = device_limits(rows.device)
    fitting = [each for each in TABLES[name][size, width] if each.shared(KEPT[name], width * size) <= memory]
    fitting = fitting or [FALLBACK]
    bags_and_heads = rows.shape[0] * rows.shape[1]
    filling = (each for each in fitting if bags_and_heads * -(-rows.shape[2] // each.own) >= multiprocessors)
    return next(filling, fitting[-1])


def choose_row_block_sizes(name: str, rows: Tensor, width: int) -> RowBlockSizes:
    """Block sizes of a kernel of PASSES over rows [C', heads, rows, E]: of own_block_sizes or of the table.

    width: E, padded.
    """
    own = own_block_sizes(rows.device).get(Kernel(name, rows.element_size(), width))
    return own if isinstance(own, RowBlockSizes) else PASSES[name][rows.element_size(), width]
