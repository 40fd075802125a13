"""Outputs from the moments of a bag's keys: one pass over the queries.

    u_i = q_i A
    z_i = (q_i G).q_i
    o_i = u_i / sqrt(z_i + eps |q_i|^2 t + tiny)
    t   = tr G

Nothing has the size queries x keys.

The accuracy of z depends on rho_i = z_i / (|q_i|^2 t). Rows with rho of about 1 / E, as random ones
have, take A and G rounded to 16 bits. If a program has a row with rho below 1 / (8 E), it does all
of its rows again by the high-precision path, with A and G to float32's accuracy. Ill-conditioned
rows, with rho below ILL_CONDITIONED, lie along directions that the keys hardly have, for which
float32 moments cancel: they are listed for ill_conditioned_rows.attend_rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from flashsign.triton.common.device_functions import (
    HIGH_PRECISION,
    inverse_norm,
    load_rows,
    of_head,
    store_rows,
)
from flashsign.triton.moments.ill_conditioned_rows import ILL_CONDITIONED, append_rows, list_start
from flashsign.triton.moments.moment_sums import (
    NARROW,
    high_precision_product,
    query_part,
    read_totals,
    rounded_matrices,
    tile_rows,
)


@triton.jit
def attend_tile(
    tile,
    q,
    moments,
    sizes,
    o,
    inverse,
    E: tl.constexpr,
    E_PAD: tl.constexpr,
    V: tl.constexpr,
    V_PAD: tl.constexpr,
    PRECISION: tl.constexpr,
    HALF: tl.constexpr,
    ROUNDED: tl.constexpr,
):
    """Store o and 1 / n of a tile of rows. Returns z and |q|^2 t.

    tile: as of tile_rows; q, o: a pointer to the first row and the step from row to row; inverse:
        a pointer to the first row's; moments: A and G, ROUNDED: rounded to 16 bits, otherwise a
        pointer to both; sizes: t, eps and the units of A and G.
    """
    query, there, row = tile
    of_q, q_row = q
    of_o, o_row = o
    t, eps, a_unit, g_unit = sizes
    if ROUNDED:
        a, g = moments
        rows = load_rows(of_q, row, q_row, there, tl.arange(0, E_PAD), E)
        u, q_g = tl.dot(rows, a), tl.dot(rows, g)
    else:
        u = high_precision_product(
            q, tile, moments, a_unit, E, E_PAD, V_PAD, False, PRECISION, HALF
        )
        of_g = moments + E_PAD * V_PAD
        q_g = high_precision_product(q, tile, of_g, g_unit, E, E_PAD, E_PAD, False, PRECISION, HALF)
        rows = load_rows(of_q, row, q_row, there, tl.arange(0, E_PAD), E)
    wide = rows.to(tl.float32)
    z = tl.maximum(tl.sum(q_g * wide, 1) / g_unit, 0.0)
    floor = tl.sum(wide * wide, 1) * t
    inverse_n = inverse_norm(z, eps * floor)
    o_tile = u * (inverse_n / a_unit)[:, None]
    store_rows(of_o, row, o_row, there, tl.arange(0, V_PAD), V, o_tile)
    tl.store(inverse + query, inverse_n, mask=there)
    return z, floor


@triton.jit
def attend_moments(
    q,
    moments,
    totals,
    query_offsets,
    o,
    inverse,
    row_list,
    row_count,
    q_bag,
    q_head,
    q_row,
    o_bag,
    o_head,
    o_row,
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
    """Program (part, head, bag) writes o, like q, inverse [C', heads, rows], 1 / n, and lists
    ill-conditioned rows.

    row_list [C' heads rows] int32: a list for each bag and key head
        (ill_conditioned_rows.list_start) of numbers (head within the key head) * queries + query;
        row_count [bags K] int32: how many are on each.
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
    o = of_head(o, index, head, o_bag, o_head)
    inverse += (index.to(tl.int64) * heads + head) * queries_all + first
    of_q, of_o, sizes = (q, q_row), (o, o_row), (t, eps, a_unit, g_unit)

    high_precision = 0 if HALF and E > NARROW else 1
    if HALF and E > NARROW:
        rounded = rounded_matrices(moments, a_unit, g_unit, q.dtype.element_ty, E_PAD, V_PAD)
        worst = tl.zeros([QUERIES], tl.float32)
        for start in tl.range(begin, last, QUERIES, num_stages=STAGES):
            tile = tile_rows(start, last, first, QUERIES)
            z, floor = attend_tile(
                tile, of_q, rounded, sizes, of_o, inverse, E, E_PAD, V, V_PAD, PRECISION, HALF, True
            )
            worst = tl.maximum(worst, tl.where(z * E < floor * HIGH_PRECISION, 1.0, 0.0))
        high_precision = tl.max(worst).to(tl.int32)

    if high_precision != 0:
        row_list = list_start(row_list, index, first, key_head, queries_all, heads, group)
        for start in range(begin, last, QUERIES):
            tile = tile_rows(start, last, first, QUERIES)
            z, floor = attend_tile(
                tile,
                of_q,
                moments,
                sizes,
                of_o,
                inverse,
                E,
                E_PAD,
                V,
                V_PAD,
                PRECISION,
                HALF,
                False,
            )
            number = (head - key_head * group) * queries + tile[0]
            least = floor * ILL_CONDITIONED if HALF else floor * (10 * ILL_CONDITIONED)
            append_rows(z < least, row_list, row_count + bag * key_heads + key_head, number)
