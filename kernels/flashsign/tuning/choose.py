"""Which block sizes a launch takes on a device: those of the tile file where it lists the kernel, else the tables'."""

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
    """Block sizes that override the tables on a device: of the file that FLASHSIGN_TILES names, and those being tried.

    Raises UnusableTiles where that file cannot be used.
    """
    path = os.environ.get(VARIABLE)
    return read(Path(path), device_name(device)) if path else {}


def choose_block_sizes(name: str, rows: Tensor, width: int) -> BlockSizes:
    """Block sizes of a kernel of TABLES for rows [C', heads, rows, E], width padded.

    The device's own where it has some. Otherwise, of the table's rows that fit into shared memory, the first with a
    tile for every multiprocessor, or the last; FALLBACK where none fits.
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
    """Block sizes of a kernel of PASSES for rows [C', heads, rows, E], width padded: the device's or the table's."""
    own = own_block_sizes(rows.device).get(Kernel(name, rows.element_size(), width))
    return own if isinstance(own, RowBlockSizes) else PASSES[name][rows.element_size(), width]
