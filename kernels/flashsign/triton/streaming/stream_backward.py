"""Gradients of the streamed attention for keys, values and multiplicities: a stream over queries.

1 / n_i is split into a power of two, which makes q~_i = q_i / 2^a_i exact, and a rest r_i,
1/2 <= r_i < 1:

    1 / n_i = r_i / 2^a_i
    q~_i    = q_i / 2^a_i
    do~_i   = r_i do_i
    w_ij    = q~_i.k'_j = s_ij / (n_i r_i)
    p_ij    = <do~_i, v_j>
    2 dt    = -sum_i eps |q_i|^2 delta_i / n_i^2
    dv_j    = sum_i w_ij do~_i
    dk'_j   = sum_i (p_ij - w_ij r_i^2 delta_i) q~_i + 2 dt k'_j

If q_i / n_i were rounded instead, the weight of a key that is alone in its bag would not be exactly
a sign, because n_i is the size of the score that was not rounded. A program keeps one tile of keys
and computes the scores transposed, w^T = K' Q~^T, as they are summed over queries: no accumulator
is ever transposed. dq: query_gradient. Equations: kernels/README.md, "Spherical attention".
"""

from __future__ import annotations

import triton
import triton.language as tl

from flashsign.triton.common.device_functions import (
    bag_rows,
    load_rows,
    multiple_of_four,
    not_finite,
    of_head,
    power_of_two,
    program_tile,
    store_rows,
    unit_of,
)
from flashsign.triton.streaming.scaled_keys import bag_totals


@triton.jit
def row_unit(t):
    """The factor by which q~ is stored: then its numbers are near one, and a weight, up to twice
    this, fits fp16.
    """
    return tl.minimum(0.5 * unit_of(t), 16384.0)


@triton.jit
def power_and_rest(inverse_n):
    """A power of two and r, 1/2 <= r < 1, with 1 / n = r / power. As r < 1, do~ = r do stays in the
    range of fp16.

    For 1 / n = 0, r is 1, by which callers can divide, and the power is not used: q~ of that row is
    zero.
    """
    power = power_of_two(inverse_n) * 0.5
    return power, tl.where(inverse_n > 0, inverse_n * power, 1.0)


@triton.jit
def scaled_queries(
    q,
    o,
    grad,
    inverse,
    schedule,
    query_offsets,
    totals,
    out,
    grads_out,
    delta,
    twice_dt,
    q_bag,
    q_head,
    q_row,
    o_bag,
    o_head,
    o_row,
    grad_bag,
    grad_head,
    grad_row,
    out_bag,
    out_head,
    out_row,
    grads_out_bag,
    grads_out_head,
    grads_out_row,
    delta_head,
    queries_all,
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
    PACKED: tl.constexpr,
):
    """A program does one tile of queries: writes q~ in row_unit to out, do~ to grads_out, delta and
    twice_dt.

    delta [C', heads, delta_head] float32 is r^2 <do, o> / unit, the factor of these rows' w in dk.
    In out, grads_out and delta, packed bags lie `gap` rows of zeros apart, and in delta a bag
    begins at a multiple of four.
    twice_dt [C', heads, rows] float32: the row's part of 2 dt, -eps <do, o> |q|^2 / n^2.
    """
    bag, head, start = program_tile(schedule, tiles, heads, QUERIES, PACKED)
    if bag < 0:
        return
    first, queries, index = bag_rows(bag, query_offsets, queries_all, PACKED)
    _, t = bag_totals(totals, parts, bag, head // (heads // key_heads), key_heads)
    query = start + tl.arange(0, QUERIES)
    column, of_value, there = tl.arange(0, E_PAD), tl.arange(0, V_PAD), query < queries
    row = (first + query).to(tl.int64)[:, None]
    index, head = index.to(tl.int64), head.to(tl.int64)
    rows = load_rows(of_head(q, index, head, q_bag, q_head), row, q_row, there, column, E)
    outputs = load_rows(of_head(o, index, head, o_bag, o_head), row, o_row, there, of_value, V)
    grad = of_head(grad, index, head, grad_bag, grad_head)
    grads = load_rows(grad, row, grad_row, there, of_value, V)
    at = (index * heads + head) * queries_all + first + query
    inverse_n = tl.load(inverse + at, mask=there, other=0.0)
    power, rest = power_and_rest(inverse_n)
    unit = row_unit(t)
    rows, grads = rows.to(tl.float32), grads.to(tl.float32)
    product = tl.sum(grads * outputs.to(tl.float32), 1)
    q_over_n = rows * inverse_n[:, None]
    tl.store(twice_dt + at, -eps * product * tl.sum(q_over_n * q_over_n, 1), mask=there)
    delta += (index * heads + head) * delta_head + multiple_of_four(first + bag.to(tl.int64) * gap)
    tl.store(delta + query, product * (rest * rest / unit), mask=there)
    row += bag.to(tl.int64) * gap
    q_tilde = rows * tl.where(inverse_n > 0, unit / power, 0.0)[:, None]
    out = of_head(out, index, head, out_bag, out_head)
    store_rows(out, row, out_row, there, column, E, q_tilde)
    grads_out = of_head(grads_out, index, head, grads_out_bag, grads_out_head)
    store_rows(grads_out, row, grads_out_row, there, of_value, V, grads * rest[:, None])


@triton.jit
def sum_of_bags(
    rows,
    query_offsets,
    out,
    queries_all,
    heads,
    key_heads,
    BLOCK: tl.constexpr,
    PACKED: tl.constexpr,
):
    """Program (key head, bag): sums rows [C', heads, queries_all] over a bag and the query heads of
    a key head.

    out [bags, K].
    """
    key_head, bag = tl.program_id(0), tl.program_id(1)
    first, queries, index = bag_rows(bag, query_offsets, queries_all, PACKED)
    group = heads // key_heads
    total = tl.zeros([BLOCK], tl.float32)
    for head in range(key_head * group, (key_head + 1) * group):
        row = rows + (index.to(tl.int64) * heads + head) * queries_all + first
        for start in range(0, queries, BLOCK):
            query = start + tl.arange(0, BLOCK)
            total += tl.load(row + query, mask=query < queries, other=0.0)
    tl.store(out + bag * key_heads + key_head, tl.sum(total))


@triton.jit
def key_gradients(
    q,
    k,
    scaled,
    v,
    grad,
    delta,
    multiplicity,
    twice_dt,
    offsets,
    query_offsets,
    schedule,
    totals,
    dk,
    dv,
    dm,
    m_bag,
    m_head,
    dk_bag,
    dk_head,
    dk_row,
    dv_bag,
    dv_head,
    dv_row,
    queries_all,
    keys_all,
    tiles,
    heads,
    key_heads,
    parts,
    gap,
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
    """A program does one tile of keys. q (q~), k, scaled (k'), v, grad (do~), delta: descriptors.

    twice_dt [bags, key heads]: 2 dt of each bag. Writes dk, dv, and dm [C', key heads, rows]
        float32.
    """
    bag, key_head, start = program_tile(schedule, tiles, key_heads, KEYS, PACKED)
    if bag < 0:
        return
    first_query, queries, index = bag_rows(bag, query_offsets, queries_all, PACKED)
    first_key, keys, _ = bag_rows(bag, offsets, keys_all, PACKED)
    scale, t = bag_totals(totals, parts, bag, key_head, key_heads)
    per_unit = 1.0 / row_unit(t)
    k_tile = scaled.load([index, key_head, first_key + bag * gap + start, 0]).reshape(KEYS, E_PAD)
    v_tile = v.load([index, key_head, first_key + start, 0]).reshape(KEYS, V_PAD)

    group = heads // key_heads
    query_tiles = tl.cdiv(queries, QUERIES)
    dk_sum = tl.zeros([KEYS, E_PAD], tl.float32)
    dv_sum = tl.zeros([KEYS, V_PAD], tl.float32)
    for step in tl.range(0, group * query_tiles, num_stages=STAGES):
        head = key_head * group + step // query_tiles
        begin = step % query_tiles * QUERIES
        row = first_query + bag * gap + begin
        d = delta.load([index, head, multiple_of_four(first_query + bag * gap) + begin]).reshape(
            QUERIES
        )
        rows = q.load([index, head, row, 0]).reshape(QUERIES, E_PAD)
        grads = grad.load([index, head, row, 0]).reshape(QUERIES, V_PAD)
        w = tl.dot(k_tile, rows.T, input_precision=PRECISION)
        p = tl.dot(v_tile, grads.T, input_precision=PRECISION)
        ds = p - w * d[None, :]
        dv_sum = tl.dot(w.to(grads.dtype), grads, dv_sum, input_precision=PRECISION)
        dk_sum = tl.dot(ds.to(rows.dtype), rows, dk_sum, input_precision=PRECISION)

    key = start + tl.arange(0, KEYS)
    there = key < keys
    multiplicity = of_head(multiplicity, index, key_head, m_bag, m_head) + first_key
    m = tl.load(multiplicity + key, mask=there, other=0.0) * scale
    wide = k.load([index, key_head, first_key + start, 0]).reshape(KEYS, E_PAD).to(tl.float32)
    # An absent key has a derivative with respect to m too, unless it holds a NaN or an infinity.
    broken = (m == 0) & not_finite(wide, v_tile)
    wide = tl.where(broken[:, None], 0.0, wide)
    dk_sum = tl.where(
        broken[:, None],
        0.0,
        dk_sum * per_unit + tl.load(twice_dt + bag * key_heads + key_head) * m[:, None] * wide,
    )
    index, key_head = index.to(tl.int64), key_head.to(tl.int64)
    dm += (index * key_heads + key_head) * keys_all + first_key
    tl.store(dm + key, tl.sum(dk_sum * wide, 1) * scale, mask=there)
    column, of_value = tl.arange(0, E_PAD), tl.arange(0, V_PAD)
    row = (first_key + key).to(tl.int64)[:, None]
    dk = of_head(dk, index, key_head, dk_bag, dk_head)
    store_rows(dk, row, dk_row, there, column, E, dk_sum * m[:, None])
    dv = of_head(dv, index, key_head, dv_bag, dv_head)
    store_rows(dv, row, dv_row, there, of_value, V, dv_sum * per_unit)
