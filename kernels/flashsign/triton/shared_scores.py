"""Attention over tables of scores, of at most 64 bags each, which reads every score once a pass.

    u_ci   = sum_j (m_cj - c_j) v_j s_ij
    n_ci^2 = b_i^2 + sum_j m_cj^2 s_ij^2 + eps
    o_ci   = u_ci / n_ci

The passes are one forward and one backward. Sums are matrix products of a tile of the table with
its bags. With G, H [C, N] the gradient of u and twice that of n^2,

    A      = H^T m^2
    B      = G^T (m - c)
    d s_ij = s_ij A_ij + v_j B_ij
    d v_j  = sum_i s_ij B_ij

Where slopes are penalised, too (flashsign.slope_penalty), their norm is that of one more bag, and
the backward kernel adds the penalty's gradient before it writes that of the scores.

Tensor cores read 11 of the 24 bits of a number. Here each factor is the sum of its high bits and a
rest, so that products are exact to 20 bits; those of bags are made by split_kernel, and not by
every tile that reads them.

In torch operations: flashsign.tables.shared_scores, which also has the gradients of multiplicities
and centres.

Letters: L leading axes in one, C bags, G groups, N queries, M keys. Tensors that several tables
share have fewer rows: table l has row l // share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashsign.triton.common.launch import start
from flashsign.triton.common.layout import cdiv, fitting, shares
from flashsign.tuning.block_sizes import room_for_bags

FORWARD = {16: (64, 32, 4), 32: (64, 16, 4), 64: (64, 32, 4)}
BACKWARD = {16: (16, 64, 4), 32: (16, 64, 4), 64: (16, 64, 4)}
"""Queries and keys of a tile and its warps, by the room for bags."""
MOST_KEYS = 256
"""Keys of a program: tensor cores round towards 0 whenever they add, and after 1500 keys the sum is
1e-5 too small.
"""
SPLIT = 512
"""Keys of a program of split_kernel."""
CHANGING = ["bags", "groups", "queries", "each", "m_share", "centre_share", "share", "heads"]
"""Numbers for which no kernel is compiled of its own: a training step has a few cells more or less.
"""


@triton.jit
def high(x):
    """The 11 high bits of float32 numbers, as tensor cores read them."""
    return (x.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)


@triton.jit
def with_bags(x, bags, found):
    """found + x [Q, K] times bags [K, 2 C], high bits of the bags in the first C columns and the
    rests in others.
    """
    most = high(x)
    found = tl.dot(x - most, bags, found, input_precision="tf32")
    return tl.dot(most, bags, found, input_precision="tf32")


@triton.jit
def of_bags(bags, high_bits, rest):
    """bags [Q, C] times the sum of high_bits and rest [C, K]: [Q, K]."""
    most = high(bags)
    found = tl.dot(bags - most, high_bits, input_precision="tf32")
    found = tl.dot(most, rest, found, input_precision="tf32")
    return tl.dot(most, high_bits, found, input_precision="tf32")


@triton.jit(do_not_specialize=CHANGING)
def split_kernel(
    multiplicity,
    centre,
    ends,
    square,
    halves,
    bags,
    groups,
    keys,
    pitch,
    m_share,
    centre_share,
    share,
    heads,
    ROOM: tl.constexpr,
    KEYS: tl.constexpr,
    SLOPES: tl.constexpr,
):
    """halves [L / share, G, 4, ROOM, pitch]: m - c of each bag in high bits and a rest, m^2
    likewise; 0 where a group has no bag or no key. SLOPES: the last bag of each group has the m^2
    of square [L / heads, G, M].
    """
    table = tl.program_id(0)
    number = tl.program_id(1)
    key = tl.program_id(2) * KEYS + tl.arange(0, KEYS)
    lead, group = (table // groups).to(tl.int64) * share, table % groups
    bag = tl.load(ends + group) + number
    known = (key < keys) & (bag < tl.load(ends + group + 1))
    m = tl.load(multiplicity + (lead // m_share * bags + bag) * keys + key, mask=known, other=0.0)
    c = tl.load(
        centre + (lead // centre_share * groups + group) * keys + key, mask=known, other=0.0
    )
    change, many = m - c, m * m
    if SLOPES:
        last = (key < keys) & (number == ROOM - 1)
        many += tl.load(
            square + (lead // heads * groups + group) * keys + key, mask=last, other=0.0
        )
    halves += (table.to(tl.int64) * 4 * ROOM + number) * pitch
    tl.store(halves + key, high(change), mask=key < pitch)
    tl.store(halves + ROOM * pitch + key, change - high(change), mask=key < pitch)
    tl.store(halves + 2 * ROOM * pitch + key, high(many), mask=key < pitch)
    tl.store(halves + 3 * ROOM * pitch + key, many - high(many), mask=key < pitch)


@triton.jit(do_not_specialize=CHANGING)
def forward_kernel(
    scores,
    values,
    halves,
    ends,
    sums,
    squares,
    norms,
    bags,
    groups,
    queries,
    keys,
    pitch,
    each,
    share,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    ROOM: tl.constexpr,
    SLOPES: tl.constexpr,
):
    """A program does a tile of queries of one table with `each` of the keys. sums, squares [parts,
    L, C, N]: what these keys add to u and to n^2. SLOPES: norms [parts, L, G, N] gets what they add
    to that of the last bag.
    """
    table, tile, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    tables = tl.num_programs(0).to(tl.int64) // groups
    lead, group = (table // groups).to(tl.int64), table % groups
    first, end = tl.load(ends + group), tl.load(ends + group + 1)
    bag, query = first + tl.arange(0, ROOM), tile * QUERIES + tl.arange(0, QUERIES)
    # Within a tile numbers of 32 bits are enough, and save registers. Beyond the last query it is
    # read again.
    scores += (table.to(tl.int64) * queries + tile * QUERIES) * keys
    at = tl.minimum(tl.arange(0, QUERIES), queries - 1 - tile * QUERIES)[:, None] * keys
    values += lead * keys
    halves += (lead // share * groups + group) * 4 * ROOM * pitch
    at_bag = tl.arange(0, 2 * ROOM)[None, :] * pitch
    u = tl.zeros([QUERIES, 2 * ROOM], tl.float32)
    n = tl.zeros([QUERIES, 2 * ROOM], tl.float32)
    for step in range(part * each // KEYS, tl.cdiv(tl.minimum((part + 1) * each, keys), KEYS)):
        key = step * KEYS + tl.arange(0, KEYS)  # known to be aligned
        s = tl.load(scores + (at + key[None, :]), mask=(key < keys)[None, :], other=0.0)
        v = tl.load(values + key, mask=key < keys, other=0.0)
        u = with_bags(s * v[None, :], tl.load(halves + (at_bag + key[:, None])), u)
        n = with_bags(s * s, tl.load(halves + 2 * ROOM * pitch + (at_bag + key[:, None])), n)
    u = tl.sum(tl.reshape(u, [QUERIES, 2, ROOM]), 1)
    n = tl.sum(tl.reshape(n, [QUERIES, 2, ROOM]), 1)
    at = ((part * tables + lead) * bags + bag[None, :]) * queries + query[:, None]
    inside = (bag < end)[None, :] & (query < queries)[:, None]
    tl.store(sums + at, u, mask=inside)
    tl.store(squares + at, n, mask=inside)
    if SLOPES:
        at = (part * tl.num_programs(0).to(tl.int64) + table) * queries + query
        last = (tl.arange(0, ROOM) == ROOM - 1)[None, :]
        tl.store(norms + at, tl.sum(tl.where(last, n, 0.0), 1), mask=query < queries)


@triton.jit(do_not_specialize=CHANGING)
def backward_kernel(
    scores,
    values,
    halves,
    ends,
    square,
    of_slopes,
    scaled,
    of_norm,
    of_sums,
    bend,
    of_scores,
    of_values,
    bags,
    groups,
    queries,
    keys,
    pitch,
    each,
    share,
    heads,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    ROOM: tl.constexpr,
    SLOPES: tl.constexpr,
):
    """A program does a tile of keys of one table with `each` of the queries. of_sums, bend [L, C,
    N]: G and H. of_scores [L, G, N, M]; of_values [parts, L, G, M]: what these queries add. SLOPES:
    of_slopes [L / heads, G, N, M] is the gradient of the slopes where that of the penalty is 1;
    scaled [L, G, N] is g / n times the latter, of_norm [L, G, N] the gradient of the slopes' n^2.
    """
    table, tile, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    lead, group = (table // groups).to(tl.int64), table % groups
    first, end = tl.load(ends + group), tl.load(ends + group + 1)
    bag, key = first + tl.arange(0, ROOM), tile * KEYS + tl.arange(0, KEYS)
    scores += (table.to(tl.int64) * queries + part * each) * keys
    of_scores += (table.to(tl.int64) * queries + part * each) * keys
    halves += (
        (lead // share * groups + group) * 4 * ROOM * pitch
        + tl.arange(0, ROOM)[:, None] * pitch
        + key[None, :]
    )
    made, step = (key < pitch)[None, :], ROOM * pitch
    change = tl.load(halves, mask=made, other=0.0)
    change_rest = tl.load(halves + step, mask=made, other=0.0)
    halves += 2 * step
    many = tl.load(halves, mask=made, other=0.0)
    many_rest = tl.load(halves + step, mask=made, other=0.0)
    v = tl.load(values + lead * keys + key, mask=key < keys, other=0.0)
    of_state = lead // heads * groups + group
    q = tl.load(square + of_state * keys + key, mask=SLOPES & (key < keys), other=0.0)
    of_slopes += (of_state * queries + part * each) * keys
    total = tl.zeros([QUERIES, KEYS], tl.float32)
    for low in range(part * each, tl.minimum((part + 1) * each, queries), QUERIES):
        query = low + tl.arange(0, QUERIES)
        at = tl.minimum(tl.arange(0, QUERIES), queries - 1 - low)[:, None] * keys + key[None, :]
        s = tl.load(scores + at, mask=(key < keys)[None, :], other=0.0)
        of_queries = (lead * bags + bag[None, :]) * queries + query[:, None]
        asked = (bag < end)[None, :] & (query < queries)[:, None]
        a = of_bags(tl.load(bend + of_queries, mask=asked, other=0.0), many, many_rest)
        b = of_bags(tl.load(of_sums + of_queries, mask=asked, other=0.0), change, change_rest)
        if SLOPES:
            of_queries = table.to(tl.int64) * queries + query
            a += (
                2
                * tl.load(of_norm + of_queries, mask=query < queries, other=0.0)[:, None]
                * q[None, :]
            )
            f = tl.load(scaled + of_queries, mask=query < queries, other=0.0)[:, None]
            b += f * tl.load(of_slopes + at, mask=(key < keys)[None, :], other=0.0)
        total += s * b
        here = (query < queries)[:, None] & (key < keys)[None, :]
        tl.store(of_scores + at, s * a + v[None, :] * b, mask=here)
        scores += QUERIES * keys
        of_scores += QUERIES * keys
        of_slopes += QUERIES * keys
    at = (part * tl.num_programs(0).to(tl.int64) + table) * keys + key
    tl.store(of_values + at, tl.sum(total, 0), mask=key < keys)


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
    """Return o and 1 / n, [..., C, N], of scores [..., G, N, M], values [..., M], multiplicity
    [..., C, M], centre [..., G, M] and basal [..., N], float32; leading axes of multiplicity and
    centre may be missing or 1. Also, of two leading axes, members and heads, sum_j square_j s_ij^2,
    [..., G, N], where square [members, G, M] is given.
    """
    *leading, _, queries, keys = scores.shape
    room, tables = room_for_bags(max(groups) + (square is not None)), scores.shape[:-2].numel()
    own, tile, warps = fitting(keys, FORWARD[room])
    tiles = cdiv(queries, own)
    each = min(shares(keys, tile, tables * tiles)[0], MOST_KEYS)
    parts = cdiv(keys, each)
    sums, squares = (
        scores.new_empty(parts, *leading, multiplicity.shape[-2], queries) for _ in range(2)
    )
    norms = scores.new_empty(parts, *leading, len(groups) if square is not None else 0, queries)
    start(
        forward_kernel,
        (tables, tiles, parts),
        {
            **arguments(scores, values, multiplicity, centre, square, groups),
            "sums": sums,
            "squares": squares,
            "norms": norms,
            "each": each,
            "QUERIES": own,
            "KEYS": tile,
            "ROOM": room,
            "SLOPES": square is not None,
        },
        num_warps=warps,
    )
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
    slopes: tuple[Tensor, Tensor, Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return gradients of scores and values.

    of_sums, bend, and slopes, which are square, of_slopes, scaled and of_norm: see the kernel.
    """
    *leading, _, queries, keys = scores.shape
    room, tables = room_for_bags(max(groups)), scores.shape[:-2].numel()
    some, tile, warps = fitting(keys, BACKWARD[room])
    tiles = cdiv(keys, tile)
    each, parts = shares(queries, some, tables * tiles)
    own = torch.empty_like(scores, memory_format=torch.contiguous_format)
    of_values = scores.new_empty(parts, *leading, len(groups), keys)
    names = "square", "of_slopes", "scaled", "of_norm", "of_sums", "bend"
    given = (*(slopes or (own, own, own, own)), of_sums, bend)
    start(
        backward_kernel,
        (tables, tiles, parts),
        {
            **arguments(scores, values, multiplicity, centre, None, groups),
            **{name: tensor.contiguous() for name, tensor in zip(names, given, strict=True)},
            "of_scores": own,
            "of_values": of_values,
            "each": each,
            "QUERIES": some,
            "KEYS": tile,
            "ROOM": room,
            "SLOPES": slopes is not None,
        },
        num_warps=warps,
    )
    return own, of_values.sum((0, -2)).sum_to_size(values.shape)


def arguments(
    scores: Tensor,
    values: Tensor,
    multiplicity: Tensor,
    centre: Tensor,
    square: Tensor | None,
    groups: Sequence[int],
) -> dict[str, Any]:
    """Return the arguments that both kernels have in common; `halves` is made here."""
    *leading, _, queries, keys = scores.shape
    (m, m_share), (c, centre_share) = rows(multiplicity, leading), rows(centre, leading)
    room, heads = room_for_bags(max(groups) + (square is not None)), [1, *leading][-1]
    share = min(m_share, centre_share, heads) if square is not None else min(m_share, centre_share)
    tables, pitch = math.prod(leading) // share * len(groups), cdiv(keys, 64) * 64
    given = {
        "scores": scores.contiguous(),
        "values": values.expand(*leading, keys).contiguous(),
        "halves": m.new_empty(tables, 4, room, pitch),
        "ends": ends_of(groups, scores.device),
        "bags": m.shape[-2],
        "groups": len(groups),
        "queries": queries,
        "keys": keys,
        "pitch": pitch,
        "share": share,
        "heads": heads,
    }
    start(
        split_kernel,
        (tables, room, cdiv(pitch, SPLIT)),
        {
            **given,
            "multiplicity": m,
            "m_share": m_share,
            "centre": c,
            "centre_share": centre_share,
            "square": m if square is None else square,
            "ROOM": room,
            "KEYS": SPLIT,
            "SLOPES": square is not None,
        },
    )
    return given


def rows(tensor: Tensor, leading: Sequence[int]) -> tuple[Tensor, int]:
    """Return [..., A, B] with all axes before the last two in one, and how many tables share each
    row of it.

    The first of these axes may be those of the tables, and the rest 1 or missing.
    """
    own = [1] * (len(leading) + 2 - tensor.ndim) + list(tensor.shape[:-2])
    shared = len(leading)
    while shared and own[shared - 1] == 1:
        shared -= 1
    if own[:shared] != list(leading[:shared]):
        tensor, shared = tensor.expand(*leading, *tensor.shape[-2:]), len(leading)
    return tensor.reshape(-1, *tensor.shape[-2:]).contiguous(), math.prod(leading[shared:])


def ends_of(groups: Sequence[int], device: torch.device) -> Tensor:
    """Return where each group of bags begins and, last, their number, int32 [G + 1].

    Filled on the device, so that a CUDA graph may be recorded meanwhile.
    """
    ends = torch.zeros(len(groups) + 1, dtype=torch.int32, device=device)
    for number, end in enumerate(accumulate(groups), 1):
        ends[number].fill_(end)
    return ends
