"""Ill-conditioned rows: queries whose norm float32 moments lose to rounding are streamed over the
keys instead.

They are the rows with rho = z / (|q|^2 t) below ILL_CONDITIONED, as float32 sums leave a relative
error of 0.13 2^-24 / rho in z. They are few and may be anywhere; the passes over queries list them
on the device, without synchronising with the host. Program (p, key head, bag) of P takes tiles p,
p + P, p + 2 P, ... of its bag's list. The order of a list differs from run to run, but no row's
result depends on it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from flashsign.triton.common.device_functions import bag_rows, inverse_norm, load_rows
from flashsign.triton.moments.moment_sums import read_totals

ILL_CONDITIONED = tl.constexpr(1e-4)
"""The bound on rho for 16-bit numbers. For float32, whose results must be more accurate, it is ten
times this.
"""


@triton.jit
def list_start(row_list, index, first, key_head, queries_all, heads, group):
    """Pointer to the list of a bag and key head, which has as many entries as these have rows.

    index * 0 + first is `first` as a tensor, also where bags are dense and it is the number 0.
    """
    before = (index.to(tl.int64) * heads + key_head * group) * queries_all
    return row_list + before + (index.to(tl.int64) * 0 + first) * group


@triton.jit
def append_rows(ill_conditioned, row_list, row_count, number):
    """Appends those of the numbers [rows] whose rows are ill_conditioned [rows] to the list of a
    bag and key head.
    """
    ill_conditioned = ill_conditioned.to(tl.int32)
    found = tl.sum(ill_conditioned)
    if found > 0:
        slot = tl.atomic_add(row_count, found) + tl.cumsum(ill_conditioned, 0) - 1
        tl.store(row_list + slot, number, mask=ill_conditioned != 0)


@triton.jit
def bag_of_list(
    keys,
    key_strides,
    offsets,
    query_offsets,
    totals,
    row_list,
    counts,
    E_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
    PACKED: tl.constexpr,
):
    """Of a program's bag and key head: its keys, for score_keys, its list, its rows, for
    listed_rows, its index, and t.

    keys: pointers k, v and multiplicity; key_strides: theirs, of bags and heads; counts:
        queries_all, keys_all, heads, key_heads.
    """
    k, v, multiplicity = keys
    k_bag, k_head, v_bag, v_head, m_bag, m_head = key_strides
    queries_all, keys_all, heads, key_heads = counts
    key_head, bag = tl.program_id(1), tl.program_id(2)
    group = heads // key_heads
    first_query, queries, index = bag_rows(bag, query_offsets, queries_all, PACKED)
    first, count, _ = bag_rows(bag, offsets, keys_all, PACKED)
    scale, t, _, _ = read_totals(totals, bag * key_heads + key_head, E_PAD, BLOCK)
    index, key_head = index.to(tl.int64), key_head.to(tl.int64)
    k += index * k_bag + key_head * k_head
    v += index * v_bag + key_head * v_head
    multiplicity += index * m_bag + key_head * m_head + first
    row_list = list_start(row_list, index, first_query, key_head, queries_all, heads, group)
    own_keys = (k, v, multiplicity, first, count, scale)
    return own_keys, row_list, (key_head * group, first_query, queries), index, t


@triton.jit
def listed_rows(row_list, tile, count, rows, QUERIES: tl.constexpr):
    """The mask of a list's tile [QUERIES], and the head and row of each entry, int64 [QUERIES];
    row_list: the bag's list, of `count` entries; rows: the bag's first head and query, and how many
    queries it has.
    """
    first_head, first, queries = rows
    slot = tile * QUERIES + tl.arange(0, QUERIES)
    number = tl.load(row_list + slot, mask=slot < count, other=0)
    member, row = number // queries, first + number % queries
    return slot < count, first_head + member.to(tl.int64), row.to(tl.int64)


@triton.jit
def pointers(x, index, head, row, x_bag, x_head, x_row, column):
    """Pointers [rows, E_PAD] to rows of x, each with its own head [rows] and row [rows]."""
    at = index * x_bag + head * x_head + row * x_row
    return x + at[:, None] + column[None, :]


@triton.jit
def score_keys(
    rows,
    keys,
    start,
    k_row,
    v_row,
    column,
    of_value,
    E: tl.constexpr,
    V: tl.constexpr,
    KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Scores [QUERIES, KEYS] of rows with the keys from `start` on, these keys [KEYS, E_PAD] and
    values, and their multiplicities [KEYS] times scale. Keys that are absent or beyond the bag's
    end are zeros, as are their values. keys: as of bag_of_list.
    """
    k, v, multiplicity, first, count, scale = keys
    key = start + tl.arange(0, KEYS)
    m = tl.load(multiplicity + key, mask=key < count, other=0.0)
    row = (first + key).to(tl.int64)[:, None]
    k_tile = load_rows(k, row, k_row, m != 0, column, E)
    v_tile = load_rows(v, row, v_row, m != 0, of_value, V)
    m = m * scale
    return tl.dot(rows, k_tile.T, input_precision=PRECISION) * m[None, :], k_tile, v_tile, m


@triton.jit
def attend_rows(
    q,
    k,
    v,
    multiplicity,
    offsets,
    query_offsets,
    totals,
    row_list,
    row_count,
    o,
    inverse,
    q_bag,
    q_head,
    q_row,
    k_bag,
    k_head,
    k_row,
    v_bag,
    v_head,
    v_row,
    m_bag,
    m_head,
    o_bag,
    o_head,
    o_row,
    queries_all,
    keys_all,
    heads,
    key_heads,
    eps,
    E: tl.constexpr,
    E_PAD: tl.constexpr,
    V: tl.constexpr,
    V_PAD: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
    PACKED: tl.constexpr,
):
    """Write o and 1 / n of the listed rows, over what attend_moments wrote."""
    key_head, bag = tl.program_id(1), tl.program_id(2)
    count = tl.load(row_count + bag * key_heads + key_head)
    if count == 0:
        return
    own_keys, row_list, own_rows, index, t = bag_of_list(
        (k, v, multiplicity),
        (k_bag, k_head, v_bag, v_head, m_bag, m_head),
        offsets,
        query_offsets,
        totals,
        row_list,
        (queries_all, keys_all, heads, key_heads),
        E_PAD,
        BLOCK,
        PACKED,
    )
    column, of_value = tl.arange(0, E_PAD), tl.arange(0, V_PAD)
    for tile in range(tl.program_id(0), tl.cdiv(count, QUERIES), tl.num_programs(0)):
        there, head, row = listed_rows(row_list, tile, count, own_rows, QUERIES)
        here = there[:, None] & (column < E)[None, :]
        of_values = there[:, None] & (of_value < V)[None, :]
        rows = tl.load(
            pointers(q, index, head, row, q_bag, q_head, q_row, column), mask=here, other=0.0
        )
        u = tl.zeros([QUERIES, V_PAD], tl.float32)
        z = tl.zeros([QUERIES], tl.float32)
        for start in range(0, own_keys[4], KEYS):
            s, _, v_tile, _ = score_keys(
                rows, own_keys, start, k_row, v_row, column, of_value, E, V, KEYS, PRECISION
            )
            z += tl.sum(s * s, 1)
            u = tl.dot(s.to(v_tile.dtype), v_tile, u, input_precision=PRECISION)
        wide = rows.to(tl.float32)
        inverse_n = inverse_norm(z, eps * tl.sum(wide * wide, 1) * t)
        to = pointers(o, index, head, row, o_bag, o_head, o_row, of_value)
        tl.store(to, (u * inverse_n[:, None]).to(o.dtype.element_ty), mask=of_values)
        tl.store(inverse + (index * heads + head) * queries_all + row, inverse_n, mask=there)


@triton.jit
def row_gradients(
    q,
    k,
    v,
    grad,
    o,
    multiplicity,
    inverse,
    offsets,
    query_offsets,
    totals,
    row_list,
    row_count,
    dq,
    q_bag,
    q_head,
    q_row,
    k_bag,
    k_head,
    k_row,
    v_bag,
    v_head,
    v_row,
    m_bag,
    m_head,
    grad_bag,
    grad_head,
    grad_row,
    o_bag,
    o_head,
    o_row,
    dq_bag,
    dq_head,
    dq_row,
    queries_all,
    keys_all,
    heads,
    key_heads,
    eps,
    E: tl.constexpr,
    E_PAD: tl.constexpr,
    V: tl.constexpr,
    V_PAD: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
    PACKED: tl.constexpr,
):
    """Write dq of the listed rows, over what query_gradients wrote.

    dq_i = (1 / n_i) sum_j (<do_i, v_j> - (s_ij / n_i) delta_i) k'_j - (delta_i / n_i^2) eps t q_i
    """
    key_head, bag = tl.program_id(1), tl.program_id(2)
    count = tl.load(row_count + bag * key_heads + key_head)
    if count == 0:
        return
    own_keys, row_list, own_rows, index, t = bag_of_list(
        (k, v, multiplicity),
        (k_bag, k_head, v_bag, v_head, m_bag, m_head),
        offsets,
        query_offsets,
        totals,
        row_list,
        (queries_all, keys_all, heads, key_heads),
        E_PAD,
        BLOCK,
        PACKED,
    )
    column, of_value = tl.arange(0, E_PAD), tl.arange(0, V_PAD)
    for tile in range(tl.program_id(0), tl.cdiv(count, QUERIES), tl.num_programs(0)):
        there, head, row = listed_rows(row_list, tile, count, own_rows, QUERIES)
        here = there[:, None] & (column < E)[None, :]
        of_values = there[:, None] & (of_value < V)[None, :]
        rows = tl.load(
            pointers(q, index, head, row, q_bag, q_head, q_row, column), mask=here, other=0.0
        )
        grads = tl.load(
            pointers(grad, index, head, row, grad_bag, grad_head, grad_row, of_value),
            mask=of_values,
            other=0.0,
        )
        outputs = tl.load(
            pointers(o, index, head, row, o_bag, o_head, o_row, of_value), mask=of_values, other=0.0
        )
        inverse_n = tl.load(
            inverse + (index * heads + head) * queries_all + row, mask=there, other=0.0
        )
        delta_over_n = tl.sum(grads.to(tl.float32) * outputs.to(tl.float32), 1) * inverse_n
        sums = tl.zeros([QUERIES, E_PAD], tl.float32)
        for start in range(0, own_keys[4], KEYS):
            s, k_tile, v_tile, m = score_keys(
                rows, own_keys, start, k_row, v_row, column, of_value, E, V, KEYS, PRECISION
            )
            ds = (
                tl.dot(grads, v_tile.T, input_precision=PRECISION) - s * delta_over_n[:, None]
            ) * m[None, :]
            sums = tl.dot(ds.to(k_tile.dtype), k_tile, sums, input_precision=PRECISION)
        sums = (sums - rows.to(tl.float32) * (eps * t * delta_over_n)[:, None]) * inverse_n[:, None]
        to = pointers(dq, index, head, row, dq_bag, dq_head, dq_row, column)
        tl.store(to, sums.to(dq.dtype.element_ty), mask=here)
