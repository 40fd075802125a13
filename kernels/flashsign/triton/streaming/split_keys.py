"""Tiles of queries whose keys were dealt out: what the shares sum to, added in one order, and what comes of it.

    u_i = sum_share u_i,share      z_i = sum_share z_i,share      o_i = u_i / sqrt(z_i + eps |q_i|^2 t + tiny)

Both sums are a commutative monoid's, so any parts will do; one order, so that a call twice has the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_wait

from flashsign.triton.common.device_functions import inverse_norm, marked
from flashsign.triton.common.launch import Keys, start, starts_early, steps
from flashsign.triton.streaming.scaled_keys import bag_totals
from flashsign.tuning.split_keys import Waves

ROWS = 16
"""Of a program: small tiles, so that all multiprocessors have some."""


@triton.jit
def add_shares(
    q, sums, squares, totals, o, inverse,
    q_bag, q_head, q_row, o_bag, o_head, o_row, queries, tiles, heads, key_heads, parts, first, shares, eps,
    E: tl.constexpr, E_PAD: tl.constexpr, QUERIES: tl.constexpr, ROWS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Program (tile, part): ROWS rows of tile `first + tile` of dense bags. Writes o and inverse, less than zero where
    u is no number (see mend.py).

    sums [tiles * shares * QUERIES, E], squares [tiles * shares * QUERIES]: float32, shares of one tile in a row.
    """
    number = tl.program_id(0)
    tile, head, bag = (first + number) % tiles, (first + number) // tiles % heads, (first + number) // tiles // heads
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    query = tile * QUERIES + row
    column = tl.arange(0, E_PAD)
    here = (query < queries)[:, None] & (column < E)[None, :]
    index, at = bag.to(tl.int64), query.to(tl.int64)[:, None]
    q += index * q_bag + head.to(tl.int64) * q_head
    rows = tl.load(q + at * q_row + column[None, :], mask=here, other=0.0).to(tl.float32)
    if EARLY:
        gdc_wait()
    u = tl.zeros([ROWS, E_PAD], tl.float32)
    z = tl.zeros([ROWS], tl.float32)
    for share in range(0, shares):
        part = ((number * shares + share) * QUERIES + row).to(tl.int64)
        u += tl.load(sums + part[:, None] * E + column[None, :], mask=here, other=0.0)
        z += tl.load(squares + part)
    _, t = bag_totals(totals, parts, bag, head // (heads // key_heads), key_heads)
    norm = inverse_norm(z, eps * tl.sum(rows * rows, 1) * t)
    broken = tl.max(tl.where(u == u, 0, 1), 1) > 0
    at_norm = inverse + (index * heads + head) * queries + query
    tl.store(at_norm, marked(norm, broken), mask=query < queries)
    o += index * o_bag + head.to(tl.int64) * o_head
    tl.store(o + at * o_row + column[None, :], (u * norm[:, None]).to(o.dtype.element_ty), mask=here)


def add(
    q: Tensor, keys: Keys, sums: Tensor, squares: Tensor, tiles: int, own: int, waves: Waves, eps: float,
    o: Tensor, inverse: Tensor,
) -> None:  # fmt: skip
    """o [C, H, N, E] and inverse [C, H, N] of a call's last tiles, `own` queries each, `tiles` a head."""
    early = starts_early(q)
    start(
        add_shares, (waves.left, own // ROWS), (q, sums, squares, keys.totals, o, inverse),
        (*steps(q), *steps(o), q.shape[2], tiles, q.shape[1], keys.totals.shape[1], keys.parts, waves.whole,
         waves.shares, eps),
        {"E": q.shape[-1], "E_PAD": sums.shape[-1], "QUERIES": own, "ROWS": ROWS, "EARLY": early},
        num_warps=4, launch_pdl=early,
    )  # fmt: skip
