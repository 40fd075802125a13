"""How the kernels pad a head: to a multiple of ROW_STEP in memory, to a power of two in tiles."""

from __future__ import annotations

ROW_STEP = 16
"""Head widths and all strides from row to row are multiples of this, so that Triton knows it can load 16 bytes at once.

Otherwise every number of a tile needs an address of its own: kernels then ran out of registers, and ptxas 12.8 made
matrix products of a 16-bit 64-wide tile read from an address that was never set (docs/log.md).
"""


def padded_width(width: int) -> int:
    """The smallest power of two that is at least `width` and 16: the width of tiles."""
    return max(16, 1 << (width - 1).bit_length())


def moment_block(width: int) -> int:
    """How many entries of a moment [width, width] a program of triton.moments.sums.add_parts sums; width: padded."""
    return min(1024, width**2)
