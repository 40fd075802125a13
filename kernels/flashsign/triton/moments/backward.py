"""Gradients of attention from moments: two passes over the queries and one over the keys.

With q~_i = q_i / n_i and delta_i = <do_i, o_i>:

    dA = sum_i q~_i^T do_i      D = 2 dG = -sum_i delta_i q~_i^T q~_i
    dq_i = do_i A^T / n_i - (delta_i / n_i^2) q_i (G + eps t)
    dk'_j = v_j dA^T + k'_j (D + eps tr D)      dv_j = k'_j dA      dk = m dk'      dm = <dk', k>

The queries' two passes are one in principle; in one, both sums and both products of a tile want more registers than
there are. As in moment_sums, what is rounded to 16 bits stands on the right: q~ enters as a power of two times q. Bags
that hold rows with rho below 1 / (8 E) (moment_forward) get every square as the sum of two of 16 bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from flashsign.triton.common.device_functions import bag_rows, power_of_two
from flashsign.triton.moments.forward import DOUBTED
from flashsign.triton.moments.ill_conditioned_rows import WEAK, list_of, list_weak
from flashsign.triton.moments.sums import careful_product, read_totals, share_of
from flashsign.triton.streaming.backward import unit_of


@triton.jit
def load_rows(x, row, x_row, there, column, E: tl.constexpr):
    return tl.load(x + row * x_row + column[None, :], mask=there[:, None] & (column < E)[None, :], other=0.0)


@triton.jit
def split_power(x):
    """x > 0 as a power of two times a number from 1 to 2; x float32."""
    power = 1.0 / power_of_two(x)
    return power, x / power


@triton.jit
def sum_queries(
    q, o, grad, inverse, totals, query_offsets, parts, doubts, delta,
    q_bag, q_head, q_row, o_bag, o_head, o_row, g_bag, g_head, g_row, queries_all, heads, key_heads, eps,
    E: tl.constexpr, E_PAD: tl.constexpr, QUERIES: tl.constexpr, STAGES: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Program (share, head, bag) -> its dA and D: parts [shares, heads of a group, bags, K, 2, E_PAD, E_PAD].

    In units: q~ is sqrt(t) times as long (unit_of), so that its numbers are near one. doubts [shares, heads of a group,
    bags, K]: 1 where a row's rho is below 1 / (8 E). delta [C', heads, rows].
    """
    head, bag = tl.program_id(1), tl.program_id(2)
    group = heads // key_heads
    key_head = head // group
    first, queries, index = bag_rows(bag, query_offsets, queries_all, PACKED)
    begin, last = share_of(queries, QUERIES)
    _, t, _, _ = read_totals(totals, bag * key_heads + key_head, E_PAD, BLOCK)
    unit = unit_of(t)
    q += index.to(tl.int64) * q_bag + head.to(tl.int64) * q_head
    o += index.to(tl.int64) * o_bag + head.to(tl.int64) * o_head
    grad += index.to(tl.int64) * g_bag + head.to(tl.int64) * g_head
    at = (index.to(tl.int64) * heads + head) * queries_all + first
    column = tl.arange(0, E_PAD)
    d_a = tl.zeros([E_PAD, E_PAD], tl.float32)
    d_g = tl.zeros([E_PAD, E_PAD], tl.float32)
    worst = tl.zeros([QUERIES], tl.float32)
    for start in tl.range(begin, last, QUERIES, num_stages=STAGES):
        query = start + tl.arange(0, QUERIES)
        there = query < last
        row = (first + query).to(tl.int64)[:, None]
        rows = load_rows(q, row, q_row, there, column, E)
        grads = load_rows(grad, row, g_row, there, column, E)
        outputs = load_rows(o, row, o_row, there, column, E)
        n = tl.load(inverse + at + query, mask=there, other=0.0)
        d = tl.sum(grads.to(tl.float32) * outputs.to(tl.float32), 1)
        tl.store(delta + at + query, d, mask=there)
        power, rest = split_power(n * unit)
        near = rows.to(tl.float32) * power[:, None]  # as exact as q
        worst = tl.maximum(worst, tl.sum(near * near, 1) * rest * rest)
        left = near.to(rows.dtype).T
        right = (grads.to(tl.float32) * rest[:, None]).to(rows.dtype)
        d_a = tl.dot(left, right, d_a, input_precision=PRECISION)
        right = (near * (-d * rest * rest)[:, None]).to(rows.dtype)
        d_g = tl.dot(left, right, d_g, input_precision=PRECISION)

    # |q|^2 t / n^2 = 1 / (rho + eps), n without its reciprocal.
    length = tl.max(worst) / (unit * unit) * t
    doubted = length * (DOUBTED + E * eps) > E
    slot = (tl.program_id(0) * group + head - key_head * group) * tl.num_programs(2) * key_heads
    slot += bag * key_heads + key_head
    parts += slot.to(tl.int64) * (2 * E_PAD * E_PAD)
    square = column[:, None] * E_PAD + column[None, :]
    tl.store(parts + square, d_a)
    tl.store(parts + E_PAD * E_PAD + square, d_g)
    tl.store(doubts + slot, doubted.to(tl.float32))


@triton.jit
def query_gradients(
    q, grad, inverse, delta, moments, totals, doubts, query_offsets, dq, weak_rows, weak_count,
    q_bag, q_head, q_row, g_bag, g_head, g_row, dq_bag, dq_head, dq_row, queries_all, heads, key_heads, eps,
    E: tl.constexpr, E_PAD: tl.constexpr, QUERIES: tl.constexpr, STAGES: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr, HALF: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Program (share, head, bag) -> dq, and the bag's list of weak rows (see moment_forward.attend_moments).

    moments: A and G. doubts: the gradients' totals, whose first number is 1 for bags that need care.
    """
    head, bag = tl.program_id(1), tl.program_id(2)
    group = heads // key_heads
    key_head = head // group
    first, queries, index = bag_rows(bag, query_offsets, queries_all, PACKED)
    begin, last = share_of(queries, QUERIES)
    if begin >= last:
        return
    slot = bag * key_heads + key_head
    _, t, a_unit, g_unit = read_totals(totals, slot, E_PAD, BLOCK)
    moments += slot.to(tl.int64) * (2 * E_PAD * E_PAD)
    q += index.to(tl.int64) * q_bag + head.to(tl.int64) * q_head
    grad += index.to(tl.int64) * g_bag + head.to(tl.int64) * g_head
    dq += index.to(tl.int64) * dq_bag + head.to(tl.int64) * dq_head
    at = (index.to(tl.int64) * heads + head) * queries_all + first
    column = tl.arange(0, E_PAD)
    doubted, _, _, _ = read_totals(doubts, slot, E_PAD, BLOCK)
    careful = doubted > 0 if HALF else True
    if careful:
        weak_rows = list_of(weak_rows, index, first, key_head, queries_all, heads, group)
        for start in range(begin, last, QUERIES):
            query = start + tl.arange(0, QUERIES)
            there = query < last
            row = (first + query).to(tl.int64)[:, None]
            nothing = tl.zeros([QUERIES, E_PAD], tl.float32)
            along = careful_product(
                grad, row, g_row, there, moments, a_unit, nothing, E, E_PAD, True, PRECISION, HALF
            )  # fmt: skip
            across = careful_product(
                q, row, q_row, there, moments + E_PAD * E_PAD, g_unit, nothing, E, E_PAD, False, PRECISION, HALF
            )  # fmt: skip
            rows = load_rows(q, row, q_row, there, column, E)
            store_query_gradient(
                along / a_unit, across / g_unit, rows, eps * t,
                inverse + at, delta + at, query, there, dq + row * dq_row + column[None, :], column, E,
            )  # fmt: skip
            near = rows.to(tl.float32) * tl.load(inverse + at + query, mask=there, other=0.0)[:, None]
            length = tl.sum(near * near, 1) * t  # 1 / (rho + eps)
            most = 1.0 / (WEAK + eps) if HALF else 1.0 / (10 * WEAK + eps)
            number = (head - key_head * group) * queries + query
            list_weak(length > most, weak_rows, weak_count + slot, number)
    else:
        square = column[:, None] * E_PAD + column[None, :]
        a = (tl.load(moments + square) * a_unit).to(q.dtype.element_ty)
        g = (tl.load(moments + E_PAD * E_PAD + square) * g_unit).to(q.dtype.element_ty)
        for start in tl.range(begin, last, QUERIES, num_stages=STAGES):
            query = start + tl.arange(0, QUERIES)
            there = query < last
            row = (first + query).to(tl.int64)[:, None]
            rows = load_rows(q, row, q_row, there, column, E)
            grads = load_rows(grad, row, g_row, there, column, E)
            store_query_gradient(
                tl.dot(grads, a.T) / a_unit, tl.dot(rows, g) / g_unit, rows, eps * t,
                inverse + at, delta + at, query, there, dq + row * dq_row + column[None, :], column, E,
            )  # fmt: skip


@triton.jit
def store_query_gradient(
    along, across, rows, floor, inverse, delta, query, there, to, column, E: tl.constexpr
):  # fmt: skip
    """along = do A^T, across = q G."""
    n = tl.load(inverse + query, mask=there, other=0.0)
    curve = tl.load(delta + query, mask=there, other=0.0) * n
    d_q = (along - (across + floor * rows.to(tl.float32)) * curve[:, None]) * n[:, None]
    tl.store(to, d_q.to(to.dtype.element_ty), mask=there[:, None] & (column < E)[None, :])


@triton.jit
def key_gradients(
    k, v, multiplicity, offsets, gradients, gradient_totals, totals, dk, dv, dm,
    k_bag, k_head, k_row, v_bag, v_head, v_row, m_bag, m_head, dk_bag, dk_head, dk_row, dv_bag, dv_head, dv_row,
    rows, key_heads, eps,
    E: tl.constexpr, E_PAD: tl.constexpr, KEYS: tl.constexpr, STAGES: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr, HALF: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Program (share, key head, bag) -> dk, dv, and dm [C', K, rows] float32. gradients: dA and D, summed."""
    head, bag = tl.program_id(1), tl.program_id(2)
    first, keys, index = bag_rows(bag, offsets, rows, PACKED)
    begin, last = share_of(keys, KEYS)
    if begin >= last:
        return
    slot = bag * key_heads + head
    scale, t, _, _ = read_totals(totals, slot, E_PAD, BLOCK)
    doubted, trace, a_unit, g_unit = read_totals(gradient_totals, slot, E_PAD, BLOCK)
    unit = unit_of(t)
    per_a, per_g = 1.0 / (a_unit * unit), 1.0 / (g_unit * unit * unit)
    pull = eps * trace / (unit * unit)
    gradients += slot.to(tl.int64) * (2 * E_PAD * E_PAD)
    k += index.to(tl.int64) * k_bag + head.to(tl.int64) * k_head
    v += index.to(tl.int64) * v_bag + head.to(tl.int64) * v_head
    dk += index.to(tl.int64) * dk_bag + head.to(tl.int64) * dk_head
    dv += index.to(tl.int64) * dv_bag + head.to(tl.int64) * dv_head
    dm += (index.to(tl.int64) * key_heads + head) * rows + first
    multiplicity += index.to(tl.int64) * m_bag + head.to(tl.int64) * m_head + first
    column = tl.arange(0, E_PAD)
    careful = doubted > 0 if HALF else True

    if careful:
        for start in range(begin, last, KEYS):
            key = start + tl.arange(0, KEYS)
            there = key < last
            row = (first + key).to(tl.int64)[:, None]
            nothing = tl.zeros([KEYS, E_PAD], tl.float32)
            values = careful_product(
                v, row, v_row, there, gradients, a_unit, nothing, E, E_PAD, True, PRECISION, HALF
            )  # fmt: skip
            across = careful_product(
                k, row, k_row, there, gradients + E_PAD * E_PAD, g_unit, nothing, E, E_PAD, False, PRECISION, HALF
            )  # fmt: skip
            along = careful_product(
                k, row, k_row, there, gradients, a_unit, nothing, E, E_PAD, False, PRECISION, HALF
            )  # fmt: skip
            k_tile = load_rows(k, row, k_row, there, column, E)
            v_tile = load_rows(v, row, v_row, there, column, E)
            store_keys(
                k_tile, v_tile, values * per_a, across * per_g, along * per_a, pull, scale,
                multiplicity, key, there, row, column, dk, dk_row, dv, dv_row, dm, E,
            )  # fmt: skip
    else:
        square = column[:, None] * E_PAD + column[None, :]
        a = (tl.load(gradients + square) * a_unit).to(k.dtype.element_ty)
        g = (tl.load(gradients + E_PAD * E_PAD + square) * g_unit).to(k.dtype.element_ty)
        for start in tl.range(begin, last, KEYS, num_stages=STAGES):
            key = start + tl.arange(0, KEYS)
            there = key < last
            row = (first + key).to(tl.int64)[:, None]
            k_tile = load_rows(k, row, k_row, there, column, E)
            v_tile = load_rows(v, row, v_row, there, column, E)
            store_keys(
                k_tile, v_tile, tl.dot(v_tile, a.T) * per_a, tl.dot(k_tile, g) * per_g, tl.dot(k_tile, a) * per_a,
                pull, scale, multiplicity, key, there, row, column, dk, dk_row, dv, dv_row, dm, E,
            )  # fmt: skip


@triton.jit
def store_keys(
    k_tile, v_tile, values, across, along, pull, scale,
    multiplicity, key, there, row, column, dk, dk_row, dv, dv_row, dm, E: tl.constexpr,
):  # fmt: skip
    """values = v dA^T, across = k D, along = k dA; the keys' multiplicities enter here, in float32."""
    m = tl.load(multiplicity + key, mask=there, other=0.0) * scale
    k_wide = k_tile.to(tl.float32)
    # An absent key has a derivative for m all the same, unless it holds what is no number.
    doubt = tl.sum(k_wide * 0 + v_tile.to(tl.float32) * 0, 1) != 0
    broken = (m == 0) & doubt
    d_scaled = values + m[:, None] * (across + pull * k_wide)
    here = there[:, None] & (column < E)[None, :]
    d_k = tl.where((m != 0)[:, None], m[:, None] * d_scaled, 0.0)
    d_v = tl.where((m != 0)[:, None], m[:, None] * along, 0.0)
    tl.store(dk + row * dk_row + column[None, :], d_k.to(dk.dtype.element_ty), mask=here)
    tl.store(dv + row * dv_row + column[None, :], d_v.to(dv.dtype.element_ty), mask=here)
    tl.store(dm + key, tl.where(broken, 0.0, tl.sum(d_scaled * k_wide, 1) * scale), mask=there)
