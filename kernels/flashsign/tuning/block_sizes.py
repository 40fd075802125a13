"""Block sizes: the numbers with which a kernel is launched.

A head is padded to a multiple of ROW_STEP in memory, to a power of two in tiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

ROW_STEP = 16
"""Head widths and all strides from row to row are multiples of this, so that Triton knows it can
load 16 bytes at once.

Otherwise every number of a tile needs an address of its own: kernels then ran out of registers, and
ptxas 12.8 made matrix products of a 16-bit 64-wide tile read from an address that was never set
(docs/log.md).
"""


def padded_width(width: int) -> int:
    """Return the smallest power of two that is at least `width` and 16: the width of tiles."""
    return max(16, 1 << (width - 1).bit_length())


def for_every_width(
    entries: Mapping[tuple[int, int], T], widest: int = 256
) -> dict[tuple[int, int], T]:
    """Return a table by (bytes of a number, padded width) with all widths up to the widest, of
    which `entries` has those where something changes.
    """
    return {
        (size, width): entries[size, max(w for s, w in entries if s == size and w <= width)]
        for size in {size for size, _ in entries}
        for width in (16, 32, 64, 128, 256)
        if width <= widest
    }


@dataclass(frozen=True)
class BlockSizes:
    """Block sizes of a kernel whose program keeps one tile of rows and loops over the tiles of
    another tensor.

    own: rows of the tile that it keeps; other: rows of the tiles that it loops over; warps: of a
        program; stages: of the loop's pipeline.
    """

    own: int
    other: int
    warps: int
    stages: int

    def shared(self, kept: int, row: int, size: int) -> int:
        """Return bytes of shared memory for `kept` own tiles and the pipeline's tiles of two
        tensors.

        row: bytes of a row, size: of a number. Three TF32 products of float32 numbers keep a second
            tile of each.
        """
        split = 2 * self.own + self.other if size == 4 else 0
        return (kept * self.own + 2 * self.stages * self.other + split) * row


@dataclass(frozen=True)
class RowBlockSizes:
    """Block sizes of a kernel that passes over rows once: rows of a tile, warps of a program,
    stages of the pipeline, and programs per multiprocessor.
    """

    rows: int
    warps: int
    stages: int
    programs: int


@dataclass(frozen=True)
class SmallBagBlockSizes:
    """Block sizes of a kernel whose program does a whole bag: the most queries in a tile, warps of
    a program, and the most scores (queries times keys) in a tile.
    """

    queries: int
    warps: int
    scores: int = 8192


def room_for_bags(most: int) -> int:
    """Return the bags of a tile of the kernels of tables of scores.

    A power of 2, with room for the largest group and, where a forward has slopes, one more; a
    product has 16.
    """
    return max(16, 1 << (most - 1).bit_length())
