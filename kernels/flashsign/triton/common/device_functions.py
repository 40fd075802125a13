"""Functions of all kernels: where a program's rows lie, and powers of two that keep 16-bit products
in range.

Dense and packed bags have one layout: tensors [C', heads, rows, E], where a packed call has C' = 1
and each bag is a range of rows. Letters: E head width, E_PAD the power of two above it.

Names in all kernels: bag, the number of a bag; index, its position on the first axis (0 where bags
are packed); first_query, first_key, its first rows; there [rows], the mask of a tile's rows; here
[rows, E_PAD], the mask of its numbers; x_bag, x_head, x_row, the strides of x; inverse, a pointer
to 1 / n of all rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

HIGH_PRECISION = tl.constexpr(0.125)
"""A row with rho E below this takes moments that are not rounded to 16 bits; rho = z / (|q|^2 t) is
1 / E at random.
"""


@triton.jit
def bag_rows(bag, offsets, rows, PACKED: tl.constexpr):
    """The first row of a bag, its number of rows, and its index on the first axis; rows: of the
    tensor.
    """
    if PACKED:
        first = tl.load(offsets + bag)
        # Clamped, so that no program leaves the tensor, whatever the offsets hold.
        first = tl.minimum(tl.maximum(first, 0), rows).to(tl.int32)
        last = tl.minimum(tl.maximum(tl.load(offsets + bag + 1), first), rows).to(tl.int32)
        return first, last - first, bag * 0
    else:
        return 0, rows, bag


@triton.jit
def program_tile(schedule, tiles, heads, BLOCK: tl.constexpr, PACKED: tl.constexpr):
    """Bag (-1: none), head and first row of this program's tile: see layout.TileAssignment."""
    program = tl.program_id(0)
    tile, head = program % tiles, program // tiles % heads
    if PACKED:
        bag = tl.load(schedule + tile)
        start = tl.load(schedule + tiles + tile)
    else:
        bag = program // tiles // heads
        start = tile * BLOCK
    return bag, head, start


@triton.jit
def load_rows(x, row, x_row, there, column, E: tl.constexpr):
    """A tile [rows, E_PAD] of x; row [rows, 1]: its rows. Zeros where not there [rows] or beyond
    the head's width.
    """
    return tl.load(
        x + row * x_row + column[None, :], mask=there[:, None] & (column < E)[None, :], other=0.0
    )


@triton.jit
def store_rows(x, row, x_row, there, column, E: tl.constexpr, tile):
    """Store a tile [rows, E_PAD] in x, in its dtype; the other arguments as in load_rows."""
    to = x + row * x_row + column[None, :]
    tl.store(to, tile.to(x.dtype.element_ty), mask=there[:, None] & (column < E)[None, :])


@triton.jit
def of_head(x, index, head, x_bag, x_head):
    """Pointer to the rows of a bag and head."""
    return x + (index.to(tl.int64) * x_bag + head.to(tl.int64) * x_head)


@triton.jit
def multiple_of_four(row):
    """row rounded down to a multiple of four, where a descriptor of float32 numbers may begin to
    read.
    """
    return row // 4 * 4


@triton.jit
def power_of_two(x):
    """A power of two p with 1 <= p x < 2, and 1 for x = 0; x float32, not negative."""
    exponent = (x.to(tl.int32, bitcast=True) >> 23) & 0xFF
    # Subnormal x are treated as the smallest normal number, and p stays a normal number.
    exponent = tl.minimum(tl.maximum(exponent, 1), 253)
    p = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    return tl.where(x > 0, p, 1.0)


@triton.jit
def unit_of(t):
    """A power of two near sqrt(t). q / n has length 1 / sqrt(t) or so, and q / n times this has
    numbers near one.
    """
    return 1.0 / power_of_two(tl.sqrt(t))


@triton.jit
def inverse_norm(z, floor):
    """1 / sqrt(z + floor + tiny), and 0 where z + floor = 0: see
    flashsign.eager.streaming.inverse_norm.
    """
    square = z + floor
    return tl.where(square > 0, tl.rsqrt(square + 1.1754943508222875e-38), 0.0)


@triton.jit
def marked(inverse_n, broken):
    """1 / n with its sign bit set where broken, also of 0: the mark that streaming/nan_repair.py
    looks for.
    """
    sign = tl.where(broken, -2147483648, 0)
    return (inverse_n.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)


@triton.jit
def not_finite(k_tile, v_tile):
    """Which rows of two tiles,
    [rows, E_PAD] and [rows, V_PAD], hold a NaN or an infinity, [rows].
    """
    return tl.sum(k_tile * 0, 1) + tl.sum(v_tile.to(tl.float32) * 0, 1) != 0
