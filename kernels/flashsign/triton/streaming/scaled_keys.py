"""Keys times their multiplicities, k' = m k, once for all queries, and what the keys of a bag sum to.

Multiplicities are divided by a power of two near the bag's largest first: the attention is the same to the last bit
(flashsign.attention), and k' is in range. Absent keys are zeros, whatever they held.
Letters: B bags, K key heads, E head width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents

from flashsign.triton.common.device_functions import bag_rows, power_of_two
from flashsign.triton.common.launch import start, starts_early
from flashsign.triton.common.layout import GAP, cdiv, multiplicity_strides, strides, with_gaps
from flashsign.tuning.device import multiprocessor_count
from flashsign.tuning.head_width import padded_width

MOST_PARTS = tl.constexpr(256)


@triton.jit
def scaled_keys(
    k, multiplicity, offsets, out, totals,
    k_bag, k_head, k_row,
    m_bag, m_head,
    out_bag, out_head, out_row,
    rows, key_heads, gap,
    E: tl.constexpr, E_PAD: tl.constexpr, BLOCK: tl.constexpr, LOOK: tl.constexpr,
    PACKED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Program (part, head, bag) writes its keys' k' and its sum of |k'|^2, float32 [B, K, 1 + MOST_PARTS].

    The first of these numbers is the scale of the multiplicities. Packed bags lie `gap` rows apart in out, which has
    zeros between: a tile that reads past its bag's end reads zeros, in packed bags as in dense ones.
    EARLY: the next kernel may begin meanwhile, and waits where it needs these numbers.
    """
    if EARLY:
        gdc_launch_dependents()
    part, parts, head, bag = tl.program_id(0), tl.num_programs(0), tl.program_id(1), tl.program_id(2)
    first, keys, index = bag_rows(bag, offsets, rows, PACKED)
    size = tl.cdiv(tl.cdiv(keys, parts), BLOCK) * BLOCK
    last = tl.minimum((part + 1) * size, keys)
    multiplicity += index.to(tl.int64) * m_bag + head.to(tl.int64) * m_head + first
    k += index.to(tl.int64) * k_bag + head.to(tl.int64) * k_head
    out += index.to(tl.int64) * out_bag + head.to(tl.int64) * out_head
    # The first keys are on their way while the largest multiplicity is looked for, the next while these are scaled.
    key = part * size + tl.arange(0, BLOCK)
    column = tl.arange(0, E_PAD)[None, :]
    there = (key < last)[:, None] & (column < E)
    row = (first + key).to(tl.int64)[:, None]
    m = tl.load(multiplicity + key, mask=key < last, other=0.0)
    k_tile = tl.load(k + row * k_row + column, mask=there, other=0.0)
    largest = tl.zeros([LOOK], tl.float32)
    for begin in range(0, keys, LOOK):
        at = begin + tl.arange(0, LOOK)
        largest = tl.maximum(largest, tl.load(multiplicity + at, mask=at < keys, other=0.0))
    scale = power_of_two(tl.max(largest))

    squares = tl.zeros([BLOCK], tl.float32)
    for _ in range(part * size, last, BLOCK):
        here, to = there, out + (row + bag.to(tl.int64) * gap) * out_row + column
        scaled = tl.where((m != 0)[:, None], (m * scale)[:, None] * k_tile.to(tl.float32), 0.0)
        key += BLOCK
        there = (key < last)[:, None] & (column < E)
        row = (first + key).to(tl.int64)[:, None]
        m = tl.load(multiplicity + key, mask=key < last, other=0.0)
        k_tile = tl.load(k + row * k_row + column, mask=there, other=0.0)
        squares += tl.sum(scaled * scaled, 1)
        tl.store(to, scaled.to(out.dtype.element_ty), mask=here)
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


@triton.jit
def load_present(
    k, v, multiplicity, begin, keys, index, key_head, first_scaled, first_key, E_PAD: tl.constexpr, KEYS: tl.constexpr
):
    """Tiles of keys (scaled) and values from `begin` on; the values of absent keys are zeros, whatever they held.

    k, v: descriptors; multiplicity: pointer to the bag's first.
    """
    key = begin + tl.arange(0, KEYS)
    m = tl.load(multiplicity + key, mask=key < keys, other=0.0)
    k_tile = k.load([index, key_head, first_scaled + begin, 0]).reshape(KEYS, E_PAD)
    v_tile = v.load([index, key_head, first_key + begin, 0]).reshape(KEYS, E_PAD)
    return k_tile, tl.where((m == 0)[:, None], 0.0, v_tile)


@dataclass(frozen=True)
class ScaledKeys:
    """k' as rows [C', K, rows (+ gaps), E], and totals [B, K, 1 + MOST_PARTS] in `parts` parts: see scaled_keys.

    gap: rows of zeros behind each packed bag, 0 for dense ones.
    """

    rows: Tensor
    totals: Tensor
    parts: int
    gap: int

    @classmethod
    def of(cls, k: Tensor, m: Tensor, offsets: Tensor | None) -> ScaledKeys:
        """k [C', K, M, E], m [C', 1 or K, M] float32; packed bags have C' = 1 and offsets [bags + 1]."""
        first, heads, rows, width = k.shape
        bags, gap = (first, 0) if offsets is None else (len(offsets) - 1, GAP)
        block = max(16, 8192 // padded_width(width))
        # Every program reads all multiplicities of its bag: so many programs as fill the device, and no more.
        filling = cdiv(4 * multiprocessor_count(k.device), max(1, bags * heads))
        parts = max(1, min(MOST_PARTS.value, cdiv(rows, block), filling))
        scaled = with_gaps(k, bags, gap)
        totals = torch.empty(bags, heads, 1 + MOST_PARTS.value, device=k.device)
        start(
            scaled_keys,
            (parts, heads, bags),
            tensors={"k": k, "multiplicity": m, "offsets": offsets, "out": scaled, "totals": totals},
            numbers={
                **strides(k=k),
                **multiplicity_strides(m),
                **strides(out=scaled),
                "rows": rows,
                "key_heads": heads,
                "gap": gap,
            },
            constants={
                "E": width,
                "E_PAD": padded_width(width),
                "BLOCK": block,
                "LOOK": max(128, min(4096, padded_width(rows))),
                "PACKED": offsets is not None,
                "EARLY": starts_early(k),
            },
            num_warps=8,
        )
        return cls(scaled, totals, parts, gap)
