"""One template of streamed attention for every row of attention_rows: two running sums a query.

    s_ij = m_j q_i.k_j, or q_i.k_j + log m_j where the row is exponential

Forward:

    u_i  = sum_j a1(s_ij) v_j
    z_i  = sum_j a2(s_ij)
    o_i  = u_i r(z_i)

Backward:

    dz_i  = <do_i, o_i> r'(z_i) / r(z_i)
    ds_ij = a1'(s_ij) r_i <do_i, v_j> + a2'(s_ij) dz_i

An exponential row is taken back with the log of its sum: then z and r are 1, and the same lines
hold. Nothing is transposed between two products: the pass over keys computes s^T = K Q^T and
p^T = V dO^T. Dense bags only; the tuned kernels of the spherical row are in
flashsign.triton.streaming.

Letters: C bags, H query heads, K key heads, N queries, M keys, E width.
q [C, H, N, E], k and v [C, K, M, E].
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashsign.attention.call import multiplicity_strides, precision
from flashsign.folds.kernels.attention_rows import Row
from flashsign.folds.kernels.fold_tables import (
    ATTENTION,
    ATTENTION_KEYS,
    ATTENTION_QUERIES,
    of_width,
)
from flashsign.triton.common.device_functions import store_rows
from flashsign.triton.common.launch import start
from flashsign.triton.common.layout import cdiv, descriptor
from flashsign.tuning.block_sizes import BlockSizes, padded_width

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def multiplicities(m, key, there, EXPONENTIAL: tl.constexpr):
    """Return what scores of these keys are multiplied with, or, where the row is exponential, what
    is added in log2.
    """
    if m is None:
        if EXPONENTIAL:
            return tl.where(there, 0.0, float("-inf"))
        else:
            return tl.where(there, 1.0, 0.0)
    else:
        found = tl.load(m + key, mask=there, other=0.0)
        if EXPONENTIAL:
            return tl.where(found > 0, tl.log2(found), float("-inf"))
        else:
            return found


@triton.jit
def attend(
    q,
    k,
    v,
    m,
    floors,
    o,
    log_sum,
    inverse,
    dz_scale,
    queries,
    keys,
    heads,
    key_heads,
    m_bag,
    m_head,
    eps,
    E: tl.constexpr,
    E_PAD: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
    LIFT: tl.constexpr,
    NORMALISE: tl.constexpr,
    LOG_SLOPE: tl.constexpr,
    EXPONENTIAL: tl.constexpr,
    RELATIVE: tl.constexpr,
):
    """Program (tile of queries, head, bag). q, k, v: descriptors; m [C, 1 or K, M] or None; floors
    [C, K]: t, or None.

    Writes o [C, H, N, E] contiguous and, [C, H, N] float32: log_sum (log2 of the sum, exponential
    rows only), r, and r' / r.
    """
    start_row, head, bag = tl.program_id(0) * QUERIES, tl.program_id(1), tl.program_id(2)
    key_head = head // (heads // key_heads)
    rows = q.load([bag, head, start_row, 0]).reshape(QUERIES, E_PAD)
    if m is not None:
        m += bag.to(tl.int64) * m_bag + key_head.to(tl.int64) * m_head
    u = tl.zeros([QUERIES, E_PAD], tl.float32)
    z = tl.zeros([QUERIES], tl.float32)
    top = tl.full([QUERIES], float("-inf"), tl.float32)
    for begin in tl.range(0, keys, KEYS, num_stages=STAGES):
        k_tile = k.load([bag, key_head, begin, 0]).reshape(KEYS, E_PAD)
        v_tile = v.load([bag, key_head, begin, 0]).reshape(KEYS, E_PAD)
        s = tl.dot(rows, k_tile.T, input_precision=PRECISION)
        key = begin + tl.arange(0, KEYS)
        if EXPONENTIAL:
            s = s * LOG2_E + multiplicities(m, key, key < keys, True)[None, :]
            new = tl.maximum(top, tl.max(s, 1))
            shift = tl.where(new == float("-inf"), 0.0, new)
            rescaled = tl.exp2(top - shift)
            s -= shift[:, None]
            u *= rescaled[:, None]
            z *= rescaled
            top = new
        elif m is not None:
            s *= multiplicities(m, key, key < keys, False)[None, :]
        weight, size = LIFT(s)
        z += tl.sum(size, 1)
        u = tl.dot(weight.to(v_tile.dtype), v_tile, u, input_precision=PRECISION)

    query = start_row + tl.arange(0, QUERIES)
    there = query < queries
    at = (bag.to(tl.int64) * heads + head) * queries + query
    floor = tl.zeros([QUERIES], tl.float32)
    if RELATIVE:
        wide = rows.to(tl.float32)
        floor = eps * tl.load(floors + bag * key_heads + key_head) * tl.sum(wide * wide, 1)
    r = NORMALISE(z, floor)
    if EXPONENTIAL:
        tl.store(log_sum + at, tl.where(z > 0, top + tl.log2(z), float("inf")), mask=there)
        tl.store(inverse + at, tl.where(z > 0, 1.0, 0.0), mask=there)
        tl.store(dz_scale + at, tl.where(z > 0, -1.0, 0.0), mask=there)
    else:
        tl.store(inverse + at, r, mask=there)
        tl.store(dz_scale + at, LOG_SLOPE(z, floor), mask=there)
    column = tl.arange(0, E_PAD)
    store_rows(o, at[:, None], E, there, column, E, u * r[:, None])


@triton.jit
def query_gradients(
    q,
    k,
    v,
    grad,
    m,
    floors,
    log_sum,
    inverse,
    dz,
    d_q,
    queries,
    keys,
    heads,
    key_heads,
    m_bag,
    m_head,
    eps,
    E: tl.constexpr,
    E_PAD: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
    LIFT: tl.constexpr,
    SLOPES: tl.constexpr,
    EXPONENTIAL: tl.constexpr,
    RELATIVE: tl.constexpr,
):
    """Program (tile of queries, head, bag) writes d_q [C, H, N, E]. grad: a descriptor like q;
    inverse: r.
    """
    start_row, head, bag = tl.program_id(0) * QUERIES, tl.program_id(1), tl.program_id(2)
    key_head = head // (heads // key_heads)
    rows = q.load([bag, head, start_row, 0]).reshape(QUERIES, E_PAD)
    grads = grad.load([bag, head, start_row, 0]).reshape(QUERIES, E_PAD)
    query = start_row + tl.arange(0, QUERIES)
    there = query < queries
    at = (bag.to(tl.int64) * heads + head) * queries + query
    r = tl.load(inverse + at, mask=there, other=0.0)
    slope = tl.load(dz + at, mask=there, other=0.0)
    if EXPONENTIAL:
        shift = tl.load(log_sum + at, mask=there, other=0.0)
    if m is not None:
        m += bag.to(tl.int64) * m_bag + key_head.to(tl.int64) * m_head
    sums = tl.zeros([QUERIES, E_PAD], tl.float32)
    for begin in tl.range(0, keys, KEYS, num_stages=STAGES):
        k_tile = k.load([bag, key_head, begin, 0]).reshape(KEYS, E_PAD)
        v_tile = v.load([bag, key_head, begin, 0]).reshape(KEYS, E_PAD)
        s = tl.dot(rows, k_tile.T, input_precision=PRECISION)
        key = begin + tl.arange(0, KEYS)
        if EXPONENTIAL:
            s = s * LOG2_E + multiplicities(m, key, key < keys, True)[None, :] - shift[:, None]
        elif m is not None:
            factor = multiplicities(m, key, key < keys, False)[None, :]
            s *= factor
        first, second = SLOPES(s)
        p = tl.dot(grads, v_tile.T, input_precision=PRECISION)
        d_s = first * (p * r[:, None]) + second * slope[:, None]
        if not EXPONENTIAL and m is not None:
            d_s *= factor
        sums = tl.dot(d_s.to(k_tile.dtype), k_tile, sums, input_precision=PRECISION)
    if RELATIVE:
        sums += (2.0 * eps * slope * tl.load(floors + bag * key_heads + key_head))[
            :, None
        ] * rows.to(tl.float32)
    column = tl.arange(0, E_PAD)
    store_rows(d_q, at[:, None], E, there, column, E, sums)


@triton.jit
def key_gradients(
    q,
    k,
    v,
    grad,
    m,
    d_floors,
    log_sum,
    inverse,
    dz,
    d_k,
    d_v,
    d_m,
    queries,
    keys,
    heads,
    key_heads,
    m_bag,
    m_head,
    E: tl.constexpr,
    E_PAD: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
    LIFT: tl.constexpr,
    SLOPES: tl.constexpr,
    EXPONENTIAL: tl.constexpr,
    RELATIVE: tl.constexpr,
):
    """Program (tile of keys, key head, bag) writes d_k, d_v [C, K, M, E] and, unless m is None, d_m
    [C, K, M] float32.

    d_floors [C, K]: the gradient for t, or None.
    """
    begin, key_head, bag = tl.program_id(0) * KEYS, tl.program_id(1), tl.program_id(2)
    k_tile = k.load([bag, key_head, begin, 0]).reshape(KEYS, E_PAD)
    v_tile = v.load([bag, key_head, begin, 0]).reshape(KEYS, E_PAD)
    key = begin + tl.arange(0, KEYS)
    there = key < keys
    if m is not None:
        m += bag.to(tl.int64) * m_bag + key_head.to(tl.int64) * m_head
    factor = multiplicities(m, key, there, EXPONENTIAL)
    group = heads // key_heads
    tiles = tl.cdiv(queries, QUERIES)
    k_sum = tl.zeros([KEYS, E_PAD], tl.float32)
    v_sum = tl.zeros([KEYS, E_PAD], tl.float32)
    s_sum = tl.zeros([KEYS], tl.float32)
    for step in tl.range(0, group * tiles, num_stages=STAGES):
        head = key_head * group + step // tiles
        first_row = step % tiles * QUERIES
        rows = q.load([bag, head, first_row, 0]).reshape(QUERIES, E_PAD)
        grads = grad.load([bag, head, first_row, 0]).reshape(QUERIES, E_PAD)
        query = first_row + tl.arange(0, QUERIES)
        at = (bag.to(tl.int64) * heads + head) * queries + query
        r = tl.load(inverse + at, mask=query < queries, other=0.0)
        slope = tl.load(dz + at, mask=query < queries, other=0.0)
        s = tl.dot(k_tile, rows.T, input_precision=PRECISION)
        if EXPONENTIAL:
            shift = tl.load(log_sum + at, mask=query < queries, other=float("inf"))
            s = s * LOG2_E + factor[:, None] - shift[None, :]
        else:
            s *= factor[:, None]
        weight, _ = LIFT(s)
        first, second = SLOPES(s)
        p = tl.dot(v_tile, grads.T, input_precision=PRECISION)
        d_s = first * (p * r[None, :]) + second * slope[None, :]
        if EXPONENTIAL:
            s_sum += tl.sum(d_s, 1)
        v_sum = tl.dot(
            (weight * r[None, :]).to(grads.dtype), grads, v_sum, input_precision=PRECISION
        )
        k_sum = tl.dot(d_s.to(rows.dtype), rows, k_sum, input_precision=PRECISION)
    column = tl.arange(0, E_PAD)
    at = (bag.to(tl.int64) * key_heads + key_head) * keys + key
    wide = k_tile.to(tl.float32)
    if not EXPONENTIAL:
        if RELATIVE:
            k_sum += 2.0 * tl.load(d_floors + bag * key_heads + key_head) * factor[:, None] * wide
        if m is not None:
            tl.store(d_m + at, tl.sum(k_sum * wide, 1), mask=there)
        k_sum *= factor[:, None]
    elif m is not None:
        count = tl.load(m + key, mask=there, other=0.0)
        tl.store(
            d_m + at, tl.where(count > 0, s_sum / tl.where(count > 0, count, 1.0), 0.0), mask=there
        )
    store_rows(d_k, at[:, None], E, there, column, E, k_sum)
    store_rows(d_v, at[:, None], E, there, column, E, v_sum)


class Totals(NamedTuple):
    """Totals of every query that the backward needs, [C, H, N] float32: log2 of an exponential
    row's sum, r, and r' / r; and t [C, K] of a relative row.
    """

    log_sum: Tensor | None
    inverse: Tensor
    dz_scale: Tensor
    t: Tensor | None


def forward(
    row: Row,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    m: Tensor | None,
    eps: float,
    sizes: BlockSizes | None = None,
) -> tuple[Tensor, Totals]:
    """Return o like q, contiguous, and totals.

    q, k, v as common.layout.aligned leaves them; m [C, 1 or K, M] float32.
    """
    bags, heads, queries, width = q.shape
    sizes = sizes or of_width(ATTENTION, q, width, 3)
    t = None
    if row.relative:
        squares = k.float().square().sum(-1)
        t = (squares if m is None else squares * m.square()).sum(-1).contiguous()
    o = q.new_empty(q.shape)
    log_sum = q.new_empty(q.shape[:3], dtype=torch.float32) if row.exponential else None
    inverse, dz_scale = (q.new_empty(q.shape[:3], dtype=torch.float32) for _ in range(2))
    start(
        attend,
        (cdiv(queries, sizes.own), heads, bags),
        {
            **_arguments(row, q, k, v, m, sizes.own, sizes.other, sizes.stages),
            "floors": t,
            "eps": eps,
            "o": o,
            "log_sum": log_sum,
            "inverse": inverse,
            "dz_scale": dz_scale,
        },
        num_warps=sizes.warps,
    )
    return o, Totals(log_sum, inverse, dz_scale, t)


def backward(
    row: Row,
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    m: Tensor | None,
    o: Tensor,
    totals: Totals,
    eps: float,
    query_sizes: BlockSizes | None = None,
    key_sizes: BlockSizes | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return gradients for q, k, v and, of every key head, m [C, K, M] float32. grad: like q,
    aligned.
    """
    (bags, heads, queries, width), (key_heads, keys) = q.shape, k.shape[1:3]
    log_sum, inverse, dz_scale, t = totals
    dz = (grad.float() * o).sum(-1) * dz_scale
    d_t = None
    if row.relative:
        d_t = (dz * q.float().square().sum(-1)).reshape(bags, key_heads, -1).sum(-1) * eps
    d_q, d_k, d_v = q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)
    d_m = None if m is None else k.new_empty(k.shape[:3], dtype=torch.float32)
    given = {"log_sum": log_sum, "inverse": inverse, "dz": dz, "eps": eps}
    sizes = query_sizes or of_width(ATTENTION_QUERIES, q, width)
    start(
        query_gradients,
        (cdiv(queries, sizes.own), heads, bags),
        {
            **_arguments(row, q, k, v, m, sizes.own, sizes.other, sizes.stages),
            **given,
            "grad": descriptor(grad, sizes.own),
            "floors": t,
            "d_q": d_q,
        },
        num_warps=sizes.warps,
    )
    sizes = key_sizes or of_width(ATTENTION_KEYS, q, width)
    start(
        key_gradients,
        (cdiv(keys, sizes.own), key_heads, bags),
        {
            **_arguments(row, q, k, v, m, sizes.other, sizes.own, sizes.stages),
            **given,
            "grad": descriptor(grad, sizes.other),
            "d_floors": d_t,
            "d_k": d_k,
            "d_v": d_v,
            "d_m": d_m,
        },
        num_warps=sizes.warps,
    )
    return d_q, d_k, d_v, d_m


def _arguments(
    row: Row,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    m: Tensor | None,
    queries: int,
    keys: int,
    stages: int,
) -> dict[str, Any]:
    """Return the arguments that all kernels have in common; queries, keys: of a tile."""
    return {
        "q": descriptor(q, queries),
        "k": descriptor(k, keys),
        "v": descriptor(v, keys),
        "m": m,
        **({"m_bag": 0, "m_head": 0} if m is None else multiplicity_strides(m)),
        "queries": q.shape[2],
        "keys": k.shape[2],
        "heads": q.shape[1],
        "key_heads": k.shape[1],
        "E": q.shape[3],
        "E_PAD": padded_width(q.shape[3]),
        "QUERIES": queries,
        "KEYS": keys,
        "STAGES": stages,
        "PRECISION": precision(q.dtype),
        "LIFT": row.lift,
        "SLOPES": row.slopes,
        "NORMALISE": row.normalise,
        "LOG_SLOPE": row.log_slope,
        "EXPONENTIAL": row.exponential,
        "RELATIVE": row.relative,
    }
