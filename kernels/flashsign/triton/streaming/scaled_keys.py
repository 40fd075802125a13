"""Keys times their multiplicities, k' = m k, once for all queries, and t = sum_j |k'_j|^2 of each
bag.

Multiplicities are first divided by a power of two near the bag's largest: that changes no bit of
the attention, and k' is in range. Absent keys become zeros, whatever they held.
Letters: B bags, K key heads, E head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents

from flashsign.attention.call import AttentionCall, pointers
from flashsign.triton.common.device_functions import (
    bag_rows,
    of_head,
    power_of_two,
)
from flashsign.triton.common.launch import start, starts_early
from flashsign.triton.common.layout import GAP, cdiv, with_gaps
from flashsign.tuning.block_sizes import padded_width
from flashsign.tuning.device import multiprocessor_count

MOST_PARTS = tl.constexpr(256)
"""The most programs that share the keys of a bag and key head."""


@triton.jit
def scaled_keys(
    k,
    multiplicity,
    offsets,
    out,
    totals,
    k_bag,
    k_head,
    k_row,
    m_bag,
    m_head,
    out_bag,
    out_head,
    out_row,
    keys_all,
    key_heads,
    gap,
    E: tl.constexpr,
    E_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
    M_BLOCK: tl.constexpr,
    PACKED: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Program (part, key head, bag) writes k' of its keys to out, and their sum of |k'|^2 to
    totals.

    totals [B, K, 1 + MOST_PARTS] float32: the scale of the multiplicities, then the sum of each
        part. In out, packed bags lie `gap` rows of zeros apart, so that a tile that reads past the
        end of its bag reads zeros, as in dense bags.
    M_BLOCK: multiplicities that are read at once to find the largest. EARLY: the next kernel may
        begin before this one has ended, and waits where it needs these numbers.
    """
    if EARLY:
        gdc_launch_dependents()
    part = tl.program_id(0)
    parts = tl.num_programs(0)
    head = tl.program_id(1)
    bag = tl.program_id(2)
    first, keys, index = bag_rows(bag, offsets, keys_all, PACKED)
    size = tl.cdiv(tl.cdiv(keys, parts), BLOCK) * BLOCK
    last = tl.minimum((part + 1) * size, keys)
    multiplicity = of_head(multiplicity, index, head, m_bag, m_head) + first
    k = of_head(k, index, head, k_bag, k_head)
    out = of_head(out, index, head, out_bag, out_head)
    # The first keys are loaded while the largest multiplicity is searched for, the next ones while
    # these are scaled.
    key = part * size + tl.arange(0, BLOCK)
    column = tl.arange(0, E_PAD)[None, :]
    there = (key < last)[:, None] & (column < E)
    row = (first + key).to(tl.int64)[:, None]
    m = tl.load(multiplicity + key, mask=key < last, other=0.0)
    k_tile = tl.load(k + row * k_row + column, mask=there, other=0.0)
    largest = tl.zeros([M_BLOCK], tl.float32)
    for begin in range(0, keys, M_BLOCK):
        at = begin + tl.arange(0, M_BLOCK)
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
    """The scale of a bag's multiplicities, and t = sum |k'|^2, whose parts are added in a fixed
    order.
    """
    totals += (bag * key_heads + head).to(tl.int64) * (1 + MOST_PARTS)
    part = tl.arange(0, MOST_PARTS)
    return tl.load(totals), tl.sum(tl.load(totals + 1 + part, mask=part < parts, other=0.0))


@triton.jit
def load_present(
    tensors, place, begin, E_PAD: tl.constexpr, V_PAD: tl.constexpr, KEYS: tl.constexpr
):
    """Tiles of scaled keys [KEYS, E_PAD] and of values [KEYS, V_PAD] from key `begin` on, zeros for
    values of absent keys.

    tensors: descriptors of scaled keys and of values, and a pointer to the multiplicity of the
    bag's first key; place: index and key head, the bag's first row among scaled keys and among
    values, and its number of keys.
    """
    k, v, multiplicity = tensors
    index, key_head, first_scaled, first_key, keys = place
    key = begin + tl.arange(0, KEYS)
    m = tl.load(multiplicity + key, mask=key < keys, other=0.0)
    k_tile = k.load([index, key_head, first_scaled + begin, 0]).reshape(KEYS, E_PAD)
    v_tile = v.load([index, key_head, first_key + begin, 0]).reshape(KEYS, V_PAD)
    return k_tile, tl.where((m == 0)[:, None], 0.0, v_tile)


@dataclass(frozen=True)
class ScaledKeys:
    """rows: k' [C', K, rows and gaps, E]; totals [B, K, 1 + MOST_PARTS], with the sums of `parts`
    parts: scaled_keys.

    gap: rows of zeros behind each packed bag, 0 for dense bags.
    """

    rows: Tensor
    totals: Tensor
    parts: int
    gap: int

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of the kernels that read them."""
        return {"totals": self.totals, "parts": self.parts, "gap": self.gap}

    @classmethod
    def of(cls, call: AttentionCall) -> ScaledKeys:
        """Return the scaled keys of a call."""
        k = call.k
        heads, rows = k.shape[1:3]
        bags, gap = call.bags, GAP if call.packed else 0
        block = max(16, 8192 // call.width)
        # Every program reads all multiplicities of its bag, so there are no more programs than fill
        # the device.
        filling = cdiv(4 * multiprocessor_count(k.device), max(1, bags * heads))
        parts = max(1, min(MOST_PARTS.value, cdiv(rows, block), filling))
        scaled = with_gaps(k, bags, gap)
        totals = torch.empty(bags, heads, 1 + MOST_PARTS.value, device=k.device)
        start(
            scaled_keys,
            (parts, heads, bags),
            {
                **call.arguments,
                **pointers(out=scaled),
                "totals": totals,
                "gap": gap,
                "BLOCK": block,
                "M_BLOCK": max(128, min(4096, padded_width(rows))),
                "EARLY": starts_early(k),
            },
            num_warps=8,
        )
        return cls(scaled, totals, parts, gap)
