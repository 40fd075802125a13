"""Keys times their multiplicities, k' = m k, once for all queries, and what the keys of a bag sum to.

Multiplicities are divided by a power of two near the bag's largest first: the attention is the same to the last bit
(flashsign.attention), and k' is in range. Absent keys are zeros, whatever they held.
Letters: B bags, K key heads, E head width.
"""

from __future__ import annotations

import triton
import triton.language as tl

from flashsign.triton.tiles import bag_rows, power_of_two

MOST_PARTS = tl.constexpr(256)


@triton.jit
def scaled_keys(
    k, multiplicity, offsets, out, totals,
    k_bag, k_head, k_row, m_bag, m_head, out_bag, out_head, out_row, rows, key_heads, bags, gap,
    E: tl.constexpr, E_PAD: tl.constexpr, BLOCK: tl.constexpr, LOOK: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Program (part, head, bag) writes its keys' k' and its sum of |k'|^2, float32 [B, K, 1 + MOST_PARTS].

    The first of these numbers is the scale of the multiplicities. Packed bags lie `gap` rows apart in out, which has
    zeros between: a tile that reads past its bag's end reads zeros, in packed bags as in dense ones.
    """
    part, parts, head, bag = tl.program_id(0), tl.num_programs(0), tl.program_id(1), tl.program_id(2)
    first, keys, index = bag_rows(bag, offsets, rows, PACKED)
    multiplicity += index.to(tl.int64) * m_bag + head.to(tl.int64) * m_head + first
    largest = tl.zeros([LOOK], tl.float32)
    for start in range(0, keys, LOOK):
        key = start + tl.arange(0, LOOK)
        largest = tl.maximum(largest, tl.load(multiplicity + key, mask=key < keys, other=0.0))
    scale = power_of_two(tl.max(largest))

    share = tl.cdiv(tl.cdiv(keys, parts), BLOCK) * BLOCK
    last = tl.minimum((part + 1) * share, keys)
    k += index.to(tl.int64) * k_bag + head.to(tl.int64) * k_head
    out += index.to(tl.int64) * out_bag + head.to(tl.int64) * out_head
    column = tl.arange(0, E_PAD)
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(part * share, last, BLOCK):
        key = start + tl.arange(0, BLOCK)
        m = tl.load(multiplicity + key, mask=key < keys, other=0.0) * scale
        row = (first + key).to(tl.int64)[:, None]
        tile = tl.load(k + row * k_row + column[None, :], mask=(m != 0)[:, None] & (column < E)[None, :], other=0.0)
        scaled = m[:, None] * tile.to(tl.float32)
        squares += tl.where(key < last, tl.sum(scaled * scaled, 1), 0.0)
        to = out + (row + bag.to(tl.int64) * gap) * out_row + column[None, :]
        tl.store(to, scaled.to(out.dtype.element_ty), mask=(key < last)[:, None] & (column < E)[None, :])
    totals += (bag * key_heads + head).to(tl.int64) * (1 + MOST_PARTS)
    if part == 0:
        tl.store(totals, scale)
    tl.store(totals + 1 + part, tl.sum(squares))


@triton.jit
def bag_totals(totals, parts, bag, head, key_heads):
    """Scale of a bag's multiplicities, and t = sum |k'|^2, its parts added in one order."""
    totals += (bag * key_heads + head).to(tl.int64) * (1 + MOST_PARTS)
    part = tl.arange(0, MOST_PARTS)
    return tl.load(totals), tl.sum(tl.load(totals + 1 + part, mask=part < parts, other=0.0))
