"""Gradients of attention from moments: two passes over the queries and one over the keys.

With q~_i = q_i / n_i and delta_i = <do_i, o_i>:

    dA = sum_i q~_i^T do_i      D = 2 dG = -sum_i delta_i q~_i^T q~_i
    dq_i = do_i A^T / n_i - (delta_i / n_i^2) q_i (G + eps t)
    dk'_j = v_j dA^T + k'_j (D + eps tr D)      dv_j = k'_j dA      dk = m dk'      dm = <dk', k>

The two passes over queries are not one because both sums and both products of a tile would need
more registers than there are. As in sums.py, the factor that is rounded to 16 bits is on the right:
on the left, q~ enters as q times a power of two. Bags with a row whose rho is below 1 / (8 E)
(forward.py) take the high-precision path, where every matrix is the sum of two 16-bit matrices.
"""

from __future__ import annotations

import triton
import triton.language as tl

from flashsign.triton.common.device_functions import (
    HIGH_PRECISION,
    bag_rows,
    load_rows,
    not_finite,
    of_head,
    power_of_two,
    store_rows,
    unit_of,
)
from flashsign.triton.moments.ill_conditioned_rows import ILL_CONDITIONED, append_rows, list_start
from flashsign.triton.moments.moment_sums import (
    NARROW,
    high_precision_product,
    query_part,
    read_totals,
    rounded_matrices,
    rows_of_program,
    store_pair,
    tile_rows,
)


@triton.jit
def split_power(x):
    """A power of two and a number from 1 to 2, whose product is x > 0; x float32."""
    power = 1.0 / power_of_two(x)
    return power, x / power


@triton.jit
def sum_queries(
    q,
    o,
    grad,
    inverse,
    totals,
    query_offsets,
    parts,
    needs_high_precision,
    delta,
    q_bag,
    q_head,
    q_row,
    o_bag,
    o_head,
    o_row,
    grad_bag,
    grad_head,
    grad_row,
    queries_all,
    heads,
    key_heads,
    eps,
    E: tl.constexpr,
    E_PAD: tl.constexpr,
    V: tl.constexpr,
    V_PAD: tl.constexpr,
    QUERIES: tl.constexpr,
    STAGES: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
    PACKED: tl.constexpr,
):
    """Program (part, head, bag) writes dA and D of its queries to parts [parts, H / K, bags, K,
    E_PAD V_PAD + E_PAD E_PAD].

    q~ is multiplied by unit_of(t), about sqrt(t), so that its numbers are near one: dA and D are in
    this unit.
    needs_high_precision [parts, H / K, bags, K]: 1 where rho of a row is below 1 / (8 E), else 0.
        Writes delta [C', heads, rows] float32.
    """
    head, bag, key_head, group, index, first, _, begin, last = query_part(
        query_offsets, queries_all, heads, key_heads, QUERIES, PACKED
    )
    bag_and_head = bag * key_heads + key_head
    _, t, _, _ = read_totals(totals, bag_and_head, E_PAD, BLOCK)
    unit = unit_of(t)
    q = of_head(q, index, head, q_bag, q_head)
    o = of_head(o, index, head, o_bag, o_head)
    grad = of_head(grad, index, head, grad_bag, grad_head)
    at = (index.to(tl.int64) * heads + head) * queries_all + first
    column, of_value = tl.arange(0, E_PAD), tl.arange(0, V_PAD)
    d_a = tl.zeros([E_PAD, V_PAD], tl.float32)
    d_g = tl.zeros([E_PAD, E_PAD], tl.float32)
    worst = tl.zeros([QUERIES], tl.float32)
    for start in tl.range(begin, last, QUERIES, num_stages=STAGES):
        query, there, row = tile_rows(start, last, first, QUERIES)
        rows = load_rows(q, row, q_row, there, column, E)
        grads = load_rows(grad, row, grad_row, there, of_value, V)
        outputs = load_rows(o, row, o_row, there, of_value, V)
        inverse_n = tl.load(inverse + at + query, mask=there, other=0.0)
        d = tl.sum(grads.to(tl.float32) * outputs.to(tl.float32), 1)
        tl.store(delta + at + query, d, mask=there)
        power, rest = split_power(inverse_n * unit)
        q_power = rows.to(tl.float32) * power[:, None]  # as exact as q
        worst = tl.maximum(worst, tl.sum(q_power * q_power, 1) * rest * rest)
        left = q_power.to(rows.dtype).T
        right = (grads.to(tl.float32) * rest[:, None]).to(rows.dtype)
        d_a = tl.dot(left, right, d_a, input_precision=PRECISION)
        right = (q_power * (-d * rest * rest)[:, None]).to(rows.dtype)
        d_g = tl.dot(left, right, d_g, input_precision=PRECISION)

    # |q|^2 t / n^2 = 1 / (rho + eps).
    inverse_rho = tl.max(worst) / (unit * unit) * t
    high_precision = inverse_rho * (HIGH_PRECISION + E * eps) > E
    slot = (tl.program_id(0) * group + head - key_head * group) * tl.num_programs(
        2
    ) * key_heads + bag_and_head
    store_pair(parts, slot, d_a, d_g, E_PAD, V_PAD)
    tl.store(needs_high_precision + slot, high_precision.to(tl.float32))


@triton.jit
def query_gradients(
    q,
    grad,
    inverse,
    delta,
    moments,
    totals,
    gradient_totals,
    query_offsets,
    dq,
    row_list,
    row_count,
    q_bag,
    q_head,
    q_row,
    grad_bag,
    grad_head,
    grad_row,
    dq_bag,
    dq_head,
    dq_row,
    queries_all,
    heads,
    key_heads,
    eps,
    E: tl.constexpr,
    E_PAD: tl.constexpr,
    V: tl.constexpr,
    V_PAD: tl.constexpr,
    QUERIES: tl.constexpr,
    STAGES: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
    HALF: tl.constexpr,
    PACKED: tl.constexpr,
):
    """Program (part, head, bag) writes dq and lists ill-conditioned rows (as
    forward.attend_moments).

    moments: A and G; totals: theirs (sums.add_parts); gradient_totals: those of dA and D, whose
        first number is 1 for bags that take the high-precision path.
    """
    head, bag, key_head, group, index, first, queries, begin, last = query_part(
        query_offsets, queries_all, heads, key_heads, QUERIES, PACKED
    )
    if begin >= last:
        return
    bag_and_head = bag * key_heads + key_head
    _, t, a_unit, g_unit = read_totals(totals, bag_and_head, E_PAD, BLOCK)
    moments += bag_and_head.to(tl.int64) * (E_PAD * (V_PAD + E_PAD))
    q = of_head(q, index, head, q_bag, q_head)
    grad = of_head(grad, index, head, grad_bag, grad_head)
    dq = of_head(dq, index, head, dq_bag, dq_head)
    at = (index.to(tl.int64) * heads + head) * queries_all + first
    column = tl.arange(0, E_PAD)
    needs_high_precision, _, _, _ = read_totals(gradient_totals, bag_and_head, E_PAD, BLOCK)
    high_precision = needs_high_precision > 0 if HALF and E > NARROW else True
    of_q, of_grad, of_dq, of_rows = (
        (q, q_row),
        (grad, grad_row),
        (dq, dq_row),
        (inverse + at, delta + at),
    )
    if high_precision:
        row_list = list_start(row_list, index, first, key_head, queries_all, heads, group)
        of_g = moments + E_PAD * V_PAD
        for start in range(begin, last, QUERIES):
            tile = tile_rows(start, last, first, QUERIES)
            query, there, row = tile
            do_a = high_precision_product(
                of_grad, tile, moments, a_unit, V, V_PAD, E_PAD, True, PRECISION, HALF
            )
            q_g = high_precision_product(
                of_q, tile, of_g, g_unit, E, E_PAD, E_PAD, False, PRECISION, HALF
            )
            rows = load_rows(q, row, q_row, there, column, E)
            store_query_gradient(
                do_a / a_unit, q_g / g_unit, rows, eps * t, of_rows, tile, of_dq, column, E
            )
            q_over_n = (
                rows.to(tl.float32) * tl.load(inverse + at + query, mask=there, other=0.0)[:, None]
            )
            inverse_rho = tl.sum(q_over_n * q_over_n, 1) * t  # 1 / (rho + eps)
            most = 1.0 / (ILL_CONDITIONED + eps) if HALF else 1.0 / (10 * ILL_CONDITIONED + eps)
            number = (head - key_head * group) * queries + query
            append_rows(inverse_rho > most, row_list, row_count + bag_and_head, number)
    else:
        a, g = rounded_matrices(moments, a_unit, g_unit, q.dtype.element_ty, E_PAD, V_PAD)
        for start in tl.range(begin, last, QUERIES, num_stages=STAGES):
            tile = tile_rows(start, last, first, QUERIES)
            query, there, row = tile
            rows = load_rows(q, row, q_row, there, column, E)
            grads = load_rows(grad, row, grad_row, there, tl.arange(0, V_PAD), V)
            do_a, q_g = tl.dot(grads, a.T) / a_unit, tl.dot(rows, g) / g_unit
            store_query_gradient(do_a, q_g, rows, eps * t, of_rows, tile, of_dq, column, E)


@triton.jit
def store_query_gradient(do_a, q_g, rows, floor, of_rows, tile, dq, column, E: tl.constexpr):
    """Store dq of a tile of rows; do_a = do A^T, q_g = q G, floor = eps t.

    of_rows: pointers to 1 / n and delta of the first row; dq: a pointer to it and the step from
    row to row.
    """
    query, there, row = tile
    inverse, delta = of_rows
    of_dq, dq_row = dq
    inverse_n = tl.load(inverse + query, mask=there, other=0.0)
    delta_over_n = tl.load(delta + query, mask=there, other=0.0) * inverse_n
    d_q = (do_a - (q_g + floor * rows.to(tl.float32)) * delta_over_n[:, None]) * inverse_n[:, None]
    store_rows(of_dq, row, dq_row, there, column, E, d_q)


@triton.jit
def key_gradients(
    k,
    v,
    multiplicity,
    offsets,
    gradients,
    gradient_totals,
    totals,
    dk,
    dv,
    dm,
    k_bag,
    k_head,
    k_row,
    v_bag,
    v_head,
    v_row,
    m_bag,
    m_head,
    dk_bag,
    dk_head,
    dk_row,
    dv_bag,
    dv_head,
    dv_row,
    keys_all,
    key_heads,
    eps,
    E: tl.constexpr,
    E_PAD: tl.constexpr,
    V: tl.constexpr,
    V_PAD: tl.constexpr,
    KEYS: tl.constexpr,
    STAGES: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
    HALF: tl.constexpr,
    PACKED: tl.constexpr,
):
    """Program (part, key head, bag) writes dk, dv, and dm [C', K, rows] float32; gradients: dA and
    D of all queries.
    """
    head, bag = tl.program_id(1), tl.program_id(2)
    first, keys, index = bag_rows(bag, offsets, keys_all, PACKED)
    begin, last = rows_of_program(keys, KEYS)
    if begin >= last:
        return
    bag_and_head = bag * key_heads + head
    scale, t, _, _ = read_totals(totals, bag_and_head, E_PAD, BLOCK)
    needs_high_precision, trace, a_unit, g_unit = read_totals(
        gradient_totals, bag_and_head, E_PAD, BLOCK
    )
    unit = unit_of(t)
    per_a, per_g = 1.0 / (a_unit * unit), 1.0 / (g_unit * unit * unit)
    twice_dt = eps * trace / (unit * unit)
    gradients += bag_and_head.to(tl.int64) * (E_PAD * (V_PAD + E_PAD))
    k = of_head(k, index, head, k_bag, k_head)
    v = of_head(v, index, head, v_bag, v_head)
    dk = of_head(dk, index, head, dk_bag, dk_head)
    dv = of_head(dv, index, head, dv_bag, dv_head)
    dm += (index.to(tl.int64) * key_heads + head) * keys_all + first
    multiplicity = of_head(multiplicity, index, head, m_bag, m_head) + first
    column, of_value = tl.arange(0, E_PAD), tl.arange(0, V_PAD)
    high_precision = needs_high_precision > 0 if HALF and E > NARROW else True

    of_k, of_v, results = (k, k_row), (v, v_row), (dk, dk_row, dv, dv_row, dm)
    if high_precision:
        of_g = gradients + E_PAD * V_PAD
        for start in range(begin, last, KEYS):
            tile = tile_rows(start, last, first, KEYS)
            there, row = tile[1], tile[2]
            v_da = high_precision_product(
                of_v, tile, gradients, a_unit, V, V_PAD, E_PAD, True, PRECISION, HALF
            )
            k_d = high_precision_product(
                of_k, tile, of_g, g_unit, E, E_PAD, E_PAD, False, PRECISION, HALF
            )
            k_da = high_precision_product(
                of_k, tile, gradients, a_unit, E, E_PAD, V_PAD, False, PRECISION, HALF
            )
            k_tile = load_rows(k, row, k_row, there, column, E)
            v_tile = load_rows(v, row, v_row, there, of_value, V)
            products = (v_da * per_a, k_d * per_g, k_da * per_a)
            store_keys(k_tile, v_tile, products, twice_dt, scale, multiplicity, tile, results, E, V)
    else:
        a, g = rounded_matrices(gradients, a_unit, g_unit, k.dtype.element_ty, E_PAD, V_PAD)
        for start in tl.range(begin, last, KEYS, num_stages=STAGES):
            tile = tile_rows(start, last, first, KEYS)
            there, row = tile[1], tile[2]
            k_tile = load_rows(k, row, k_row, there, column, E)
            v_tile = load_rows(v, row, v_row, there, of_value, V)
            v_da = tl.dot(v_tile, a.T) * per_a
            k_d = tl.dot(k_tile, g) * per_g
            products = (v_da, k_d, tl.dot(k_tile, a) * per_a)
            store_keys(k_tile, v_tile, products, twice_dt, scale, multiplicity, tile, results, E, V)


@triton.jit
def store_keys(
    k_tile,
    v_tile,
    products,
    twice_dt,
    scale,
    multiplicity,
    tile,
    results,
    E: tl.constexpr,
    V: tl.constexpr,
):
    """Store dk, dv and dm of a tile of keys.

    products: v dA^T, k D and k dA, all without multiplicities, which are applied here in float32;
    results: pointers to the first rows of dk, dv and dm, and the steps from row to row.
    """
    v_da, k_d, k_da = products
    key, there, row = tile
    dk, dk_row, dv, dv_row, dm = results
    m = tl.load(multiplicity + key, mask=there, other=0.0) * scale
    k_wide = k_tile.to(tl.float32)
    # An absent key has a derivative with respect to m too, unless it holds a NaN or an infinity.
    broken = not_finite(k_wide, v_tile) & (m == 0)
    d_scaled = v_da + m[:, None] * (k_d + twice_dt * k_wide)
    column, of_value = tl.arange(0, k_tile.shape[1]), tl.arange(0, v_tile.shape[1])
    d_k = tl.where((m != 0)[:, None], m[:, None] * d_scaled, 0.0)
    d_v = tl.where((m != 0)[:, None], m[:, None] * k_da, 0.0)
    store_rows(dk, row, dk_row, there, column, E, d_k)
    store_rows(dv, row, dv_row, there, of_value, V, d_v)
    tl.store(dm + key, tl.where(broken, 0.0, tl.sum(d_scaled * k_wide, 1) * scale), mask=there)
