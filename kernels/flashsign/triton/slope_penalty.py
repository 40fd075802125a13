"""The penalty on slopes of tables of scores, and its gradient by the slopes, in one pass over the
tables: a tile stays in the cache while it is read again. The passes before and after it are those
of attention (triton/shared_scores.py).

In torch operations, with the formulas: flashsign.slope_penalty, which passes over them about twenty
times.

Letters: P members, H heads, S states, N queries, K keys.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from flashsign.triton.common.launch import start
from flashsign.triton.common.layout import cdiv, fitting

CHANGING = ["states", "queries"]
"""Numbers for which no kernel is compiled of its own."""
TILE = (2, 256, 2)
"""Queries and keys of a tile and its warps."""


@triton.jit
def slope_of(
    state,
    tensors,
    member,
    tile,
    sizes,
    HEADS: tl.constexpr,
    PRIOR: tl.constexpr,
):
    """A tile of the slopes of one state.

    tensors: pointers to scores, amounts, factors and the prior; tile: its queries, its keys and its
    mask; sizes: states, queries, keys.
    """
    scores, amount, factor, prior = tensors
    query, key, here = tile
    states, queries, keys = sizes
    slope = tl.zeros(here.shape, tl.float32)
    for head in tl.static_range(HEADS):
        lead = member * HEADS + head
        table = (lead * states + state) * queries + query
        s = tl.load(scores + table[:, None] * keys + key[None, :], mask=here, other=0.0)
        a = tl.load(amount + lead * keys + key, mask=key < keys, other=0.0)
        f = tl.load(factor + table, mask=query < queries, other=0.0)
        slope += s * a[None, :] * f[:, None]
    # div_rn, whose result is the same wherever it is used: one state deviates by exactly 0 from
    # itself
    if PRIOR:
        at = query.to(tl.int64)[:, None] * keys + key[None, :]
        slope = tl.div_rn(slope, tl.load(prior + at, mask=here, other=1.0))
    return slope


@triton.jit(do_not_specialize=CHANGING)
def value_kernel(
    scores,
    amount,
    factor,
    prior,
    penalty,
    of_slopes,
    of_factor,
    value,
    states,
    queries,
    keys,
    HEADS: tl.constexpr,
    PRIOR: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """A program does a tile of queries and keys in all states of a member. factor [P, H, S, N]: g /
    n; of_slopes [P, S, N, K]: the gradient of the slopes; of_factor [tiles of keys, P, H, S, N] and
    value [P, tiles]: what the tile adds to the gradient of the factors and to the penalty.
    """
    member, tile = tl.program_id(1).to(tl.int64), tl.program_id(0)
    across = tl.cdiv(keys, COLUMNS)
    query = tile // across * ROWS + tl.arange(0, ROWS)
    key = tile % across * COLUMNS + tl.arange(0, COLUMNS)
    here = (query < queries)[:, None] & (key < keys)[None, :]
    tensors, whole = (scores, amount, factor, prior), (query, key, here)
    sizes = (states, queries, keys)
    penalty += member * 3
    lam, rho, t = tl.load(penalty), tl.load(penalty + 1), tl.load(penalty + 2)
    shared = tl.zeros([ROWS, COLUMNS], tl.float32)
    for state in range(states):
        shared += slope_of(state, tensors, member, whole, sizes, HEADS, PRIOR)
    shared /= states
    size = tl.zeros([ROWS, COLUMNS], tl.float32)
    for state in range(states):
        deviation = slope_of(state, tensors, member, whole, sizes, HEADS, PRIOR) - shared
        size += deviation * deviation
    penalised = tl.where((key == keys - 1)[None, :], 0.0, shared)
    size = size / (rho * rho) + penalised * penalised
    weight = tl.full([ROWS, COLUMNS], 1.0, tl.float32)
    found = size
    if t > 0:
        bend = t * t
        ratio = size / bend
        # log(1 + x) loses x where it is small: three terms of the series are exact there.
        found = bend * tl.where(
            ratio < 1e-3, ratio - ratio * ratio * (0.5 - ratio / 3), tl.log(1 + ratio)
        )
        weight = bend / (bend + size)
    tl.store(value + member * tl.num_programs(0) + tile, lam * tl.sum(tl.where(here, found, 0.0)))
    weight *= 2 * lam / states
    for state in range(states):
        slope = slope_of(state, tensors, member, whole, sizes, HEADS, PRIOR)
        own = ((slope - shared) * (states / (rho * rho)) + penalised) * weight
        if PRIOR:
            own /= tl.load(
                prior + query.to(tl.int64)[:, None] * keys + key[None, :], mask=here, other=1.0
            )
        at = ((member * states + state) * queries + query[:, None]) * keys + key[None, :]
        tl.store(of_slopes + at, own, mask=here)
        for head in tl.static_range(HEADS):
            lead = member * HEADS + head
            table = (lead * states + state) * queries + query
            s = tl.load(scores + table[:, None] * keys + key[None, :], mask=here, other=0.0)
            a = tl.load(amount + lead * keys + key, mask=key < keys, other=0.0)
            at = tile % across * tl.num_programs(1).to(tl.int64) * HEADS * states * queries + table
            tl.store(of_factor + at, tl.sum(own * s * a[None, :], 1), mask=query < queries)


def value(
    scores: Tensor, amount: Tensor, factor: Tensor, penalty: Tensor, prior: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the penalty [P], and its gradient by the slopes, [P, S, N, K], and by the factors,
    [P, H, S, N].
    """
    members, heads, states, queries, keys = scores.shape
    rows, columns, warps = fitting(keys, TILE)
    across, down = cdiv(keys, columns), cdiv(queries, rows)
    of_slopes = scores.new_empty(members, states, queries, keys)
    of_factor = scores.new_empty(across, *factor.shape)
    found = scores.new_empty(members, across * down)
    start(
        value_kernel,
        (across * down, members),
        {
            "scores": scores,
            "amount": amount,
            "factor": factor.contiguous(),
            "prior": amount if prior is None else prior,
            "penalty": penalty,
            "of_slopes": of_slopes,
            "of_factor": of_factor,
            "value": found,
            "states": states,
            "queries": queries,
            "keys": keys,
            "HEADS": heads,
            "PRIOR": prior is not None,
            "ROWS": rows,
            "COLUMNS": columns,
        },
        num_warps=warps,
    )
    return found.sum(1), of_slopes, of_factor.sum(0)
