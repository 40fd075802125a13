"""Gradients of attention from moments: two passes over the queries and one over the keys.

With q~_i = q_i / n_i and delta_i = <do_i, o_i>:

    dA = sum_i q~_i^T do_i      D = 2 dG = -sum_i delta_i q~_i^T q~_i
    dq_i = do_i A^T / n_i - (delta_i / n_i^2) q_i (G + eps t)
    dk'_j = v_j dA^T + k'_j (D + eps tr D)      dv_j = k'_j dA      dk = m dk'      dm = <dk', k>

The queries' two passes are one in principle; in one, both sums and both products of a tile want more registers than
there are. As in sums.py, what is rounded to 16 bits stands on the right: q~ enters as a power of two times q. Bags that
hold rows with rho below 1 / (8 E) (forward.py) take the high-precision path: every square as the sum of two of 16 bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from flashsign.triton.common.device_functions import bag_rows, load_rows, not_finite, power_of_two, unit_of
from flashsign.triton.moments.forward import HIGH_PRECISION
from flashsign.triton.moments.ill_conditioned_rows import ILL_CONDITIONED, append_rows, list_of
from flashsign.triton.moments.sums import (
    high_precision_product,
    query_part,
    read_totals,
    rounded_squares,
    rows_of_program,
    tile_rows,
)


@triton.jit
def split_power(x):
    """x > 0 as a power of two times a number from 1 to 2; x float32."""
    power = 1.0 / power_of_two(x)
    return power, x / power


@triton.jit
def sum_queries(
    q, o, grad, inverse, totals, query_offsets, parts, needs_high_precision, delta,
    q_bag, q_head, q_row,
    o_bag, o_head, o_row,
    grad_bag, grad_head, grad_row,
    queries_all, heads, key_heads, eps,
    E: tl.constexpr, E_PAD: tl.constexpr, QUERIES: tl.constexpr, STAGES: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Program (part, head, bag) -> its dA and D: parts [parts, heads of a group, bags, K, 2, E_PAD, E_PAD].

    In units: q~ is sqrt(t) times as long (unit_of), so that its numbers are near one. needs_high_precision [parts,
    heads of a group, bags, K]: 1 where a row's rho is below 1 / (8 E). delta [C', heads, rows].
    """
    head, bag, key_head, group, index, first, _, begin, last = query_part(
        query_offsets, queries_all, heads, key_heads, QUERIES, PACKED
    )
    square = bag * key_heads + key_head
    _, t, _, _ = read_totals(totals, square, E_PAD, BLOCK)
    unit = unit_of(t)
    q += index.to(tl.int64) * q_bag + head.to(tl.int64) * q_head
    o += index.to(tl.int64) * o_bag + head.to(tl.int64) * o_head
    grad += index.to(tl.int64) * grad_bag + head.to(tl.int64) * grad_head
    at = (index.to(tl.int64) * heads + head) * queries_all + first
    column = tl.arange(0, E_PAD)
    d_a = tl.zeros([E_PAD, E_PAD], tl.float32)
    d_g = tl.zeros([E_PAD, E_PAD], tl.float32)
    worst = tl.zeros([QUERIES], tl.float32)
    for start in tl.range(begin, last, QUERIES, num_stages=STAGES):
        query, there, row = tile_rows(start, last, first, QUERIES)
        rows = load_rows(q, row, q_row, there, column, E)
        grads = load_rows(grad, row, grad_row, there, column, E)
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
    high_precision = length * (HIGH_PRECISION + E * eps) > E
    slot = (tl.program_id(0) * group + head - key_head * group) * tl.num_programs(2) * key_heads + square
    parts += slot.to(tl.int64) * (2 * E_PAD * E_PAD)
    entry = column[:, None] * E_PAD + column[None, :]
    tl.store(parts + entry, d_a)
    tl.store(parts + E_PAD * E_PAD + entry, d_g)
    tl.store(needs_high_precision + slot, high_precision.to(tl.float32))


@triton.jit
def query_gradients(
    q, grad, inverse, delta, moments, totals, gradient_totals, query_offsets, dq, row_list, row_count,
    q_bag, q_head, q_row,
    grad_bag, grad_head, grad_row,
    dq_bag, dq_head, dq_row,
    queries_all, heads, key_heads, eps,
    E: tl.constexpr, E_PAD: tl.constexpr, QUERIES: tl.constexpr, STAGES: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr, HALF: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Program (part, head, bag) -> dq, and a list of ill-conditioned rows (see forward.attend_moments).

    moments: A and G. gradient_totals: of dA and D, whose first number is 1 for bags that need high precision.
    """
    head, bag, key_head, group, index, first, queries, begin, last = query_part(
        query_offsets, queries_all, heads, key_heads, QUERIES, PACKED
    )
    if begin >= last:
        return
    square = bag * key_heads + key_head
    _, t, a_unit, g_unit = read_totals(totals, square, E_PAD, BLOCK)
    moments += square.to(tl.int64) * (2 * E_PAD * E_PAD)
    q += index.to(tl.int64) * q_bag + head.to(tl.int64) * q_head
    grad += index.to(tl.int64) * grad_bag + head.to(tl.int64) * grad_head
    dq += index.to(tl.int64) * dq_bag + head.to(tl.int64) * dq_head
    at = (index.to(tl.int64) * heads + head) * queries_all + first
    column = tl.arange(0, E_PAD)
    needs_high_precision, _, _, _ = read_totals(gradient_totals, square, E_PAD, BLOCK)
    high_precision = needs_high_precision > 0 if HALF else True
    if high_precision:
        row_list = list_of(row_list, index, first, key_head, queries_all, heads, group)
        for start in range(begin, last, QUERIES):
            query, there, row = tile_rows(start, last, first, QUERIES)
            along = high_precision_product(grad, row, grad_row, there, moments, a_unit, E, E_PAD, True, PRECISION, HALF)
            across = high_precision_product(
                q, row, q_row, there, moments + E_PAD * E_PAD, g_unit, E, E_PAD, False, PRECISION, HALF
            )
            rows = load_rows(q, row, q_row, there, column, E)
            store_query_gradient(
                along / a_unit, across / g_unit, rows, eps * t,
                inverse + at, delta + at, query, there, dq + row * dq_row + column[None, :], column, E,
            )  # fmt: skip
            near = rows.to(tl.float32) * tl.load(inverse + at + query, mask=there, other=0.0)[:, None]
            length = tl.sum(near * near, 1) * t  # 1 / (rho + eps)
            most = 1.0 / (ILL_CONDITIONED + eps) if HALF else 1.0 / (10 * ILL_CONDITIONED + eps)
            number = (head - key_head * group) * queries + query
            append_rows(length > most, row_list, row_count + square, number)
    else:
        a, g = rounded_squares(moments, a_unit, g_unit, q.dtype.element_ty, E_PAD)
        for start in tl.range(begin, last, QUERIES, num_stages=STAGES):
            query, there, row = tile_rows(start, last, first, QUERIES)
            rows = load_rows(q, row, q_row, there, column, E)
            grads = load_rows(grad, row, grad_row, there, column, E)
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
    k_bag, k_head, k_row,
    v_bag, v_head, v_row,
    m_bag, m_head,
    dk_bag, dk_head, dk_row,
    dv_bag, dv_head, dv_row,
    rows, key_heads, eps,
    E: tl.constexpr, E_PAD: tl.constexpr, KEYS: tl.constexpr, STAGES: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr, HALF: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Program (part, key head, bag) -> dk, dv, and dm [C', K, rows] float32. gradients: dA and D, summed."""
    head, bag = tl.program_id(1), tl.program_id(2)
    first, keys, index = bag_rows(bag, offsets, rows, PACKED)
    begin, last = rows_of_program(keys, KEYS)
    if begin >= last:
        return
    square = bag * key_heads + head
    scale, t, _, _ = read_totals(totals, square, E_PAD, BLOCK)
    needs_high_precision, trace, a_unit, g_unit = read_totals(gradient_totals, square, E_PAD, BLOCK)
    unit = unit_of(t)
    per_a, per_g = 1.0 / (a_unit * unit), 1.0 / (g_unit * unit * unit)
    pull = eps * trace / (unit * unit)
    gradients += square.to(tl.int64) * (2 * E_PAD * E_PAD)
    k += index.to(tl.int64) * k_bag + head.to(tl.int64) * k_head
    v += index.to(tl.int64) * v_bag + head.to(tl.int64) * v_head
    dk += index.to(tl.int64) * dk_bag + head.to(tl.int64) * dk_head
    dv += index.to(tl.int64) * dv_bag + head.to(tl.int64) * dv_head
    dm += (index.to(tl.int64) * key_heads + head) * rows + first
    multiplicity += index.to(tl.int64) * m_bag + head.to(tl.int64) * m_head + first
    column = tl.arange(0, E_PAD)
    high_precision = needs_high_precision > 0 if HALF else True

    if high_precision:
        for start in range(begin, last, KEYS):
            key, there, row = tile_rows(start, last, first, KEYS)
            values = high_precision_product(v, row, v_row, there, gradients, a_unit, E, E_PAD, True, PRECISION, HALF)
            across = high_precision_product(
                k, row, k_row, there, gradients + E_PAD * E_PAD, g_unit, E, E_PAD, False, PRECISION, HALF
            )
            along = high_precision_product(k, row, k_row, there, gradients, a_unit, E, E_PAD, False, PRECISION, HALF)
            k_tile = load_rows(k, row, k_row, there, column, E)
            v_tile = load_rows(v, row, v_row, there, column, E)
            store_keys(
                k_tile, v_tile, values * per_a, across * per_g, along * per_a, pull, scale,
                multiplicity, key, there, row, column, dk, dk_row, dv, dv_row, dm, E,
            )  # fmt: skip
    else:
        a, g = rounded_squares(gradients, a_unit, g_unit, k.dtype.element_ty, E_PAD)
        for start in tl.range(begin, last, KEYS, num_stages=STAGES):
            key, there, row = tile_rows(start, last, first, KEYS)
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
    # An absent key has a derivative for m all the same, unless it holds NaN or infinity.
    broken = not_finite(k_wide, v_tile) & (m == 0)
    d_scaled = values + m[:, None] * (across + pull * k_wide)
    here = there[:, None] & (column < E)[None, :]
    d_k = tl.where((m != 0)[:, None], m[:, None] * d_scaled, 0.0)
    d_v = tl.where((m != 0)[:, None], m[:, None] * along, 0.0)
    tl.store(dk + row * dk_row + column[None, :], d_k.to(dk.dtype.element_ty), mask=here)
    tl.store(dv + row * dv_row + column[None, :], d_v.to(dv.dtype.element_ty), mask=here)
    tl.store(dm + key, tl.where(broken, 0.0, tl.sum(d_scaled * k_wide, 1) * scale), mask=there)
