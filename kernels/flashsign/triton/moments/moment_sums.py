"""The moments of a bag's keys, A and G, by one pass over k, v and m, and what the kernels of
moments share.

    A = sum_j k'_j^T v_j      G = sum_j k'_j^T k'_j      k' = m k

Each program sums a part of the keys, and the parts are added in a fixed order. The multiplicities
of a part are divided by a power of two near the part's largest, which is undone where parts are
added, so no pass over all multiplicities has to come first.

Products of 16-bit numbers are formed as A = sum_j k_j^T (m_j v_j) and G = sum_j k_j^T (m_j^2 k_j).
The rounded factor is on the right, so its error is proportional to q.k and small where q.k is
small. The error of a rounded m k would be proportional to |q| |k|, too much for ill-conditioned
rows. In narrow heads few keys may leave a direction empty, and queries along it have norms so small
that this error of G counts: there what was rounded away is added.

Letters: B bags, K key heads, E head width.
"""

from __future__ import annotations

import triton
import triton.language as tl

from flashsign.triton.common.device_functions import (
    bag_rows,
    load_rows,
    of_head,
    power_of_two,
)

NARROW = tl.constexpr(48)  # heads


@triton.jit
def rows_of_program(rows, BLOCK: tl.constexpr):
    """Begin and end of the rows that this program takes, in whole blocks; axis 0 of the grid counts
    parts.
    """
    part = tl.program_id(0)
    size = tl.cdiv(tl.cdiv(rows, tl.num_programs(0)), BLOCK) * BLOCK
    return part * size, tl.minimum((part + 1) * size, rows)


@triton.jit
def sum_keys(
    k,
    v,
    multiplicity,
    offsets,
    parts,
    scales,
    k_bag,
    k_head,
    k_row,
    v_bag,
    v_head,
    v_row,
    m_bag,
    m_head,
    keys_all,
    key_heads,
    E: tl.constexpr,
    E_PAD: tl.constexpr,
    V: tl.constexpr,
    V_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
    M_BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
    PACKED: tl.constexpr,
):
    """Program (part, key head, bag) writes A and G of its keys to parts
    [parts, B, K, E_PAD V_PAD + E_PAD E_PAD], and the scale of its multiplicities to scales
    [parts, B, K]. M_BLOCK: multiplicities read at once to find the largest.
    """
    head, bag = tl.program_id(1), tl.program_id(2)
    first, keys, index = bag_rows(bag, offsets, keys_all, PACKED)
    begin, last = rows_of_program(keys, BLOCK)
    k = of_head(k, index, head, k_bag, k_head)
    v = of_head(v, index, head, v_bag, v_head)
    multiplicity = of_head(multiplicity, index, head, m_bag, m_head) + first

    most = tl.zeros([M_BLOCK], tl.float32)
    for start in range(begin, last, M_BLOCK):
        key = start + tl.arange(0, M_BLOCK)
        most = tl.maximum(most, tl.load(multiplicity + key, mask=key < last, other=0.0))
    largest = tl.max(most)
    scale = power_of_two(largest)

    column, of_value = tl.arange(0, E_PAD), tl.arange(0, V_PAD)
    a = tl.zeros([E_PAD, V_PAD], tl.float32)
    g = tl.zeros([E_PAD, E_PAD], tl.float32)
    for start in tl.range(begin, last, BLOCK, num_stages=STAGES):
        key = start + tl.arange(0, BLOCK)
        m = tl.load(multiplicity + key, mask=key < last, other=0.0)
        # Absent keys are not read, because they may hold NaN.
        row = (first + key).to(tl.int64)[:, None]
        k_tile = load_rows(k, row, k_row, m != 0, column, E)
        v_tile = load_rows(v, row, v_row, m != 0, of_value, V)
        m *= scale
        m_v = (m[:, None] * v_tile.to(tl.float32)).to(v_tile.dtype)
        exact = (m * m)[:, None] * k_tile.to(tl.float32)
        m2_k = exact.to(k_tile.dtype)
        a = tl.dot(k_tile.T, m_v, a, input_precision=PRECISION)
        g = tl.dot(k_tile.T, m2_k, g, input_precision=PRECISION)
        if E <= NARROW and k_tile.dtype != tl.float32:
            g = tl.dot(k_tile.T, (exact - m2_k.to(tl.float32)).to(k_tile.dtype), g)

    slot = (tl.program_id(0) * tl.num_programs(2) + bag) * key_heads + head
    store_pair(parts, slot, a, g, E_PAD, V_PAD)
    # A part without keys has no scale: it gets infinity, which is never the smallest.
    tl.store(scales + slot, tl.where(largest > 0, scale, float("inf")))


@triton.jit
def store_pair(matrices, slot, a, g, E_PAD: tl.constexpr, V_PAD: tl.constexpr):
    """Write a [E_PAD, V_PAD] and g [E_PAD, E_PAD] as pair number `slot` of matrices."""
    row, of_value = tl.arange(0, E_PAD), tl.arange(0, V_PAD)
    matrices += slot.to(tl.int64) * (E_PAD * (V_PAD + E_PAD))
    tl.store(matrices + row[:, None] * V_PAD + of_value[None, :], a)
    tl.store(matrices + E_PAD * V_PAD + row[:, None] * E_PAD + row[None, :], g)


@triton.jit
def add_parts(
    parts,
    scales,
    out,
    totals,
    row_count,
    count,
    E_PAD: tl.constexpr,
    V_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
    SCALED: tl.constexpr,
):
    """Program (block of BLOCK entries, bag and key head) adds parts
    [count, B K, E_PAD V_PAD + E_PAD E_PAD] up.

    out [B K, E_PAD V_PAD + E_PAD E_PAD]: their sum. totals [B K, 4, blocks] float32, for each
        block: of scales [count, B K] the smallest (SCALED: the scale of the sum) or the largest,
            the largest entry of the first matrix and of the second, and the block's part of the
            second's trace. row_count [B K] is set to zero, for the lists of ill-conditioned rows.
    """
    block, bag, bags = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    BLOCKS: tl.constexpr = E_PAD * E_PAD // BLOCK
    part = tl.arange(0, PARTS)
    own = tl.load(
        scales + part * bags + bag, mask=part < count, other=float("inf") if SCALED else 0.0
    )
    if SCALED:
        common = tl.min(own)
        common = tl.where(common < float("inf"), common, 1.0)
    else:
        common = tl.max(own)
    entry = block * BLOCK + tl.arange(0, BLOCK)
    of_a = entry < E_PAD * V_PAD  # the first matrix is smaller where values are narrower than keys
    a = tl.zeros([BLOCK], tl.float32)
    g = tl.zeros([BLOCK], tl.float32)
    for number in tl.range(0, count, num_stages=4):
        matrices = parts + (number * bags + bag).to(tl.int64) * (E_PAD * (V_PAD + E_PAD))
        factor = common / tl.load(scales + number * bags + bag) if SCALED else 1.0
        a += factor * tl.load(matrices + entry, mask=of_a, other=0.0)
        g += factor * factor * tl.load(matrices + E_PAD * V_PAD + entry)
    out += bag.to(tl.int64) * (E_PAD * (V_PAD + E_PAD))
    tl.store(out + entry, a, mask=of_a)
    tl.store(out + E_PAD * V_PAD + entry, g)
    totals += bag * (4 * BLOCKS)
    tl.store(totals + block, common)
    tl.store(totals + BLOCKS + block, tl.max(tl.abs(a)))
    tl.store(totals + 2 * BLOCKS + block, tl.max(tl.abs(g)))
    tl.store(totals + 3 * BLOCKS + block, tl.sum(tl.where(entry // E_PAD == entry % E_PAD, g, 0.0)))
    tl.store(row_count + bag, 0)


@triton.jit
def read_totals(totals, bag, E_PAD: tl.constexpr, BLOCK: tl.constexpr):
    """From totals of one bag and key head: scale, trace, and units, powers of two that bring each
    matrix near one.
    """
    BLOCKS: tl.constexpr = E_PAD * E_PAD // BLOCK
    totals += bag * (4 * BLOCKS)
    block = tl.arange(0, BLOCKS)
    largest_a = tl.max(tl.load(totals + BLOCKS + block))
    largest_g = tl.max(tl.load(totals + 2 * BLOCKS + block))
    trace = tl.sum(tl.load(totals + 3 * BLOCKS + block))
    return tl.load(totals), trace, power_of_two(largest_a), power_of_two(largest_g)


@triton.jit
def high_precision_product(
    x,
    tile,
    matrix,
    unit,
    E: tl.constexpr,
    E_PAD: tl.constexpr,
    OUT: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    PRECISION: tl.constexpr,
    HALF: tl.constexpr,
):
    """x matrix unit (TRANSPOSED: x matrix^T unit) [rows, OUT] to float32's accuracy: the
    high-precision path.

    x: pointer to the rows [E] of a bag and head, and the step from row to row; tile: as of
        tile_rows; matrix: pointer to [E_PAD, OUT] float32, TRANSPOSED: [OUT, E_PAD]. HALF: the
        matrix is split into the sum of two 16-bit matrices.
    """
    WIDTH: tl.constexpr = E_PAD if E_PAD < 32 else 32
    rows, x_row = x
    _, there, row = tile
    column = tl.arange(0, OUT)
    total = tl.zeros([there.shape[0], OUT], tl.float32)
    for begin in range(0, E_PAD, WIDTH):
        some = begin + tl.arange(0, WIDTH)
        piece = load_rows(rows, row, x_row, there, some, E)
        if TRANSPOSED:
            slab = tl.load(matrix + column[None, :] * E_PAD + some[:, None]) * unit
        else:
            slab = tl.load(matrix + some[:, None] * OUT + column[None, :]) * unit
        if HALF:
            high = slab.to(piece.dtype)
            total = tl.dot(piece, high, total)
            total = tl.dot(piece, (slab - high.to(tl.float32)).to(piece.dtype), total)
        else:
            total = tl.dot(piece, slab, total, input_precision=PRECISION)
    return total


@triton.jit
def rounded_matrices(
    matrices, a_unit, g_unit, dtype: tl.constexpr, E_PAD: tl.constexpr, V_PAD: tl.constexpr
):
    """A pair of matrices (store_pair) times the units that bring them near one,
    rounded to 16 bits.
    """
    row, of_value = tl.arange(0, E_PAD), tl.arange(0, V_PAD)
    a = tl.load(matrices + row[:, None] * V_PAD + of_value[None, :]) * a_unit
    g = tl.load(matrices + E_PAD * V_PAD + row[:, None] * E_PAD + row[None, :]) * g_unit
    return a.to(dtype), g.to(dtype)


@triton.jit
def tile_rows(start, last, first, BLOCK: tl.constexpr):
    """The tile that begins at row `start` of a bag: its rows in the bag [BLOCK], their mask
    [BLOCK], and their rows in the tensor [BLOCK, 1]; last: end of the program's rows; first: the
    bag's first row.
    """
    row = start + tl.arange(0, BLOCK)
    return row, row < last, (first + row).to(tl.int64)[:, None]


@triton.jit
def query_part(
    query_offsets, queries_all, heads, key_heads, QUERIES: tl.constexpr, PACKED: tl.constexpr
):
    """Return the part of a program (part, head, bag): head, bag, key head, query heads of a key
    head, the bag's index, first row and number of queries, and begin and end of the program's
    queries.
    """
    head, bag = tl.program_id(1), tl.program_id(2)
    group = heads // key_heads
    key_head = head // group
    first, queries, index = bag_rows(bag, query_offsets, queries_all, PACKED)
    begin, last = rows_of_program(queries, QUERIES)
    return head, bag, key_head, group, index, first, queries, begin, last
