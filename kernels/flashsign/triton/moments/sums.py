"""The two moments of a bag's keys, one pass over k, v and m: all that queries ever need of them.

    A = sum_j k'_j^T v_j      G = sum_j k'_j^T k'_j      k' = m k

They are sums, so programs take a part of the keys each, and the parts' sums are added, in one order. A part's
multiplicities are divided by a power of two near its largest, which adding the parts undoes: no pass over all of them
first.

Products of 16-bit numbers: A = sum_j k_j^T (m_j v_j) and G = sum_j k_j^T (m_j^2 k_j). What is rounded stands on the
right, so that its error is a part of q.k and small where q.k is; m k rounded would have an error as large as |q| |k|,
which ill-conditioned rows cannot bear.
Letters: B bags, K key heads, E head width.
"""

from __future__ import annotations

import triton
import triton.language as tl

from flashsign.triton.common.device_functions import bag_rows, power_of_two


@triton.jit
def rows_of_program(rows, BLOCK: tl.constexpr):
    """First and last of the rows that this program (its first axis counts parts) takes; whole blocks."""
    part = tl.program_id(0)
    size = tl.cdiv(tl.cdiv(rows, tl.num_programs(0)), BLOCK) * BLOCK
    return part * size, tl.minimum((part + 1) * size, rows)


@triton.jit
def sum_keys(
    k, v, multiplicity, offsets, parts, scales,
    k_bag, k_head, k_row,
    v_bag, v_head, v_row,
    m_bag, m_head,
    rows, key_heads,
    E: tl.constexpr, E_PAD: tl.constexpr, BLOCK: tl.constexpr, LOOK: tl.constexpr, STAGES: tl.constexpr,
    PRECISION: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Program (part, head, bag) -> parts [parts, B, K, 2, E_PAD, E_PAD], A and G of its keys, and their scale."""
    head, bag = tl.program_id(1), tl.program_id(2)
    first, keys, index = bag_rows(bag, offsets, rows, PACKED)
    begin, last = rows_of_program(keys, BLOCK)
    k += index.to(tl.int64) * k_bag + head.to(tl.int64) * k_head
    v += index.to(tl.int64) * v_bag + head.to(tl.int64) * v_head
    multiplicity += index.to(tl.int64) * m_bag + head.to(tl.int64) * m_head + first

    peak = tl.zeros([LOOK], tl.float32)
    for start in range(begin, last, LOOK):
        key = start + tl.arange(0, LOOK)
        peak = tl.maximum(peak, tl.load(multiplicity + key, mask=key < last, other=0.0))
    largest = tl.max(peak)
    scale = power_of_two(largest)

    column = tl.arange(0, E_PAD)
    a = tl.zeros([E_PAD, E_PAD], tl.float32)
    g = tl.zeros([E_PAD, E_PAD], tl.float32)
    for start in tl.range(begin, last, BLOCK, num_stages=STAGES):
        key = start + tl.arange(0, BLOCK)
        m = tl.load(multiplicity + key, mask=key < last, other=0.0)
        # Absent keys are never read: they may hold NaN.
        here = (m != 0)[:, None] & (column < E)[None, :]
        row = (first + key).to(tl.int64)[:, None]
        k_tile = tl.load(k + row * k_row + column[None, :], mask=here, other=0.0)
        v_tile = tl.load(v + row * v_row + column[None, :], mask=here, other=0.0)
        m *= scale
        values = (m[:, None] * v_tile.to(tl.float32)).to(v_tile.dtype)
        squares = ((m * m)[:, None] * k_tile.to(tl.float32)).to(k_tile.dtype)
        a = tl.dot(k_tile.T, values, a, input_precision=PRECISION)
        g = tl.dot(k_tile.T, squares, g, input_precision=PRECISION)

    square = tl.arange(0, E_PAD)[:, None] * E_PAD + column[None, :]
    slot = (tl.program_id(0) * tl.num_programs(2) + bag) * key_heads + head
    parts += slot.to(tl.int64) * (2 * E_PAD * E_PAD)
    tl.store(parts + square, a)
    tl.store(parts + E_PAD * E_PAD + square, g)
    # A part without keys has no scale of its own.
    tl.store(scales + slot, tl.where(largest > 0, scale, float("inf")))


@triton.jit
def add_parts(
    parts, scales, out, totals, row_count,
    count,
    E_PAD: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """parts [count, B K, 2, E_PAD, E_PAD] -> their sum, out [B K, 2, E_PAD, E_PAD]. Sets row_count [B K] to zeros.

    Program (block of BLOCK entries, B K). Its place in totals [B K, 4, blocks] float32: of `scales` [count, B K] the
    smallest (SCALED: then the sum is in that scale) or the largest, and of the block's entries the largest of the
    first square, the largest of the second, and the second's trace.
    """
    block, bag, bags = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    BLOCKS: tl.constexpr = E_PAD * E_PAD // BLOCK
    part = tl.arange(0, PARTS)
    own = tl.load(scales + part * bags + bag, mask=part < count, other=float("inf") if SCALED else 0.0)
    if SCALED:
        common = tl.min(own)
        common = tl.where(common < float("inf"), common, 1.0)
    else:
        common = tl.max(own)
    entry = block * BLOCK + tl.arange(0, BLOCK)
    a = tl.zeros([BLOCK], tl.float32)
    g = tl.zeros([BLOCK], tl.float32)
    for number in tl.range(0, count, num_stages=4):
        squares = parts + (number * bags + bag).to(tl.int64) * (2 * E_PAD * E_PAD)
        factor = common / tl.load(scales + number * bags + bag) if SCALED else 1.0
        a += factor * tl.load(squares + entry)
        g += factor * factor * tl.load(squares + E_PAD * E_PAD + entry)
    out += bag.to(tl.int64) * (2 * E_PAD * E_PAD)
    tl.store(out + entry, a)
    tl.store(out + E_PAD * E_PAD + entry, g)
    totals += bag * (4 * BLOCKS)
    tl.store(totals + block, common)
    tl.store(totals + BLOCKS + block, tl.max(tl.abs(a)))
    tl.store(totals + 2 * BLOCKS + block, tl.max(tl.abs(g)))
    tl.store(totals + 3 * BLOCKS + block, tl.sum(tl.where(entry // E_PAD == entry % E_PAD, g, 0.0)))
    tl.store(row_count + bag, 0)


@triton.jit
def read_totals(totals, bag, E_PAD: tl.constexpr, BLOCK: tl.constexpr):
    """What add_parts wrote of one bag and key head: scale, trace, and units that bring both squares near one."""
    BLOCKS: tl.constexpr = E_PAD * E_PAD // BLOCK
    totals += bag * (4 * BLOCKS)
    block = tl.arange(0, BLOCKS)
    largest_a = tl.max(tl.load(totals + BLOCKS + block))
    largest_g = tl.max(tl.load(totals + 2 * BLOCKS + block))
    trace = tl.sum(tl.load(totals + 3 * BLOCKS + block))
    return tl.load(totals), trace, power_of_two(largest_a), power_of_two(largest_g)


@triton.jit
def high_precision_product(
    x, row, x_row, there, square, unit,
    E: tl.constexpr, E_PAD: tl.constexpr, TRANSPOSED: tl.constexpr, PRECISION: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """x square unit (TRANSPOSED: x square^T unit) to float32's accuracy, where one 16-bit product is not enough.

    x: pointer to rows of any width; row [rows, 1], and which of them are `there` [rows]; square [E_PAD, E_PAD] float32.
    HALF: the square enters as the sum of two 16-bit squares.
    """
    WIDTH: tl.constexpr = E_PAD if E_PAD < 32 else 32
    column = tl.arange(0, E_PAD)
    total = tl.zeros([there.shape[0], E_PAD], tl.float32)
    for begin in range(0, E_PAD, WIDTH):
        some = begin + tl.arange(0, WIDTH)
        piece = tl.load(x + row * x_row + some[None, :], mask=there[:, None] & (some < E)[None, :], other=0.0)
        if TRANSPOSED:
            slab = tl.load(square + column[None, :] * E_PAD + some[:, None]) * unit
        else:
            slab = tl.load(square + some[:, None] * E_PAD + column[None, :]) * unit
        if HALF:
            high = slab.to(piece.dtype)
            total = tl.dot(piece, high, total)
            total = tl.dot(piece, (slab - high.to(tl.float32)).to(piece.dtype), total)
        else:
            total = tl.dot(piece, slab, total, input_precision=PRECISION)
    return total


@triton.jit
def rounded_squares(squares, a_unit, g_unit, dtype: tl.constexpr, E_PAD: tl.constexpr):
    """Two squares [2, E_PAD, E_PAD] in units that bring them near one, each rounded to 16 bits."""
    column = tl.arange(0, E_PAD)
    square = column[:, None] * E_PAD + column[None, :]
    a = (tl.load(squares + square) * a_unit).to(dtype)
    g = (tl.load(squares + E_PAD * E_PAD + square) * g_unit).to(dtype)
    return a, g


@triton.jit
def tile_rows(start, last, first, BLOCK: tl.constexpr):
    """Of the tile that begins at row `start` of a bag: its rows, which are there, and their numbers in the tensor."""
    row = start + tl.arange(0, BLOCK)
    return row, row < last, (first + row).to(tl.int64)[:, None]


@triton.jit
def query_part(query_offsets, queries_all, heads, key_heads, QUERIES: tl.constexpr, PACKED: tl.constexpr):
    """Of program (part, head, bag): head, bag, key head, query heads of a key head, the bag's index and first row, how
    many queries it has, and the first and last that the program does."""
    head, bag = tl.program_id(1), tl.program_id(2)
    group = heads // key_heads
    key_head = head // group
    first, queries, index = bag_rows(bag, query_offsets, queries_all, PACKED)
    begin, last = rows_of_program(queries, QUERIES)
    return head, bag, key_head, group, index, first, queries, begin, last
