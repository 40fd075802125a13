"""dq of the streamed attention.

Where keys are many, it is computed from the keys' moments instead of by a stream:

    dq_i = do_i A^T / n_i - (delta_i / n_i^2) q_i (G + eps t)
    A    = sum_j k'_j^T v_j
    G    = sum_j k'_j^T k'_j
That is two products of width E instead of three with every key. Tiles of rows whose
rho = z / (|q|^2 t) is about 1 / E, as those of random rows are, take A and G rounded to 16 bits, as
moments/forward.py does, and others take them exact. Ill-conditioned rows, with a small rho, lie
along directions that the keys hardly have and that G has lost to rounding: tiles with such a row
are streamed.
"""

from __future__ import annotations

import triton
import triton.language as tl

from flashsign.triton.common.device_functions import (
    HIGH_PRECISION,
    bag_rows,
    load_rows,
    multiple_of_four,
    of_head,
    power_of_two,
    program_tile,
    store_rows,
)
from flashsign.triton.streaming.scaled_keys import bag_totals, load_present
from flashsign.triton.streaming.stream_backward import power_and_rest, row_unit

ILL_CONDITIONED = tl.constexpr(1e-3)
"""A tile is streamed if rho = z / (|q|^2 t) of any of its rows is below this."""


@triton.jit
def key_moments(
    k,
    v,
    multiplicity,
    offsets,
    out,
    k_bag,
    k_head,
    k_row,
    v_bag,
    v_head,
    v_row,
    m_bag,
    m_head,
    keys_all,
    key_heads,
    gap,
    E: tl.constexpr,
    E_PAD: tl.constexpr,
    V: tl.constexpr,
    V_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
    PACKED: tl.constexpr,
):
    """Program (part, key head, bag) sums A and G of its part of the keys. k: scaled keys.

    out [parts, bags, K, E_PAD V_PAD + E_PAD E_PAD] float32, A before G.
    """
    part = tl.program_id(0)
    parts = tl.num_programs(0)
    head = tl.program_id(1)
    bag = tl.program_id(2)
    first, keys, index = bag_rows(bag, offsets, keys_all, PACKED)
    k = of_head(k, index, head, k_bag, k_head) + bag.to(tl.int64) * gap * k_row
    v = of_head(v, index, head, v_bag, v_head)
    multiplicity = of_head(multiplicity, index, head, m_bag, m_head)
    column, of_value = tl.arange(0, E_PAD), tl.arange(0, V_PAD)
    size = tl.cdiv(tl.cdiv(keys, parts), BLOCK) * BLOCK
    a = tl.zeros([E_PAD, V_PAD], tl.float32)
    g = tl.zeros([E_PAD, E_PAD], tl.float32)
    for start in tl.range(
        part * size, tl.minimum((part + 1) * size, keys), BLOCK, num_stages=STAGES
    ):
        key = start + tl.arange(0, BLOCK)
        present = tl.load(multiplicity + first + key, mask=key < keys, other=0.0) != 0
        row = (first + key).to(tl.int64)[:, None]
        k_tile = load_rows(k, row, k_row, present, column, E)
        v_tile = load_rows(v, row, v_row, present, of_value, V)
        a = tl.dot(k_tile.T, v_tile, a, input_precision=PRECISION)
        g = tl.dot(k_tile.T, k_tile, g, input_precision=PRECISION)
    out += ((part * tl.num_programs(2) + bag) * key_heads + head).to(tl.int64) * (
        E_PAD * (V_PAD + E_PAD)
    )
    tl.store(out + column[:, None] * V_PAD + of_value[None, :], a)
    tl.store(out + E_PAD * V_PAD + column[:, None] * E_PAD + column[None, :], g)


@triton.jit
def near_one(matrix, dtype: tl.constexpr):
    """A matrix times a power of two that brings it near one, rounded to 16 bits, and this power."""
    unit = power_of_two(tl.max(tl.abs(matrix)))
    return (matrix * unit).to(dtype), unit


@triton.jit
def exact_product(x, matrix, total, PRECISION: tl.constexpr, HALF: tl.constexpr):
    """total + x matrix^T. HALF: x holds 16-bit numbers, which are exact in TF32; the matrix becomes
    two TF32 ones.
    """
    if HALF:
        high = (matrix.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
        total = tl.dot(x, high.T, total, input_precision="tf32")
        return tl.dot(x, (matrix - high).T, total, input_precision="tf32")
    else:
        return tl.dot(x, matrix.T, total, input_precision=PRECISION)


@triton.jit
def moment_query_gradient(
    q,
    grad,
    inverse,
    delta,
    schedule,
    query_offsets,
    totals,
    moments,
    dq,
    ill_conditioned,
    q_bag,
    q_head,
    q_row,
    grad_bag,
    grad_head,
    grad_row,
    dq_bag,
    dq_head,
    dq_row,
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
    WIDTH: tl.constexpr,
    VALUES: tl.constexpr,
    PRECISION: tl.constexpr,
    HALF: tl.constexpr,
    PACKED: tl.constexpr,
):
    """A program does one tile of queries: writes dq, and ill_conditioned [programs], 1 if the tile
    has an ill-conditioned row, else 0.

    moments [bags, key heads, E_PAD V_PAD + E_PAD E_PAD] float32: A and G. WIDTH, VALUES: columns of
        G and of A at a time. delta: as scaled_queries wrote it.
    """
    bag, head, start = program_tile(schedule, tiles, heads, QUERIES, PACKED)
    if bag < 0:
        tl.store(ill_conditioned + tl.program_id(0), 0)
        return
    first, queries, index = bag_rows(bag, query_offsets, queries_all, PACKED)
    key_head = head // (heads // key_heads)
    _, t = bag_totals(totals, parts, bag, key_head, key_heads)
    query = start + tl.arange(0, QUERIES)
    row = (first + query).to(tl.int64)[:, None]
    there = query < queries
    index, head = index.to(tl.int64), head.to(tl.int64)
    inverse_n = tl.load(
        inverse + (index * heads + head) * queries_all + first + query, mask=there, other=0.0
    )
    delta += (index * heads + head) * delta_head + multiple_of_four(first + bag.to(tl.int64) * gap)
    d = tl.load(delta + query, mask=there, other=0.0)
    _, rest = power_and_rest(inverse_n)
    d *= row_unit(t) / (rest * rest)  # <do, o> from the delta of scaled_queries
    q = of_head(q, index, head, q_bag, q_head)
    grad = of_head(grad, index, head, grad_bag, grad_head)
    dq = of_head(dq, index, head, dq_bag, dq_head)
    moments += (bag * key_heads + key_head).to(tl.int64) * (E_PAD * (V_PAD + E_PAD))

    column = tl.arange(0, E_PAD)
    if HALF:
        whole = load_rows(q, row, q_row, there, column, E)
        wide = whole.to(tl.float32)
        inverse_rho = tl.max(tl.sum(wide * wide, 1) * inverse_n * inverse_n) * t  # 1 / (rho + eps)
        if inverse_rho * (HIGH_PRECISION + E * eps) <= E:
            of_value = tl.arange(0, V_PAD)
            a, a_unit = near_one(
                tl.load(moments + column[:, None] * V_PAD + of_value[None, :]), q.dtype.element_ty
            )
            of_g = moments + E_PAD * V_PAD
            g, g_unit = near_one(
                tl.load(of_g + column[:, None] * E_PAD + column[None, :]), q.dtype.element_ty
            )
            values = load_rows(grad, row, grad_row, there, of_value, V)
            of_norm = tl.dot(whole, g) / g_unit + eps * t * wide
            found = (
                tl.dot(values, a.T, of_norm * (d * inverse_n * -a_unit)[:, None])
                * (inverse_n / a_unit)[:, None]
            )
            store_rows(dq, row, dq_row, there, column, E, found)
            tl.store(ill_conditioned + tl.program_id(0), 0)
            return
    do_a = tl.zeros([QUERIES, E_PAD], tl.float32)
    q_g = tl.zeros([QUERIES, E_PAD], tl.float32)
    q2_over_n2 = tl.zeros([QUERIES], tl.float32)
    for begin in tl.range(0, V_PAD, VALUES, num_stages=2):
        some = begin + tl.arange(0, VALUES)
        grads = load_rows(grad, row, grad_row, there, some, V)
        a = tl.load(moments + column[:, None] * V_PAD + some[None, :])
        do_a = exact_product(grads.to(tl.float32), a, do_a, PRECISION, HALF)
    moments += E_PAD * V_PAD
    for begin in tl.range(0, E_PAD, WIDTH, num_stages=2):
        some = begin + tl.arange(0, WIDTH)
        rows = load_rows(q, row, q_row, there, some, E).to(tl.float32)
        g = tl.load(moments + column[:, None] * E_PAD + some[None, :])
        q_g = exact_product(rows, g, q_g, PRECISION, HALF)
        q_over_n = rows * inverse_n[:, None]
        q2_over_n2 += tl.sum(q_over_n * q_over_n, 1)
    rows = load_rows(q, row, q_row, there, column, E).to(tl.float32)
    sums = do_a * inverse_n[:, None] - (q_g + eps * t * rows) * (d * inverse_n * inverse_n)[:, None]
    store_rows(dq, row, dq_row, there, column, E, sums)
    # |q|^2 t / n^2 = 1 / (rho + eps).
    tl.store(
        ill_conditioned + tl.program_id(0),
        tl.max((q2_over_n2 * t * (ILL_CONDITIONED + eps) > 1.0).to(tl.int32)),
    )


@triton.jit
def stream_query_gradient(
    q,
    k,
    v,
    grad,
    multiplicity,
    inverse,
    delta,
    offsets,
    query_offsets,
    schedule,
    totals,
    dq,
    ill_conditioned,
    m_bag,
    m_head,
    dq_bag,
    dq_head,
    dq_row,
    delta_head,
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
    ONLY_ILL_CONDITIONED: tl.constexpr,
    PRECISION: tl.constexpr,
    PACKED: tl.constexpr,
):
    """A program does one tile of queries, three products with every key: writes dq. q (q~), k
    (scaled), v, grad:
    descriptors.

    dq_i = (1 / n_i) sum_j (<do_i, v_j> - (s_ij / n_i) delta_i) k'_j - (delta_i / n_i^2) eps t q_i
    ONLY_ILL_CONDITIONED: only the tiles that moment_query_gradient marked.
    """
    if ONLY_ILL_CONDITIONED and tl.load(ill_conditioned + tl.program_id(0)) == 0:
        return
    bag, head, start = program_tile(schedule, tiles, heads, QUERIES, PACKED)
    if bag < 0:
        return
    first_query, queries, index = bag_rows(bag, query_offsets, queries_all, PACKED)
    first_key, keys, _ = bag_rows(bag, offsets, keys_all, PACKED)
    key_head = head // (heads // key_heads)
    _, t = bag_totals(totals, parts, bag, key_head, key_heads)
    query = start + tl.arange(0, QUERIES)
    bag_head = index.to(tl.int64) * heads + head
    inverse_n = tl.load(
        inverse + bag_head * queries_all + first_query + query, mask=query < queries, other=0.0
    )
    delta += bag_head * delta_head + multiple_of_four(first_query + bag.to(tl.int64) * gap)
    d = tl.load(delta + query, mask=query < queries, other=0.0)
    _, rest = power_and_rest(inverse_n)
    d /= rest  # delta is r^2 <do, o> / unit; w of these rows is s / (n r) times unit
    rows = q.load([index, head, first_query + bag * gap + start, 0]).reshape(QUERIES, E_PAD)
    grads = grad.load([index, head, first_query + start, 0]).reshape(QUERIES, V_PAD)
    first_scaled = first_key + bag * gap

    sums = tl.zeros([QUERIES, E_PAD], tl.float32)
    for begin in tl.range(0, keys, KEYS, num_stages=STAGES):
        k_tile = k.load([index, key_head, first_scaled + begin, 0]).reshape(KEYS, E_PAD)
        v_tile = v.load([index, key_head, first_key + begin, 0]).reshape(KEYS, V_PAD)
        w = tl.dot(rows, k_tile.T, input_precision=PRECISION)
        ds = tl.dot(grads, v_tile.T, input_precision=PRECISION) - w * d[:, None]
        sums = tl.dot(ds.to(k_tile.dtype), k_tile, sums, input_precision=PRECISION)

    if tl.sum(tl.where(sums == sums, 0, 1)) > 0:  # an absent key may hold NaN: see stream_forward
        multiplicity = of_head(multiplicity, index, key_head, m_bag, m_head) + first_key
        sums = tl.zeros([QUERIES, E_PAD], tl.float32)
        tensors = (k, v, multiplicity)
        place = (index, key_head, first_scaled, first_key, keys)
        for begin in tl.range(0, keys, KEYS, num_stages=1):
            k_tile, v_tile = load_present(tensors, place, begin, E_PAD, V_PAD, KEYS)
            w = tl.dot(rows, k_tile.T, input_precision=PRECISION)
            ds = tl.dot(grads, v_tile.T, input_precision=PRECISION) - w * d[:, None]
            sums = tl.dot(ds.to(k_tile.dtype), k_tile, sums, input_precision=PRECISION)

    sums = (sums - rows.to(tl.float32) * (eps * t * d)[:, None]) * inverse_n[:, None]
    column = tl.arange(0, E_PAD)
    dq = of_head(dq, index, head, dq_bag, dq_head)
    row = (first_query + query).to(tl.int64)[:, None]
    store_rows(dq, row, dq_row, query < queries, column, E, sums)
