"""The penalty on slopes of tables of scores. Forward reads them twice, as tiles stay in the cache while they are read
again; backward reads them twice and writes their gradient.

In torch operations, with the formulas: flashsign.slope_penalty, which passes over them about twenty times.

Letters: P members, H heads, S states, N queries, K keys.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashsign.triton.common.launch import start
from flashsign.triton.common.layout import cdiv, shares

CHANGING = ["heads", "states", "queries", "each"]
"""Numbers for which no kernel is compiled of its own."""
ROWS = 8
"""Queries of a tile."""


@triton.jit(do_not_specialize=CHANGING)
def norm_kernel(
    scores, square, norm,
    heads, states, queries, keys,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """sum_j E[m_j^2] s_ij^2. norm [P, H, S, N]; a program does some queries of one table."""
    table, query = tl.program_id(0).to(tl.int64), tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    square += (table // (heads * states) * states + table % states) * keys
    total = tl.zeros([ROWS], tl.float32)
    for first in range(0, keys, COLUMNS):
        key = first + tl.arange(0, COLUMNS)
        here = (query < queries)[:, None] & (key < keys)[None, :]
        s = tl.load(scores + (table * queries + query[:, None]) * keys + key[None, :], mask=here, other=0.0)
        total += tl.sum(s * s * tl.load(square + key, mask=key < keys, other=0.0)[None, :], 1)
    tl.store(norm + table * queries + query, total, mask=query < queries)


@triton.jit
def slope_of(
    scores, amount, factor, prior, member, state, query, key, here,
    states, queries, keys,
    HEADS: tl.constexpr, PRIOR: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A tile of the slopes of one state."""
    slope = tl.zeros([ROWS, COLUMNS], tl.float32)
    for head in tl.static_range(HEADS):
        lead = member * HEADS + head
        table = (lead * states + state) * queries + query
        s = tl.load(scores + table[:, None] * keys + key[None, :], mask=here, other=0.0)
        a = tl.load(amount + lead * keys + key, mask=key < keys, other=0.0)
        f = tl.load(factor + table, mask=query < queries, other=0.0)
        slope += s * a[None, :] * f[:, None]
    if PRIOR:  # div_rn, whose result is the same wherever it is used: one state deviates by exactly 0 from itself
        at = query.to(tl.int64)[:, None] * keys + key[None, :]
        slope = tl.div_rn(slope, tl.load(prior + at, mask=here, other=1.0))
    return slope


@triton.jit(do_not_specialize=CHANGING)
def value_kernel(
    scores, amount, factor, prior, penalty, of_slopes, value,
    states, queries, keys,
    HEADS: tl.constexpr, PRIOR: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A program does a tile of queries and keys in all states of a member. factor [P, H, S, N]: g / n; of_slopes [P, S,
    N, K]: the gradient of the slopes; value [P, tiles]: what the tile adds."""
    member, tile = tl.program_id(1).to(tl.int64), tl.program_id(0)
    across = tl.cdiv(keys, COLUMNS)
    query = tile // across * ROWS + tl.arange(0, ROWS)
    key = tile % across * COLUMNS + tl.arange(0, COLUMNS)
    here = (query < queries)[:, None] & (key < keys)[None, :]
    penalty += member * 3
    lam, rho, t = tl.load(penalty), tl.load(penalty + 1), tl.load(penalty + 2)
    shared = tl.zeros([ROWS, COLUMNS], tl.float32)
    for state in range(states):
        shared += slope_of(
            scores, amount, factor, prior, member, state, query, key, here, states, queries, keys,
            HEADS, PRIOR, ROWS, COLUMNS,
        )  # fmt: skip
    shared /= states
    size = tl.zeros([ROWS, COLUMNS], tl.float32)
    for state in range(states):
        deviation = slope_of(
            scores, amount, factor, prior, member, state, query, key, here, states, queries, keys,
            HEADS, PRIOR, ROWS, COLUMNS,
        ) - shared  # fmt: skip
        size += deviation * deviation
    penalised = tl.where((key == keys - 1)[None, :], 0.0, shared)
    size = size / (rho * rho) + penalised * penalised
    weight = tl.full([ROWS, COLUMNS], 1.0, tl.float32)
    found = size
    if t > 0:
        bend = t * t
        ratio = size / bend
        # log(1 + x) loses x where it is small: three terms of the series are exact there.
        found = bend * tl.where(ratio < 1e-3, ratio - ratio * ratio * (0.5 - ratio / 3), tl.log(1 + ratio))
        weight = bend / (bend + size)
    tl.store(value + member * tl.num_programs(0) + tile, lam * tl.sum(tl.where(here, found, 0.0)))
    weight *= 2 * lam / states
    for state in range(states):
        slope = slope_of(
            scores, amount, factor, prior, member, state, query, key, here, states, queries, keys,
            HEADS, PRIOR, ROWS, COLUMNS,
        )  # fmt: skip
        own = ((slope - shared) * (states / (rho * rho)) + penalised) * weight
        if PRIOR:
            own /= tl.load(prior + query.to(tl.int64)[:, None] * keys + key[None, :], mask=here, other=1.0)
        at = ((member * states + state) * queries + query[:, None]) * keys + key[None, :]
        tl.store(of_slopes + at, own, mask=here)


@triton.jit(do_not_specialize=CHANGING)
def factor_kernel(
    scores, amount, of_slopes, of_factor,
    heads, states, queries, keys,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """sum over keys of a_j s_ij times the gradient of the slope. of_factor [P, H, S, N]."""
    table, query = tl.program_id(0).to(tl.int64), tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    amount += table // states * keys
    of_slopes += (table // (heads * states) * states + table % states) * queries * keys
    total = tl.zeros([ROWS], tl.float32)
    for first in range(0, keys, COLUMNS):
        key = first + tl.arange(0, COLUMNS)
        here = (query < queries)[:, None] & (key < keys)[None, :]
        at = query.to(tl.int64)[:, None] * keys + key[None, :]
        s = tl.load(scores + table * queries * keys + at, mask=here, other=0.0)
        d = tl.load(of_slopes + at, mask=here, other=0.0)
        total += tl.sum(s * d * tl.load(amount + key, mask=key < keys, other=0.0)[None, :], 1)
    tl.store(of_factor + table * queries + query, total, mask=query < queries)


@triton.jit(do_not_specialize=CHANGING)
def gradient_kernel(
    scores, amount, square, of_slopes, scaled, of_norm, of_scores, of_amount,
    heads, states, queries, keys, each,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A program does some keys of one table with `each` of the queries. scaled, of_norm [P, H, S, N]: g / n times the
    gradient of the penalty, and that of n^2; of_scores like scores; of_amount [parts, P, H, S, K]: what these queries
    add."""
    table, key = tl.program_id(0).to(tl.int64), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    part, tables = tl.program_id(2), tl.num_programs(0).to(tl.int64)
    of_state = table // (heads * states) * states + table % states
    a = tl.load(amount + table // states * keys + key, mask=key < keys, other=0.0)
    q = tl.load(square + of_state * keys + key, mask=key < keys, other=0.0)
    of_slopes += of_state * queries * keys
    total = tl.zeros([COLUMNS], tl.float32)
    for first in range(part * each, tl.minimum((part + 1) * each, queries), ROWS):
        query = first + tl.arange(0, ROWS)
        here = (query < queries)[:, None] & (key < keys)[None, :]
        at = query.to(tl.int64)[:, None] * keys + key[None, :]
        s = tl.load(scores + table * queries * keys + at, mask=here, other=0.0)
        d = tl.load(of_slopes + at, mask=here, other=0.0)
        d *= tl.load(scaled + table * queries + query, mask=query < queries, other=0.0)[:, None]
        n = tl.load(of_norm + table * queries + query, mask=query < queries, other=0.0)
        total += tl.sum(d * s, 0)
        tl.store(of_scores + table * queries * keys + at, d * a[None, :] + 2 * s * q[None, :] * n[:, None], mask=here)
    tl.store(of_amount + (part * tables + table) * keys + key, total, mask=key < keys)


def columns(keys: int) -> int:
    """Keys of a tile."""
    return 128 if keys <= 128 else 256


def norms(scores: Tensor, square: Tensor) -> Tensor:
    """scores [P, H, S, N, K], square [P, S, K], both contiguous -> [P, H, S, N]."""
    norm = scores.new_empty(scores.shape[:-1])
    _of_rows(norm_kernel, scores, {"scores": scores, "square": square, "norm": norm})
    return norm


def value(
    scores: Tensor, amount: Tensor, factor: Tensor, penalty: Tensor, prior: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The penalty [P], and its gradient by the slopes, [P, S, N, K]."""
    members, heads, states, queries, keys = scores.shape
    of_slopes = scores.new_empty(members, states, queries, keys)
    tiles = cdiv(queries, ROWS) * cdiv(keys, columns(keys))
    found = scores.new_empty(members, tiles)
    start(
        value_kernel,
        (tiles, members),
        tensors={
            "scores": scores, "amount": amount, "factor": factor.contiguous(),
            "prior": amount if prior is None else prior, "penalty": penalty, "of_slopes": of_slopes, "value": found,
        },
        numbers={"states": states, "queries": queries, "keys": keys},
        constants={"HEADS": heads, "PRIOR": prior is not None, "ROWS": ROWS, "COLUMNS": columns(keys)},
        num_warps=4,
    )  # fmt: skip
    return found.sum(1), of_slopes


def of_factors(scores: Tensor, amount: Tensor, of_slopes: Tensor) -> Tensor:
    """[P, H, S, N]."""
    found = scores.new_empty(scores.shape[:-1])
    tensors = {"scores": scores, "amount": amount, "of_slopes": of_slopes, "of_factor": found}
    _of_rows(factor_kernel, scores, tensors)
    return found


def gradients(
    scores: Tensor, amount: Tensor, square: Tensor, of_slopes: Tensor, scaled: Tensor, of_norm: Tensor
) -> tuple[Tensor, Tensor]:
    """Of scores and of amount [P, H, K]."""
    _, heads, states, queries, keys = scores.shape
    tables, tiles = scores.shape[:3].numel(), cdiv(keys, columns(keys))
    each, parts = shares(queries, ROWS, tables * tiles)
    of_scores, of_amount = torch.empty_like(scores), scores.new_empty(parts, *scores.shape[:3], keys)
    start(
        gradient_kernel,
        (tables, tiles, parts),
        tensors={
            "scores": scores, "amount": amount, "square": square, "of_slopes": of_slopes,
            "scaled": scaled.contiguous(), "of_norm": of_norm.contiguous(),
            "of_scores": of_scores, "of_amount": of_amount,
        },
        numbers={"heads": heads, "states": states, "queries": queries, "keys": keys, "each": each},
        constants={"ROWS": ROWS, "COLUMNS": columns(keys)},
        num_warps=4,
    )  # fmt: skip
    return of_scores, of_amount.sum((0, 3))


def _of_rows(kernel: Any, scores: Tensor, tensors: dict[str, Tensor]) -> None:
    """A program for each tile of queries of each table."""
    _, heads, states, queries, keys = scores.shape
    start(
        kernel,
        (scores.shape[:3].numel(), cdiv(queries, ROWS)),
        tensors=tensors,
        numbers={"heads": heads, "states": states, "queries": queries, "keys": keys},
        constants={"ROWS": ROWS, "COLUMNS": columns(keys)},
        num_warps=4,
    )
