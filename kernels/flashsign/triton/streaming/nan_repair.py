"""Rows of an output that are no numbers, looked at again, after a kernel that has no room for a second look itself.

The values of absent keys may be anything, and zero times NaN is NaN. A kernel that does not look leaves 1 / n less than
zero (-0 too) where u is no number; here the tiles with such rows are summed again, neighbours included, absent keys'
values left out. What was broken by a present key is as broken as before. Nearly always nothing is, and every program
ends at once.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_wait

from flashsign.triton.common.device_functions import bag_rows, program_tile
from flashsign.triton.common.launch import Keys, Tiles, descriptor, head_stride, precision, start, starts_early, steps
from flashsign.triton.streaming.forward import careful_sum
from flashsign.tuning.tables import MEND, padded_width


@triton.jit
def mend_rows(
    q, k, v, multiplicity, offsets, query_offsets, schedule, o, inverse,
    m_bag, m_head, o_bag, o_head, o_row, queries_all, keys_all, tiles, heads, key_heads, gap,
    E: tl.constexpr, E_PAD: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    PRECISION: tl.constexpr, PACKED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """q, k (scaled), v: descriptors. Writes o, and the size of inverse. EARLY: begun before the last kernel ended."""
    if EARLY:
        gdc_wait()
    bag, head, start = program_tile(schedule, tiles, heads, QUERIES, PACKED)
    if bag < 0:
        return
    first_query, queries, index = bag_rows(bag, query_offsets, queries_all, PACKED)
    query = start + tl.arange(0, QUERIES)
    inverse += (index.to(tl.int64) * heads + head) * queries_all + first_query
    norm = tl.load(inverse + query, mask=query < queries, other=0.0)
    if tl.sum(tl.where(norm.to(tl.int32, bitcast=True) < 0, 1, 0)) == 0:
        return
    first_key, keys, _ = bag_rows(bag, offsets, keys_all, PACKED)
    key_head = head // (heads // key_heads)
    rows = q.load([index, head, first_query + start, 0]).reshape(QUERIES, E_PAD)
    present = multiplicity + index.to(tl.int64) * m_bag + key_head.to(tl.int64) * m_head + first_key
    scaled = first_key + bag * gap
    u = careful_sum(rows, k, v, index, key_head, scaled, first_key, keys, present, E_PAD, KEYS, PRECISION)
    norm = tl.abs(norm)
    tl.store(inverse + query, norm, mask=query < queries)
    column = tl.arange(0, E_PAD)
    o += index.to(tl.int64) * o_bag + head.to(tl.int64) * o_head
    at = (first_query + query).to(tl.int64)[:, None] * o_row + column[None, :]
    here = (query < queries)[:, None] & (column < E)[None, :]
    tl.store(o + at, (u * norm[:, None]).to(o.dtype.element_ty), mask=here)


def mend(
    q: Tensor, keys: Keys, v: Tensor, m: Tensor, offsets: Tensor | None, query_offsets: Tensor | None,
    o: Tensor, inverse: Tensor,
) -> None:  # fmt: skip
    """o like q and inverse [C', H, N], as stream.forward gives them, in place."""
    tiles, early = Tiles.of(q.shape[2], q.shape[0], MEND.own, query_offsets), starts_early(q)
    start(
        mend_rows, tiles.grid(q.shape[1]),
        (descriptor(q, MEND.own), descriptor(keys.rows, MEND.other), descriptor(v, MEND.other),
         m, offsets, query_offsets, tiles.schedule, o, inverse),
        (m.stride(0), head_stride(m), *steps(o), q.shape[2], v.shape[2], tiles.count, q.shape[1], v.shape[1], keys.gap),
        {"E": q.shape[-1], "E_PAD": padded_width(q.shape[-1]), "QUERIES": MEND.own, "KEYS": MEND.other,
         "PRECISION": precision(q.dtype), "PACKED": offsets is not None, "EARLY": early},
        num_warps=MEND.warps, launch_pdl=early,
    )  # fmt: skip
