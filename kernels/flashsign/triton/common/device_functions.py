"""What every kernel shares: where a program's rows lie, and numbers that keep 16-bit products in range.

Dense and packed bags have one layout: tensors [C', heads, rows, E], where a packed call has C' = 1 and every bag is a
run of rows. Letters: E head width, E_PAD the power of two above it.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def bag_rows(bag, offsets, rows, PACKED: tl.constexpr):
    """First row of a bag, how many rows it has, and its index on the first axis."""
    if PACKED:
        first = tl.load(offsets + bag)
        # Clamped: whatever the offsets hold, no program leaves the tensor.
        first = tl.minimum(tl.maximum(first, 0), rows).to(tl.int32)
        last = tl.minimum(tl.maximum(tl.load(offsets + bag + 1), first), rows).to(tl.int32)
        return first, last - first, bag * 0
    else:
        return 0, rows, bag


@triton.jit
def program_tile(schedule, tiles, heads, BLOCK: tl.constexpr, PACKED: tl.constexpr):
    """Bag (-1: none), head and first row of this program's tile; tiles of one bag and head follow each other."""
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
    """Rows [rows, 1] of x, zeros where they are not `there` [rows] or beyond the head's width."""
    return tl.load(x + row * x_row + column[None, :], mask=there[:, None] & (column < E)[None, :], other=0.0)


@triton.jit
def multiple_of_four(row):
    """row, down to a multiple of four: where a descriptor of float32 numbers may begin to read."""
    return row // 4 * 4


@triton.jit
def power_of_two(x):
    """A power of two p with 1 <= p x < 2, and 1 for x = 0; x float32, not negative."""
    exponent = (x.to(tl.int32, bitcast=True) >> 23) & 0xFF
    # Subnormal x count as the smallest normal, and p stays a normal number.
    exponent = tl.minimum(tl.maximum(exponent, 1), 253)
    p = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    return tl.where(x > 0, p, 1.0)


@triton.jit
def unit_of(t):
    """A power of two near sqrt(t): q / n is about 1 / sqrt(t) long, and has numbers near one in units of it."""
    return 1.0 / power_of_two(tl.sqrt(t))


@triton.jit
def inverse_norm(z, floor):
    """1 / sqrt(z + floor + tiny), and 0 where there is nothing under the root: see flashsign.eager.streaming."""
    square = z + floor
    return tl.where(square > 0, tl.rsqrt(square + 1.1754943508222875e-38), 0.0)


@triton.jit
def marked(norm, broken):
    """norm with its sign bit set where broken, that of zeros too: the mark that streaming/nan_repair.py looks for."""
    sign = tl.where(broken, -2147483648, 0)
    return (norm.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)


@triton.jit
def not_finite(k_tile, v_tile):
    """Which rows of two tiles [rows, E_PAD] hold NaN or infinity."""
    return tl.sum(k_tile * 0 + v_tile.to(tl.float32) * 0, 1) != 0
