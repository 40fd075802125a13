"""Outputs from the moments of a bag's keys: one pass over the queries, nothing of size queries x keys.

    u_i = q_i A      z_i = (q_i G).q_i      o_i = u_i / sqrt(z_i + eps |q_i|^2 t + tiny)      t = tr G

How well z is known depends on rho_i = z_i / (|q_i|^2 t). Rows with rho of the order of 1 / E, which random ones have,
take A and G rounded to 16 bits. Below 1 / (8 E) a tile is done again with A and G as good as float32. Rows below WEAK
lie along directions that the keys hardly have: float32 moments cancelled, and the row is listed for weak_rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from flashsign.triton.common.device_functions import bag_rows, inverse_norm
from flashsign.triton.moments.ill_conditioned_rows import WEAK, list_of, list_weak
from flashsign.triton.moments.sums import careful_product, read_totals, share_of

DOUBTED = tl.constexpr(0.125)
"""Rows whose rho E is below this need more of A and G than 16 bits."""


@triton.jit
def store_outputs(u, y, rows, t, eps, a_unit, g_unit, o, inverse, here, there):
    """Of a tile of rows, u = q A and y = q G in units: stores o and 1 / n. z and |q|^2 t tell how well z is known.

    o, inverse: pointers to where they go.
    """
    wide = rows.to(tl.float32)
    z = tl.maximum(tl.sum(y * wide, 1) / g_unit, 0.0)
    floor = tl.sum(wide * wide, 1) * t
    n = inverse_norm(z, eps * floor)
    tl.store(o, (u * (n / a_unit)[:, None]).to(o.dtype.element_ty), mask=here)
    tl.store(inverse, n, mask=there)
    return z, floor


@triton.jit
def attend_moments(
    q, moments, totals, query_offsets, o, inverse, weak_rows, weak_count,
    q_bag, q_head, q_row, o_bag, o_head, o_row, queries_all, heads, key_heads, eps,
    E: tl.constexpr, E_PAD: tl.constexpr, QUERIES: tl.constexpr, STAGES: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr, HALF: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Program (share, head, bag) -> o like q, inverse [C', heads, rows] = 1 / n, and the bag's list of weak rows.

    weak_rows [C' heads rows]: numbers (head in the group, query) of a bag and key head, of which weak_count counts.
    """
    head, bag = tl.program_id(1), tl.program_id(2)
    group = heads // key_heads
    key_head = head // group
    first, queries, index = bag_rows(bag, query_offsets, queries_all, PACKED)
    begin, last = share_of(queries, QUERIES)
    if begin >= last:
        return
    _, t, a_unit, g_unit = read_totals(totals, bag * key_heads + key_head, E_PAD, BLOCK)
    moments += (bag * key_heads + key_head).to(tl.int64) * (2 * E_PAD * E_PAD)
    q += index.to(tl.int64) * q_bag + head.to(tl.int64) * q_head
    o += index.to(tl.int64) * o_bag + head.to(tl.int64) * o_head
    inverse += (index.to(tl.int64) * heads + head) * queries_all + first
    column = tl.arange(0, E_PAD)

    doubted = 0 if HALF else 1
    if HALF:
        square = column[:, None] * E_PAD + column[None, :]
        a = (tl.load(moments + square) * a_unit).to(q.dtype.element_ty)
        g = (tl.load(moments + E_PAD * E_PAD + square) * g_unit).to(q.dtype.element_ty)
        worst = tl.zeros([QUERIES], tl.float32)
        for start in tl.range(begin, last, QUERIES, num_stages=STAGES):
            query = start + tl.arange(0, QUERIES)
            there = query < last
            row = (first + query).to(tl.int64)[:, None]
            here = there[:, None] & (column < E)[None, :]
            rows = tl.load(q + row * q_row + column[None, :], mask=here, other=0.0)
            u, y = tl.dot(rows, a), tl.dot(rows, g)
            z, floor = store_outputs(
                u, y, rows, t, eps, a_unit, g_unit, o + row * o_row + column[None, :], inverse + query, here, there
            )  # fmt: skip
            worst = tl.maximum(worst, tl.where(z * E < floor * DOUBTED, 1.0, 0.0))
        doubted = tl.max(worst).to(tl.int32)

    if doubted != 0:
        weak_rows = list_of(weak_rows, index, first, key_head, queries_all, heads, group)
        for start in range(begin, last, QUERIES):
            query = start + tl.arange(0, QUERIES)
            there = query < last
            row = (first + query).to(tl.int64)[:, None]
            here = there[:, None] & (column < E)[None, :]
            nothing = tl.zeros([QUERIES, E_PAD], tl.float32)
            u = careful_product(
                q, row, q_row, there, moments, a_unit, nothing, E, E_PAD, False, PRECISION, HALF
            )  # fmt: skip
            y = careful_product(
                q, row, q_row, there, moments + E_PAD * E_PAD, g_unit, nothing, E, E_PAD, False, PRECISION, HALF
            )  # fmt: skip
            rows = tl.load(q + row * q_row + column[None, :], mask=here, other=0.0)
            z, floor = store_outputs(
                u, y, rows, t, eps, a_unit, g_unit, o + row * o_row + column[None, :], inverse + query, here, there
            )  # fmt: skip
            number = (head - key_head * group) * queries + query
            least = floor * WEAK if HALF else floor * (10 * WEAK)
            list_weak(z < least, weak_rows, weak_count + bag * key_heads + key_head, number)
