"""Spherical attention as a stream over keys: two running sums a query, no rescaling.

    s_ij = q_i.k'_j
    u_i  = sum_j s_ij v_j
    z_i  = sum_j s_ij^2
    o_i  = u_i / sqrt(z_i + eps |q_i|^2 t + tiny)

Nothing has the size queries x keys.
Keys are scaled by their multiplicity before (scaled_keys). Rows beyond the end of a bag read as
zeros and add nothing, so the loop has no masks. In torch operations: flashsign.eager.streaming.
"""

from __future__ import annotations

import triton
import triton.language as tl

from flashsign.triton.common.device_functions import (
    bag_rows,
    inverse_norm,
    of_head,
    program_tile,
    store_rows,
)
from flashsign.triton.streaming.scaled_keys import bag_totals, load_present


@triton.jit
def stream_forward(
    q,
    k,
    v,
    multiplicity,
    offsets,
    query_offsets,
    schedule,
    totals,
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
    parts,
    gap,
    eps,
    E: tl.constexpr,
    E_PAD: tl.constexpr,
    V: tl.constexpr,
    V_PAD: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
    PACKED: tl.constexpr,
):
    """A program does one tile of queries. q, k (scaled), v: descriptors. Writes o, and inverse [C',
    H, rows]: 1 / n.
    """
    bag, head, start = program_tile(schedule, tiles, heads, QUERIES, PACKED)
    if bag < 0:
        return
    first_query, queries, index = bag_rows(bag, query_offsets, queries_all, PACKED)
    first_key, keys, _ = bag_rows(bag, offsets, keys_all, PACKED)
    key_head = head // (heads // key_heads)
    first_scaled = first_key + bag * gap

    rows = q.load([index, head, first_query + start, 0]).reshape(QUERIES, E_PAD)
    # |q|^2 is kept in memory meanwhile, because the loop is short of registers.
    query = start + tl.arange(0, QUERIES)
    inverse += (index.to(tl.int64) * heads + head) * queries_all + first_query
    wide = rows.to(tl.float32)
    tl.store(inverse + query, tl.sum(wide * wide, 1), mask=query < queries)

    u = tl.zeros([QUERIES, V_PAD], tl.float32)
    z = tl.zeros([QUERIES], tl.float32)
    for begin in tl.range(0, keys, KEYS, num_stages=STAGES):
        k_tile = k.load([index, key_head, first_scaled + begin, 0]).reshape(KEYS, E_PAD)
        s = tl.dot(rows, k_tile.T, input_precision=PRECISION)
        z += tl.sum(s * s, 1)
        v_tile = v.load([index, key_head, first_key + begin, 0]).reshape(KEYS, V_PAD)
        u = tl.dot(s.to(v_tile.dtype), v_tile, u, input_precision=PRECISION)

    # An absent key whose v is NaN makes u NaN. That is rare, so the loop does not check for it and
    # is run again then.
    if tl.sum(tl.where(u == u, 0, 1)) > 0:
        multiplicity = of_head(multiplicity, index, key_head, m_bag, m_head) + first_key
        place = (index, key_head, first_scaled, first_key, keys)
        u = sum_without_absent_keys(rows, (k, v, multiplicity), place, V_PAD, KEYS, PRECISION)

    _, t = bag_totals(totals, parts, bag, key_head, key_heads)
    q_squared = tl.load(inverse + query, mask=query < queries, other=0.0)
    inverse_n = inverse_norm(z, eps * q_squared * t)
    tl.store(inverse + query, inverse_n, mask=query < queries)
    column = tl.arange(0, V_PAD)
    o = of_head(o, index, head, o_bag, o_head)
    row = (first_query + query).to(tl.int64)[:, None]
    store_rows(o, row, o_row, query < queries, column, V, u * inverse_n[:, None])


@triton.jit
def sum_without_absent_keys(
    rows, tensors, place, V_PAD: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr
):
    """u [rows, V_PAD] of a tile of queries, without the values of absent keys. Arguments as in
    load_present.
    """
    u = tl.zeros([rows.shape[0], V_PAD], tl.float32)
    for begin in tl.range(0, place[4], KEYS, num_stages=1):
        k_tile, v_tile = load_present(tensors, place, begin, rows.shape[1], V_PAD, KEYS)
        s = tl.dot(rows, k_tile.T, input_precision=PRECISION)
        u = tl.dot(s.to(v_tile.dtype), v_tile, u, input_precision=PRECISION)
    return u
