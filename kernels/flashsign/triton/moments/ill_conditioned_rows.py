"""The rows that moments cannot tell, streamed over the keys: few, wherever they lie, found and listed on the device.

They are those with rho = z / (|q|^2 t) below WEAK: float32 sums have z to about 0.13 2^-24 / rho of it.
Program (number, key head, bag) takes every so many-th tile of its bag's list. The order of a list is not the same from
run to run, but no row's result depends on it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from flashsign.triton.common.device_functions import bag_rows, inverse_norm
from flashsign.triton.moments.sums import read_totals

WEAK = tl.constexpr(1e-4)
"""For 16-bit numbers; float32's results are to be ten times better."""


@triton.jit
def list_of(weak_rows, index, first, key_head, queries_all, heads, group):
    """Where a bag and key head have their list: as many places as they have rows."""
    place = (index.to(tl.int64) * heads + key_head * group) * queries_all
    return weak_rows + place + (index.to(tl.int64) * 0 + first) * group


@triton.jit
def list_weak(weak, weak_rows, weak_count, number):
    """Appends the numbers [rows] of those that are weak; weak_rows, weak_count: of one bag and key head."""
    weak = weak.to(tl.int32)
    found = tl.sum(weak)
    if found > 0:
        slot = tl.atomic_add(weak_count, found) + tl.cumsum(weak, 0) - 1
        tl.store(weak_rows + slot, number, mask=weak != 0)


@triton.jit
def listed_rows(weak_rows, tile, count, first, queries, QUERIES: tl.constexpr):
    """Which rows of a list's tile are there, head in the group and row [QUERIES] of each; weak_rows: the bag's list."""
    slot = tile * QUERIES + tl.arange(0, QUERIES)
    number = tl.load(weak_rows + slot, mask=slot < count, other=0)
    return slot < count, number // queries, first + number % queries


@triton.jit
def load_keys(k, v, multiplicity, key, keys, first, scale, k_row, v_row, column, E: tl.constexpr):
    """Tiles of k and v, and the multiplicities; zeros for keys that are absent or not there."""
    m = tl.load(multiplicity + key, mask=key < keys, other=0.0)
    here = (m != 0)[:, None] & (column < E)[None, :]
    row = (first + key).to(tl.int64)[:, None]
    k_tile = tl.load(k + row * k_row + column[None, :], mask=here, other=0.0)
    v_tile = tl.load(v + row * v_row + column[None, :], mask=here, other=0.0)
    return k_tile, v_tile, m * scale


@triton.jit
def attend_weak(
    q, k, v, multiplicity, offsets, query_offsets, totals, weak_rows, weak_count, o, inverse,
    q_bag, q_head, q_row, k_bag, k_head, k_row, v_bag, v_head, v_row, m_bag, m_head, o_bag, o_head, o_row,
    queries_all, keys_all, heads, key_heads, eps,
    E: tl.constexpr, E_PAD: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """o and inverse of the listed rows, in place of what moments gave them."""
    key_head, bag = tl.program_id(1), tl.program_id(2)
    count = tl.load(weak_count + bag * key_heads + key_head)
    if count == 0:
        return
    group = heads // key_heads
    first_query, queries, index = bag_rows(bag, query_offsets, queries_all, PACKED)
    first, keys, _ = bag_rows(bag, offsets, keys_all, PACKED)
    scale, t, _, _ = read_totals(totals, bag * key_heads + key_head, E_PAD, BLOCK)
    index, key_head = index.to(tl.int64), key_head.to(tl.int64)
    k += index * k_bag + key_head * k_head
    v += index * v_bag + key_head * v_head
    multiplicity += index * m_bag + key_head * m_head + first
    weak_rows = list_of(weak_rows, index, first_query, key_head, queries_all, heads, group)
    column = tl.arange(0, E_PAD)
    for tile in range(tl.program_id(0), tl.cdiv(count, QUERIES), tl.num_programs(0)):
        there, member, row = listed_rows(weak_rows, tile, count, first_query, queries, QUERIES)
        head = key_head * group + member.to(tl.int64)
        row = row.to(tl.int64)
        here = there[:, None] & (column < E)[None, :]
        at = index * q_bag + head * q_head + row * q_row
        rows = tl.load(q + at[:, None] + column[None, :], mask=here, other=0.0)
        u = tl.zeros([QUERIES, E_PAD], tl.float32)
        z = tl.zeros([QUERIES], tl.float32)
        for start in range(0, keys, KEYS):
            key = start + tl.arange(0, KEYS)
            k_tile, v_tile, m = load_keys(k, v, multiplicity, key, keys, first, scale, k_row, v_row, column, E)
            s = tl.dot(rows, k_tile.T, input_precision=PRECISION) * m[None, :]
            z += tl.sum(s * s, 1)
            u = tl.dot(s.to(v_tile.dtype), v_tile, u, input_precision=PRECISION)
        wide = rows.to(tl.float32)
        n = inverse_norm(z, eps * tl.sum(wide * wide, 1) * t)
        at = index * o_bag + head * o_head + row * o_row
        tl.store(o + at[:, None] + column[None, :], (u * n[:, None]).to(o.dtype.element_ty), mask=here)
        tl.store(inverse + (index * heads + head) * queries_all + row, n, mask=there)


@triton.jit
def weak_query_gradients(
    q, k, v, grad, o, multiplicity, inverse, offsets, query_offsets, totals, weak_rows, weak_count, dq,
    q_bag, q_head, q_row, k_bag, k_head, k_row, v_bag, v_head, v_row, m_bag, m_head, g_bag, g_head, g_row,
    o_bag, o_head, o_row, dq_bag, dq_head, dq_row, queries_all, keys_all, heads, key_heads, eps,
    E: tl.constexpr, E_PAD: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """dq_i = (1 / n_i) sum_j (<do_i, v_j> - w_ij delta_i) k'_j - (delta_i / n_i^2) eps t q_i of the listed rows."""
    key_head, bag = tl.program_id(1), tl.program_id(2)
    count = tl.load(weak_count + bag * key_heads + key_head)
    if count == 0:
        return
    group = heads // key_heads
    first_query, queries, index = bag_rows(bag, query_offsets, queries_all, PACKED)
    first, keys, _ = bag_rows(bag, offsets, keys_all, PACKED)
    scale, t, _, _ = read_totals(totals, bag * key_heads + key_head, E_PAD, BLOCK)
    index, key_head = index.to(tl.int64), key_head.to(tl.int64)
    k += index * k_bag + key_head * k_head
    v += index * v_bag + key_head * v_head
    multiplicity += index * m_bag + key_head * m_head + first
    weak_rows = list_of(weak_rows, index, first_query, key_head, queries_all, heads, group)
    column = tl.arange(0, E_PAD)
    for tile in range(tl.program_id(0), tl.cdiv(count, QUERIES), tl.num_programs(0)):
        there, member, row = listed_rows(weak_rows, tile, count, first_query, queries, QUERIES)
        head = key_head * group + member.to(tl.int64)
        row = row.to(tl.int64)
        here = there[:, None] & (column < E)[None, :]
        at = index * q_bag + head * q_head + row * q_row
        rows = tl.load(q + at[:, None] + column[None, :], mask=here, other=0.0)
        at = index * g_bag + head * g_head + row * g_row
        grads = tl.load(grad + at[:, None] + column[None, :], mask=here, other=0.0)
        at = index * o_bag + head * o_head + row * o_row
        outputs = tl.load(o + at[:, None] + column[None, :], mask=here, other=0.0)
        n = tl.load(inverse + (index * heads + head) * queries_all + row, mask=there, other=0.0)
        curve = tl.sum(grads.to(tl.float32) * outputs.to(tl.float32), 1) * n
        sums = tl.zeros([QUERIES, E_PAD], tl.float32)
        for start in range(0, keys, KEYS):
            key = start + tl.arange(0, KEYS)
            k_tile, v_tile, m = load_keys(k, v, multiplicity, key, keys, first, scale, k_row, v_row, column, E)
            s = tl.dot(rows, k_tile.T, input_precision=PRECISION) * m[None, :]
            ds = (tl.dot(grads, v_tile.T, input_precision=PRECISION) - s * curve[:, None]) * m[None, :]
            sums = tl.dot(ds.to(k_tile.dtype), k_tile, sums, input_precision=PRECISION)
        sums = (sums - rows.to(tl.float32) * (eps * t * curve)[:, None]) * n[:, None]
        at = index * dq_bag + head * dq_head + row * dq_row
        tl.store(dq + at[:, None] + column[None, :], sums.to(dq.dtype.element_ty), mask=here)
