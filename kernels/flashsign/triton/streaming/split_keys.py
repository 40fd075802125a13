"""Tiles of queries whose keys were split over several programs: adds the sums of the splits and
writes the outputs.

    u_i = sum over splits of u_i,split      z_i = sum over splits of z_i,split      o_i = u_i / n_i

Both are plain sums, so keys may be split anywhere; splits are added in a fixed order, so that the
same call gives the same bits. Which tiles have their keys split: flashsign.tuning.split_keys.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_wait

from flashsign.attention.call import AttentionCall, pointers
from flashsign.triton.common.device_functions import (
    inverse_norm,
    load_rows,
    marked,
    of_head,
    store_rows,
)
from flashsign.triton.common.launch import start, starts_early
from flashsign.triton.streaming.scaled_keys import ScaledKeys, bag_totals
from flashsign.tuning.split_keys import SplitKeys

ROWS = 16
"""Rows of a program: few, so that all multiprocessors have some."""


@triton.jit
def add_splits(
    q,
    sums,
    squares,
    totals,
    o,
    inverse,
    q_bag,
    q_head,
    q_row,
    o_bag,
    o_head,
    o_row,
    queries_all,
    tiles,
    heads,
    key_heads,
    parts,
    first,
    splits,
    eps,
    E: tl.constexpr,
    E_PAD: tl.constexpr,
    V: tl.constexpr,
    V_PAD: tl.constexpr,
    QUERIES: tl.constexpr,
    ROWS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Program (tile, part) does ROWS rows of tile `first + tile` of dense bags. Writes o, and
    inverse: 1 / n, with the sign bit set where u is NaN (nan_repair.py).

    sums [tiles * splits * QUERIES, V_PAD], squares [tiles * splits * QUERIES]: u and z, float32,
        with the splits of a tile one after the other.
    """
    number = tl.program_id(0)
    tile = (first + number) % tiles
    head = (first + number) // tiles % heads
    bag = (first + number) // tiles // heads
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    query = tile * QUERIES + row
    column, of_value = tl.arange(0, E_PAD), tl.arange(0, V_PAD)
    there = query < queries_all
    index, at = bag.to(tl.int64), query.to(tl.int64)[:, None]
    q = of_head(q, index, head, q_bag, q_head)
    rows = load_rows(q, at, q_row, there, column, E).to(tl.float32)
    if EARLY:
        gdc_wait()
    u = tl.zeros([ROWS, V_PAD], tl.float32)
    z = tl.zeros([ROWS], tl.float32)
    for split in range(0, splits):
        part = ((number * splits + split) * QUERIES + row).to(tl.int64)
        u += load_rows(sums, part[:, None], V_PAD, there, of_value, V)
        z += tl.load(squares + part)
    _, t = bag_totals(totals, parts, bag, head // (heads // key_heads), key_heads)
    inverse_n = inverse_norm(z, eps * tl.sum(rows * rows, 1) * t)
    broken = tl.max(tl.where(u == u, 0, 1), 1) > 0
    to_inverse = inverse + (index * heads + head) * queries_all + query
    tl.store(to_inverse, marked(inverse_n, broken), mask=there)
    o = of_head(o, index, head, o_bag, o_head)
    store_rows(o, at, o_row, there, of_value, V, u * inverse_n[:, None])


def add_split_keys(
    call: AttentionCall,
    keys: ScaledKeys,
    sums: Tensor,
    squares: Tensor,
    tiles: int,
    own: int,
    plan: SplitKeys,
    o: Tensor,
    inverse: Tensor,
) -> None:
    """Write o [C, H, N, V] and inverse [C, H, N] of plan.split_tiles tiles of `own` queries; a head
    has `tiles` tiles.

    sums and squares: u and z of the splits, see add_splits.
    """
    early = starts_early(call.q)
    start(
        add_splits,
        (plan.split_tiles, own // ROWS),
        {
            **call.arguments,
            **keys.arguments,
            **pointers(o=o),
            "sums": sums,
            "squares": squares,
            "inverse": inverse,
            "tiles": tiles,
            "first": plan.whole_tiles,
            "splits": plan.splits,
            "QUERIES": own,
            "ROWS": ROWS,
            "EARLY": early,
        },
        num_warps=4,
        launch_pdl=early,
    )
