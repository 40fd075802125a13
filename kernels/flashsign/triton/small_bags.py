"""Small bags, whose keys fit into one tile: one kernel forward and one backward.

    s_ij = m_j q_i.k_j
    n_i  = sqrt(sum_j s_ij^2 + eps |q_i|^2 t + tiny)
    w    = s / n
    o    = w v

A program does one bag and key head. It has all scores of a row at once, so the norm is known before
weights are rounded: 16-bit numbers hold weights here and not scores, which may have any size.
Backward, with p = do v^T:

    2 dt = -eps sum_i |q_i|^2 delta_i / n_i^2
    ds   = p - w delta
    dv   = w^T do
    dk'  = (ds / n)^T q + 2 dt k'
    dq   = (m ds) k / n - eps t delta q / n^2

In every product, q, k, v and do are not scaled by multiplicities or norms, only by powers of two.
Multiplicities and norms scale the scores or the other operand, where a rounding error is relative
to the score. If m k were rounded, the error would not be, and the weight of a single key, the sign
of its score, could flip.

The backward computes everything transposed, w^T = m k q^T / n and dq^T = k^T (m ds)^T, because
Triton 3.4 to 3.7.0 on Hopper computes a wrong product if an operand is the rounded and transposed
result of another product. Equations: kernels/README.md, "Spherical attention".

Letters: E head width, E_PAD the power of two above it.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from flashsign.attention.call import AttentionCall, pointers
from flashsign.attention.dispatch import largest_bag
from flashsign.triton.common.device_functions import (
    bag_rows,
    inverse_norm,
    load_rows,
    not_finite,
    of_head,
    power_of_two,
    store_rows,
    unit_of,
)
from flashsign.triton.common.launch import start
from flashsign.triton.common.layout import aligned, aligned_call
from flashsign.tuning import tables
from flashsign.tuning.block_sizes import SmallBagBlockSizes, padded_width


@triton.jit
def load_bag(
    keys,
    key_strides,
    offsets,
    query_offsets,
    counts,
    E: tl.constexpr,
    E_PAD: tl.constexpr,
    V: tl.constexpr,
    V_PAD: tl.constexpr,
    KEYS: tl.constexpr,
    PACKED: tl.constexpr,
):
    """This program's bag and key head: index, key head, first query, number of queries, first key,
    mask of keys there, rows of keys [KEYS, 1], multiplicities [KEYS], keys [KEYS, E_PAD] and values
    [KEYS, V_PAD].

    keys: pointers k, v and multiplicity; key_strides: theirs; counts: queries_all, keys_all,
        key_heads.
    """
    k, v, multiplicity = keys
    k_bag, k_head, k_row, v_bag, v_head, v_row, m_bag, m_head = key_strides
    queries_all, keys_all, key_heads = counts
    bag, key_head = tl.program_id(0) // key_heads, tl.program_id(0) % key_heads
    first_query, queries, index = bag_rows(bag, query_offsets, queries_all, PACKED)
    first_key, keys, _ = bag_rows(bag, offsets, keys_all, PACKED)
    index, key_head = index.to(tl.int64), key_head.to(tl.int64)
    key = tl.arange(0, KEYS)
    there = key < keys
    row = (first_key + key).to(tl.int64)[:, None]
    m = tl.load(
        multiplicity + index * m_bag + key_head * m_head + first_key + key, mask=there, other=0.0
    )
    k, v = of_head(k, index, key_head, k_bag, k_head), of_head(v, index, key_head, v_bag, v_head)
    k_tile = load_rows(k, row, k_row, there, tl.arange(0, E_PAD), E)
    v_tile = load_rows(v, row, v_row, there, tl.arange(0, V_PAD), V)
    return index, key_head, first_query, queries, first_key, there, row, m, k_tile, v_tile


@triton.jit
def query_rows(step, tiles, key_head, group, first_query, queries, QUERIES: tl.constexpr):
    """The tile of a step: head, queries [QUERIES], their rows [QUERIES, 1] and mask [QUERIES].
    Steps go through the tiles of one head after the other.
    """
    head = key_head * group + step // tiles
    query = step % tiles * QUERIES + tl.arange(0, QUERIES)
    return head, query, (first_query + query).to(tl.int64)[:, None], query < queries


@triton.jit
def small_forward(
    q,
    k,
    v,
    multiplicity,
    offsets,
    query_offsets,
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
    PRECISION: tl.constexpr,
    PACKED: tl.constexpr,
):
    """Program (bag, key head) writes o, and inverse [C', heads, rows]: 1 / n."""
    index, key_head, first_query, queries, _, _, _, m, k_tile, v_tile = load_bag(
        (k, v, multiplicity),
        (k_bag, k_head, k_row, v_bag, v_head, v_row, m_bag, m_head),
        offsets,
        query_offsets,
        (queries_all, keys_all, key_heads),
        E,
        E_PAD,
        V,
        V_PAD,
        KEYS,
        PACKED,
    )
    column, of_value = tl.arange(0, E_PAD), tl.arange(0, V_PAD)
    present = (m != 0)[:, None]
    k_tile = tl.where(present, k_tile, 0.0)
    v_tile = tl.where(present, v_tile, 0.0)
    m *= power_of_two(tl.max(m))
    scaled = m[:, None] * k_tile.to(tl.float32)
    floor = eps * tl.sum(tl.sum(scaled * scaled, 1))

    tiles = tl.cdiv(queries, QUERIES)
    group = heads // key_heads
    for step in range(0, group * tiles):
        head, query, at, asked = query_rows(
            step, tiles, key_head, group, first_query, queries, QUERIES
        )
        rows = load_rows(of_head(q, index, head, q_bag, q_head), at, q_row, asked, column, E)
        s = tl.dot(rows, k_tile.T, input_precision=PRECISION) * m[None, :]
        wide = rows.to(tl.float32)
        inverse_n = inverse_norm(tl.sum(s * s, 1), floor * tl.sum(wide * wide, 1))
        outputs = tl.dot(
            (s * inverse_n[:, None]).to(v_tile.dtype), v_tile, input_precision=PRECISION
        )
        inverses = inverse + (index * heads + head) * queries_all + first_query
        tl.store(inverses + query, inverse_n, mask=asked)
        to = of_head(o, index, head, o_bag, o_head)
        store_rows(to, at, o_row, asked, of_value, V, outputs)


@triton.jit
def small_backward(
    grad,
    q,
    k,
    v,
    multiplicity,
    o,
    inverse,
    offsets,
    query_offsets,
    dq,
    dk,
    dv,
    dm,
    grad_bag,
    grad_head,
    grad_row,
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
    dq_bag,
    dq_head,
    dq_row,
    dk_bag,
    dk_head,
    dk_row,
    dv_bag,
    dv_head,
    dv_row,
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
    PRECISION: tl.constexpr,
    PACKED: tl.constexpr,
):
    """Program (bag, key head) writes dq, dk, dv, and dm [C', key heads, rows] float32."""
    index, key_head, first_query, queries, first_key, there, row, m, k_tile, v_tile = load_bag(
        (k, v, multiplicity),
        (k_bag, k_head, k_row, v_bag, v_head, v_row, m_bag, m_head),
        offsets,
        query_offsets,
        (queries_all, keys_all, key_heads),
        E,
        E_PAD,
        V,
        V_PAD,
        KEYS,
        PACKED,
    )
    column, of_value = tl.arange(0, E_PAD), tl.arange(0, V_PAD)
    scale = power_of_two(tl.max(m))
    m *= scale
    wide = k_tile.to(tl.float32)
    # An absent key has a derivative with respect to m too, unless it holds a NaN or an infinity.
    broken = ((m == 0) & not_finite(wide, v_tile))[:, None]
    v_tile = tl.where(broken, 0.0, v_tile)
    present = (m != 0)[:, None]
    k_tile = tl.where(present, k_tile, 0.0)
    scaled = m[:, None] * k_tile.to(tl.float32)
    t = tl.sum(tl.sum(scaled * scaled, 1))
    unit = unit_of(t)
    dk_sum = tl.zeros([KEYS, E_PAD], tl.float32)
    dv_sum = tl.zeros([KEYS, V_PAD], tl.float32)
    c_q_squared = tl.zeros([QUERIES], tl.float32)
    tiles = tl.cdiv(queries, QUERIES)
    group = heads // key_heads
    for step in range(0, group * tiles):
        head, query, at, asked = query_rows(
            step, tiles, key_head, group, first_query, queries, QUERIES
        )
        rows = load_rows(of_head(q, index, head, q_bag, q_head), at, q_row, asked, column, E)
        of_grad = of_head(grad, index, head, grad_bag, grad_head)
        grads = load_rows(of_grad, at, grad_row, asked, of_value, V)
        of_o = of_head(o, index, head, o_bag, o_head)
        outputs = load_rows(of_o, at, o_row, asked, of_value, V)
        inverses = inverse + (index * heads + head) * queries_all + first_query
        inverse_n = tl.load(inverses + query, mask=asked, other=0.0)
        delta = tl.sum(grads.to(tl.float32) * outputs.to(tl.float32), 1)
        # q / n has a length of about 1 / sqrt(t). q~ is q times a power of two, so exact, with
        # numbers near one.
        power = power_of_two(inverse_n)
        rest = inverse_n * power
        q_tilde = (rows.to(tl.float32) * (unit / power)[:, None]).to(rows.dtype)
        q_over_n = q_tilde.to(tl.float32) * (rest / unit)[:, None]
        c_q_squared += delta * tl.sum(q_over_n * q_over_n, 1)
        eps_term = eps * t * delta * inverse_n
        w = (
            tl.dot(k_tile, q_tilde.T, input_precision=PRECISION)
            * (m / unit)[:, None]
            * rest[None, :]
        )
        dv_sum = tl.dot(w.to(grads.dtype), grads, dv_sum, input_precision=PRECISION)
        p = tl.dot(v_tile, grads.T, input_precision=PRECISION)
        ds = (p - w * delta[None, :]) * rest[None, :]
        dk_sum = tl.dot(ds.to(rows.dtype), q_tilde, dk_sum, input_precision=PRECISION)
        ds = tl.where(present, ds * m[:, None], 0.0).to(rows.dtype)
        sums = tl.dot(k_tile.T, ds, input_precision=PRECISION).T
        sums = sums / power[:, None] - q_tilde.to(tl.float32) * (eps_term * rest / unit)[:, None]
        to = of_head(dq, index, head, dq_bag, dq_head)
        store_rows(to, at, dq_row, asked, column, E, sums)

    # Keys are read again, because the loop is short of registers.
    wide = load_rows(of_head(k, index, key_head, k_bag, k_head), row, k_row, there, column, E)
    wide = tl.where(broken, 0.0, wide.to(tl.float32))
    dk_sum = dk_sum / unit - (eps * tl.sum(c_q_squared)) * m[:, None] * wide
    dk_sum = tl.where(broken, 0.0, dk_sum)
    to_m = dm + (index * key_heads + key_head) * keys_all + first_key + tl.arange(0, KEYS)
    tl.store(to_m, tl.sum(dk_sum * wide, 1) * scale, mask=there)
    dk = of_head(dk, index, key_head, dk_bag, dk_head)
    store_rows(dk, row, dk_row, there, column, E, dk_sum * m[:, None])
    dv = of_head(dv, index, key_head, dv_bag, dv_head)
    store_rows(dv, row, dv_row, there, of_value, V, dv_sum)


def forward(call: AttentionCall, sizes: SmallBagBlockSizes | None = None) -> tuple[Tensor, Tensor]:
    """Return outputs [C', H, N, V], and 1 / n of every row, [C', H, N] float32.

    sizes: by default of tables.SMALL_BAGS.
    """
    o, inverse, call = call.empty_output(), call.empty_rows(), aligned_call(call)
    run(small_forward, call, sizes, {**pointers(o=o), "inverse": inverse}, backward=False)
    return o, inverse


def backward(
    call: AttentionCall,
    grad: Tensor,
    o: Tensor,
    inverse: Tensor,
    sizes: SmallBagBlockSizes | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return dq, dk, dv like q, k, v, and dm [C', K, M] float32 of every key head; grad: of o."""
    dq, dk, dv, dm = call.empty_gradients()
    given = {"inverse": inverse, **pointers(o=o, grad=aligned(grad))}
    results = {**pointers(dq=dq, dk=dk, dv=dv), "dm": dm}
    run(small_backward, aligned_call(call), sizes, {**given, **results}, backward=True)
    return dq, dk, dv, dm


def run(
    kernel: Any,
    call: AttentionCall,
    sizes: SmallBagBlockSizes | None,
    arguments: dict[str, Any],
    backward: bool,
) -> None:
    """Launch a kernel, one program for each bag and key head."""
    if sizes is None:
        table = tables.SMALL_BAGS[call.q.element_size(), call.width]
        sizes = table.backward if backward else table.forward
    largest = largest_bag(call.q, call.k, call.offsets, call.query_offsets)
    most_keys, most_queries = largest or (0, 0)
    keys = padded_width(most_keys)
    queries = min(padded_width(most_queries), sizes.queries, sizes.scores // keys)
    start(
        kernel,
        (call.bags * call.heads[1],),
        {**call.arguments, **arguments, "QUERIES": queries, "KEYS": keys},
        num_warps=sizes.warps,
        num_stages=1,
    )
