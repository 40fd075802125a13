"""NaN repair: rows of an output that are NaN are computed again, without the values of absent keys.

The values of absent keys may be anything, and zero times NaN is NaN. The Hopper kernel has no
registers for a check and a second loop: where u is NaN, it sets the sign bit of 1 / n, also of 0,
as a mark. This kernel sums the tiles with such rows again, with zeros for the values of absent
keys. A NaN that comes from a present key stays. Nearly always no row is marked, and every program
ends at once.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_wait

from flashsign.attention.call import AttentionCall, pointers
from flashsign.triton.common.device_functions import (
    bag_rows,
    of_head,
    program_tile,
    store_rows,
)
from flashsign.triton.common.launch import start, starts_early
from flashsign.triton.common.layout import TileAssignment, descriptor
from flashsign.triton.streaming.scaled_keys import ScaledKeys
from flashsign.triton.streaming.stream_forward import sum_without_absent_keys
from flashsign.tuning.tables import NAN_REPAIR


@triton.jit
def repair_tiles(
    q,
    k,
    v,
    multiplicity,
    offsets,
    query_offsets,
    schedule,
    o,
    inverse,
    m_bag,
    m_head,
    o_bag,
    o_head,
    o_row,
    queries_all,
    keys_all,
    tiles,
    heads,
    key_heads,
    gap,
    E: tl.constexpr,
    E_PAD: tl.constexpr,
    V: tl.constexpr,
    V_PAD: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
    PACKED: tl.constexpr,
    EARLY: tl.constexpr,
):
    """A program does one tile of queries. q, k (scaled), v: descriptors. Writes o, and inverse
    without its marks.

    EARLY: the kernel begins before the previous one has ended, and waits for it.
    """
    if EARLY:
        gdc_wait()
    bag, head, start = program_tile(schedule, tiles, heads, QUERIES, PACKED)
    if bag < 0:
        return
    first_query, queries, index = bag_rows(bag, query_offsets, queries_all, PACKED)
    query = start + tl.arange(0, QUERIES)
    inverse += (index.to(tl.int64) * heads + head) * queries_all + first_query
    inverse_n = tl.load(inverse + query, mask=query < queries, other=0.0)
    if tl.sum(tl.where(inverse_n.to(tl.int32, bitcast=True) < 0, 1, 0)) == 0:
        return
    first_key, keys, _ = bag_rows(bag, offsets, keys_all, PACKED)
    key_head = head // (heads // key_heads)
    rows = q.load([index, head, first_query + start, 0]).reshape(QUERIES, E_PAD)
    multiplicity = of_head(multiplicity, index, key_head, m_bag, m_head) + first_key
    place = (index, key_head, first_key + bag * gap, first_key, keys)
    u = sum_without_absent_keys(rows, (k, v, multiplicity), place, V_PAD, KEYS, PRECISION)
    inverse_n = tl.abs(inverse_n)
    tl.store(inverse + query, inverse_n, mask=query < queries)
    column = tl.arange(0, V_PAD)
    o = of_head(o, index, head, o_bag, o_head)
    row = (first_query + query).to(tl.int64)[:, None]
    store_rows(o, row, o_row, query < queries, column, V, u * inverse_n[:, None])


def repair_rows(call: AttentionCall, keys: ScaledKeys, o: Tensor, inverse: Tensor) -> None:
    """Repair marked rows of o [C', H, N, V], and remove the marks of inverse [C', H, N]."""
    q, sizes = call.q, NAN_REPAIR
    tiles = TileAssignment.of(q.shape[2], q.shape[0], sizes.own, call.query_offsets)
    early = starts_early(q)
    start(
        repair_tiles,
        tiles.grid(q.shape[1]),
        {
            **call.arguments,
            **keys.arguments,
            **tiles.arguments,
            "q": descriptor(q, sizes.own),
            "k": descriptor(keys.rows, sizes.other),
            "v": descriptor(call.v, sizes.other),
            **pointers(o=o),
            "inverse": inverse,
            "QUERIES": sizes.own,
            "KEYS": sizes.other,
            "EARLY": early,
        },
        num_warps=sizes.warps,
        launch_pdl=early,
    )
