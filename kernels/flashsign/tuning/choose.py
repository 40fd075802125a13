"""Choice of the block sizes of a launch: those that it is given, or an entry of the tables that
fits the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from torch import Tensor

from flashsign.tuning import tables
from flashsign.tuning.block_sizes import BlockSizes, RowBlockSizes
from flashsign.tuning.device import device_limits

Tiles = Mapping[str, BlockSizes | RowBlockSizes]
"""Block sizes of some kernels, by the names of tables.TABLES and tables.PASSES, which a launch
takes for its own.
"""
TABLES_ALONE: Tiles = MappingProxyType({})


def choose_block_sizes(
    name: str, rows: Tensor, width: int, tiles: Tiles = TABLES_ALONE, values: int | None = None
) -> BlockSizes:
    """Return block sizes of a kernel of TABLES whose own tiles are of rows [C', heads, rows, E].

    width, values: E, V, padded.

    Of the table's entries that fit into shared memory, the first that makes a tile for every
    multiprocessor, or the last; tables.FALLBACK or tables.SMALLEST where none fits.
    """
    size = rows.element_size()
    own = tiles.get(name)
    if isinstance(own, BlockSizes):
        return own
    multiprocessors, memory = device_limits(rows.device)

    # Where a program keeps a tile of two tensors, one of them is of values.
    row = width if values is None or tables.KEPT[name] != 2 else (width + values) // 2

    def fit(some: Sequence[BlockSizes]) -> list[BlockSizes]:
        return [each for each in some if each.shared(tables.KEPT[name], row * size, size) <= memory]

    fitting = (
        fit(tables.tiles_of(name, size, width, values))
        or fit([tables.FALLBACK])
        or [tables.SMALLEST]
    )
    bags_and_heads = rows.shape[0] * rows.shape[1]
    filling = (
        each
        for each in fitting
        if bags_and_heads * -(-rows.shape[2] // each.own) >= multiprocessors
    )
    return next(filling, fitting[-1])


def choose_row_block_sizes(
    name: str, rows: Tensor, width: int, tiles: Tiles = TABLES_ALONE
) -> RowBlockSizes:
    """Return block sizes of a kernel of tables.PASSES over rows [C', heads, rows, E]; width: E,
    padded.
    """
    key = rows.element_size(), width
    own = tiles.get(name)
    if isinstance(own, RowBlockSizes):
        return own
    little = device_limits(rows.device)[1] < tables.LITTLE_MEMORY
    return (tables.IN_LITTLE_MEMORY.get(name, {}).get(key) if little else None) or tables.PASSES[
        name
    ][key]
