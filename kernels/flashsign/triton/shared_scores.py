"""Attention over tables of scores, of a few bags to a table: every score is read once forward and once backward.

    u_ci = sum_j (m_cj - c_j) v_j s_ij        n_ci^2 = b_i^2 + sum_j m_cj^2 s_ij^2 + eps        o_ci = u_ci / n_ci

Where slopes are penalised, too (flashsign.slope_penalty), the forward kernel adds up what their norms need, and the
backward kernel adds the penalty's gradient before it writes that of the scores. With more than FEW_BAGS that takes
longer than separate passes: .95 ms in place of .24 and .09 (16 bags to a table, 268 MB, one H200).

With few bags the tables are what a call reads, and matrix products of squares, sums and messages pass over them a dozen
times. A tile's sums are matrix products or, as these have room for 16 bags at least, are taken bag by bag where a table
has no more than FEW_BAGS. In torch operations: flashsign.shared_scores, which also says what the gradients are.

Letters: L leading axes in one, C bags, G groups, N queries, M keys. Tensors that several tables share have fewer rows:
table l has row l // share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashsign.dispatch import FEW_BAGS
from flashsign.triton.common.launch import start
from flashsign.triton.common.layout import cdiv, fitting, precision, shares

FORWARD = {1: (4, 256, 1), 2: (4, 256, 1), 4: (4, 256, 1), 16: (128, 32, 4), 32: (128, 32, 8), 64: (128, 32, 8)}
BACKWARD = {1: (8, 512, 4), 2: (8, 512, 4), 4: (4, 512, 4), 16: (16, 64, 4), 32: (16, 64, 4), 64: (16, 64, 4)}
"""Queries and keys of a tile and its warps, by the room for bags. One warp adds up a row without waiting for others."""
CHANGING = ["bags", "groups", "queries", "each", "m_share", "centre_share", "heads"]
"""Numbers for which no kernel is compiled of its own: a training step has a few cells more or less."""


@triton.jit(do_not_specialize=CHANGING)
def forward_kernel(
    scores, values, multiplicity, centre, ends, square, sums, squares, norms,
    bags, groups, queries, keys, each, m_share, centre_share, heads,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, BAGS: tl.constexpr, PRECISION: tl.constexpr, SLOPES: tl.constexpr,
):  # fmt: skip
    """A program does a tile of queries of one table with `each` of the keys. sums, squares [parts, L, C, N]: what these
    keys add to u and to n^2. SLOPES: norms [parts, L, G, N] gets what they add to sum_j E[m_j^2] s_ij^2, where square
    [L / heads, G, M] is E[m_j^2]."""
    table, tile, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    tables = tl.num_programs(0).to(tl.int64) // groups
    lead, group = (table // groups).to(tl.int64), table % groups
    first, end = tl.load(ends + group), tl.load(ends + group + 1)
    bag, query = first + tl.arange(0, BAGS), tile * QUERIES + tl.arange(0, QUERIES)
    scores += table.to(tl.int64) * queries * keys
    values += lead * keys
    multiplicity += lead // m_share * bags * keys
    centre += (lead // centre_share * groups + group) * keys
    square += (lead // heads * groups + group) * keys
    u = tl.zeros([QUERIES, BAGS], tl.float32)
    n = tl.zeros([QUERIES, BAGS], tl.float32)
    norm = tl.zeros([QUERIES, KEYS], tl.float32)  # added up at the end: sums over a tile's threads cost more than room
    for low in range(part * each, tl.minimum((part + 1) * each, keys), KEYS):
        key = low + tl.arange(0, KEYS)
        inside = key < keys
        s = tl.load(
            scores + query[:, None].to(tl.int64) * keys + key[None, :],
            mask=(query < queries)[:, None] & inside[None, :], other=0.0,
        )  # fmt: skip
        v = tl.load(values + key, mask=inside, other=0.0)
        c = tl.load(centre + key, mask=inside, other=0.0)
        if BAGS >= 16:
            m = tl.load(
                multiplicity + bag[None, :].to(tl.int64) * keys + key[:, None],
                mask=(bag < end)[None, :] & inside[:, None], other=0.0,
            )  # fmt: skip
            u += tl.dot(s, (m - c[:, None]) * v[:, None], input_precision=PRECISION)
            n += tl.dot(s * s, m * m, input_precision=PRECISION)
        else:
            for one in tl.static_range(BAGS):
                here = inside & (first + one < end)
                m = tl.load(multiplicity + (first + one).to(tl.int64) * keys + key, mask=here, other=0.0)
                own = (bag == first + one)[None, :]
                u += tl.where(own, tl.sum(s * ((m - c) * v)[None, :], 1)[:, None], 0.0)
                n += tl.where(own, tl.sum(s * s * (m * m)[None, :], 1)[:, None], 0.0)
        if SLOPES:
            norm += s * s * tl.load(square + key, mask=inside, other=0.0)[None, :]
    at = ((part * tables + lead) * bags + bag[None, :]) * queries + query[:, None]
    inside = (bag < end)[None, :] & (query < queries)[:, None]
    tl.store(sums + at, u, mask=inside)
    tl.store(squares + at, n, mask=inside)
    if SLOPES:
        at = (part * tl.num_programs(0).to(tl.int64) + table) * queries + query
        tl.store(norms + at, tl.sum(norm, 1), mask=query < queries)


@triton.jit(do_not_specialize=CHANGING)
def backward_kernel(
    scores, values, multiplicity, centre, ends, square, of_sums, bend, of_slopes, scaled, of_norm,
    of_scores, of_values, of_centre, of_multiplicity,
    bags, groups, queries, keys, each, m_share, centre_share, heads,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, BAGS: tl.constexpr, PRECISION: tl.constexpr, SLOPES: tl.constexpr,
    MULTIPLICITY: tl.constexpr,
):  # fmt: skip
    """A program does a tile of keys of one table with `each` of the queries. of_sums, bend [L, C, N]: the gradient of
    u, and twice that of n^2. of_scores [L, G, N, M]; of_values, of_centre [parts, L, G, M] and of_multiplicity [parts,
    L, C, M]: what these queries add. SLOPES: of_slopes [L / heads, G, N, M] is the gradient of the slopes where that of
    the penalty is 1; scaled [L, G, N] is g / n times the latter, of_norm [L, G, N] the gradient of the slopes' n^2."""
    table, tile, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    tables = tl.num_programs(0).to(tl.int64)
    lead, group = (table // groups).to(tl.int64), table % groups
    first, end = tl.load(ends + group), tl.load(ends + group + 1)
    bag, key = first + tl.arange(0, BAGS), tile * KEYS + tl.arange(0, KEYS)
    inside = (bag < end)[:, None] & (key < keys)[None, :]
    of_bags = bag[:, None].to(tl.int64)
    scores += table.to(tl.int64) * queries * keys
    of_scores += table.to(tl.int64) * queries * keys
    m = tl.load(
        multiplicity + (lead // m_share * bags + of_bags) * keys + key[None, :], mask=inside, other=0.0
    )  # fmt: skip
    v = tl.load(values + lead * keys + key, mask=key < keys, other=0.0)
    c = tl.load(centre + (lead // centre_share * groups + group) * keys + key, mask=key < keys, other=0.0)
    change = tl.where((bag < end)[:, None], m - c[None, :], 0.0)
    message, squared = change * v[None, :], m * m
    of_state = lead // heads * groups + group
    q = tl.load(square + of_state * keys + key, mask=SLOPES & (key < keys), other=0.0)
    total = tl.zeros([QUERIES, KEYS], tl.float32)
    read = tl.zeros([BAGS, KEYS], tl.float32)
    bent = tl.zeros([BAGS, KEYS], tl.float32)
    for low in range(part * each, tl.minimum((part + 1) * each, queries), QUERIES):
        query = low + tl.arange(0, QUERIES)
        at = query[:, None].to(tl.int64) * keys + key[None, :]
        here = (query < queries)[:, None] & (key < keys)[None, :]
        s = tl.load(scores + at, mask=here, other=0.0)
        if BAGS >= 16:
            of_queries = (lead * bags + of_bags) * queries + query[None, :]
            asked = (bag < end)[:, None] & (query < queries)[None, :]
            g = tl.load(of_sums + of_queries, mask=asked, other=0.0)
            h = tl.load(bend + of_queries, mask=asked, other=0.0)
            own = tl.dot(h.T, squared, input_precision=PRECISION) * s
            own += tl.dot(g.T, message, input_precision=PRECISION)
            read += tl.dot(g, s, input_precision=PRECISION)
            if MULTIPLICITY:
                bent += tl.dot(h, s * s, input_precision=PRECISION)
        else:
            own = tl.zeros([QUERIES, KEYS], tl.float32)
            for one in tl.static_range(BAGS):
                known, of_bag = first + one < end, lead * bags + first + one
                g = tl.load(of_sums + of_bag * queries + query, mask=(query < queries) & known, other=0.0)[:, None]
                h = tl.load(bend + of_bag * queries + query, mask=(query < queries) & known, other=0.0)[:, None]
                of_bag = lead // m_share * bags + first + one
                many = tl.load(multiplicity + of_bag * keys + key, mask=(key < keys) & known, other=0.0)
                own += h * s * (many * many)[None, :] + g * ((many - c) * v)[None, :]
                chosen = (bag == first + one)[:, None]
                read += tl.where(chosen, tl.sum(g * s, 0)[None, :], 0.0)
                if MULTIPLICITY:
                    bent += tl.where(chosen, tl.sum(h * s * s, 0)[None, :], 0.0)
        if SLOPES:
            of_queries = table.to(tl.int64) * queries + query
            f = tl.load(scaled + of_queries, mask=query < queries, other=0.0)[:, None]
            n = tl.load(of_norm + of_queries, mask=query < queries, other=0.0)[:, None]
            d = f * tl.load(of_slopes + of_state * queries * keys + at, mask=here, other=0.0)
            own += d * v[None, :] + 2 * n * q[None, :] * s
            total += d * s
        tl.store(of_scores + at, own, mask=here)
    at = (part * tables + table) * keys + key
    tl.store(of_values + at, tl.sum(read * change, 0) + tl.sum(total, 0), mask=key < keys)
    tl.store(of_centre + at, -tl.sum(read * v[None, :], 0), mask=key < keys)
    if MULTIPLICITY:
        at = ((part * (tables // groups) + lead) * bags + of_bags) * keys + key[None, :]
        tl.store(of_multiplicity + at, read * v[None, :] + m * bent, mask=inside)


def forward(
    scores: Tensor,
    values: Tensor,
    multiplicity: Tensor,
    centre: Tensor,
    basal: Tensor,
    eps: float,
    groups: Sequence[int],
    square: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """o and 1 / n, [..., C, N], of scores [..., G, N, M], values [..., M], multiplicity [..., C, M], centre [..., G, M]
    and basal [..., N], float32; leading axes of multiplicity and centre may be missing or 1. Also, of two leading axes,
    members and heads, sum_j square_j s_ij^2, [..., G, N], where square [members, G, M] is given."""
    *leading, _, queries, keys = scores.shape
    room, tables = room_for(groups), scores.shape[:-2].numel()
    own, tile, warps = fitting(keys, FORWARD[room])
    tiles = cdiv(queries, own)
    each, parts = shares(keys, tile, tables * tiles)
    sums, squares = (scores.new_empty(parts, *leading, multiplicity.shape[-2], queries) for _ in range(2))
    norms = scores.new_empty(parts, *leading, len(groups) if square is not None else 0, queries)
    tensors, numbers = arguments(scores, values, multiplicity, centre, square, groups, each)
    start(
        forward_kernel,
        (tables, tiles, parts),
        tensors={**tensors, "sums": sums, "squares": squares, "norms": norms},
        numbers=numbers,
        constants={
            "QUERIES": own, "KEYS": tile, "BAGS": room, "PRECISION": precision(scores.dtype),
            "SLOPES": square is not None,
        },
        num_warps=warps,
    )  # fmt: skip
    inverse = squares.sum(0).add_(basal.square().unsqueeze(-2)).add_(eps).rsqrt_()
    return sums.sum(0).mul_(inverse), inverse, norms.sum(0)


def backward(
    scores: Tensor,
    values: Tensor,
    multiplicity: Tensor,
    centre: Tensor,
    of_sums: Tensor,
    bend: Tensor,
    groups: Sequence[int],
    of_multiplicity: bool,
    slopes: tuple[Tensor, Tensor, Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Gradients of scores, values, multiplicity (None unless asked for) and centre. of_sums, bend, and slopes, which
    are square, of_slopes, scaled and of_norm: see the kernel."""
    *leading, _, queries, keys = scores.shape
    room, tables = room_for(groups), scores.shape[:-2].numel()
    some, tile, warps = fitting(keys, BACKWARD[room])
    tiles = cdiv(keys, tile)
    each, parts = shares(queries, some, tables * tiles)
    own = torch.empty_like(scores, memory_format=torch.contiguous_format)
    of_values, of_centre = (scores.new_empty(parts, *leading, len(groups), keys) for _ in range(2))
    of_m = scores.new_empty(parts, *leading, multiplicity.shape[-2], keys) if of_multiplicity else None
    square, *of_penalty = (None, own, own, own) if slopes is None else slopes
    tensors, numbers = arguments(scores, values, multiplicity, centre, square, groups, each)
    names = "of_sums", "bend", "of_slopes", "scaled", "of_norm"
    tensors |= {name: each.contiguous() for name, each in zip(names, (of_sums, bend, *of_penalty), strict=True)}
    tensors |= {"of_scores": own, "of_values": of_values, "of_centre": of_centre}
    tensors["of_multiplicity"] = of_centre if of_m is None else of_m
    start(
        backward_kernel,
        (tables, tiles, parts),
        tensors=tensors,
        numbers=numbers,
        constants={
            "QUERIES": some, "KEYS": tile, "BAGS": room, "PRECISION": precision(scores.dtype),
            "SLOPES": slopes is not None, "MULTIPLICITY": of_multiplicity,
        },
        num_warps=warps,
    )  # fmt: skip
    return (
        own,
        of_values.sum((0, -2)).sum_to_size(values.shape),
        None if of_m is None else of_m.sum(0).sum_to_size(multiplicity.shape),
        of_centre.sum(0).sum_to_size(centre.shape),
    )


def room_for(groups: Sequence[int]) -> int:
    """Bags of a tile: a power of 2 that is as large as the largest group; above FEW_BAGS at least 16."""
    room = 1 << (max(1, *groups) - 1).bit_length()
    return room if room <= FEW_BAGS else max(16, room)


def arguments(
    scores: Tensor,
    values: Tensor,
    multiplicity: Tensor,
    centre: Tensor,
    square: Tensor | None,
    groups: Sequence[int],
    each: int,
) -> tuple[dict[str, Tensor], dict[str, int | float]]:
    """What both kernels are given: tensors, and numbers."""
    *leading, _, queries, keys = scores.shape
    (m, m_share), (c, c_share) = rows(multiplicity, leading), rows(centre, leading)
    tensors = {"scores": scores.contiguous(), "values": values.expand(*leading, keys).contiguous(), "multiplicity": m}
    numbers = {"bags": m.shape[-2], "groups": len(groups), "queries": queries, "keys": keys, "each": each}
    tensors |= {"centre": c, "ends": ends_of(groups, scores.device), "square": c if square is None else square}
    return tensors, {**numbers, "m_share": m_share, "centre_share": c_share, "heads": [1, *leading][-1]}


def rows(tensor: Tensor, leading: Sequence[int]) -> tuple[Tensor, int]:
    """[..., A, B] with all axes before the last two in one, and how many tables share each row of it: the first of
    these axes may be those of the tables, and the rest 1 or missing."""
    own = [1] * (len(leading) + 2 - tensor.ndim) + list(tensor.shape[:-2])
    shared = len(leading)
    while shared and own[shared - 1] == 1:
        shared -= 1
    if own[:shared] != list(leading[:shared]):
        tensor, shared = tensor.expand(*leading, *tensor.shape[-2:]), len(leading)
    return tensor.reshape(-1, *tensor.shape[-2:]).contiguous(), math.prod(leading[shared:])


def ends_of(groups: Sequence[int], device: torch.device) -> Tensor:
    """Where each group of bags begins and, last, their number, int32 [G + 1]: filled on the device, so that a CUDA
    graph may be recorded meanwhile."""
    ends = torch.zeros(len(groups) + 1, dtype=torch.int32, device=device)
    for number, end in enumerate(accumulate(groups), 1):
        ends[number].fill_(end)
    return ends
