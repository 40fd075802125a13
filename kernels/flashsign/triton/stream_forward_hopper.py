"""Spherical attention's forward on Hopper, written for its parts: who loads, who multiplies, and what waits for what.

The sums are those of stream_forward.py, and so are the arguments:

    s_ij = q_i.k'_j      u_i = sum_j s_ij v_j      z_i = sum_j s_ij^2      o_i = u_i / sqrt(z_i + eps |q_i|^2 t + tiny)

A program has one warp that loads and eight that multiply. The loader fills a ring of tiles of keys and values. The
multipliers always have a product in flight: while they square and round the scores of one item, the tensor cores add
the item before to u. An item is a block of 128 queries with a tile of keys. Two items, a and b, take turns, so what one
reads the other does not write:

    PARTS = 2:  a, b = first and second 128 queries with one tile of keys    (a program's tile: 256 queries)
    PARTS = 1:  a, b = 128 queries with one tile of keys and with the next   (128 queries)

Keys n and values n - 1 share a slot, as they come to be used together: one wait and one release a step. The scores of
the next item are written over those of the last, `use_acc=never`: with fresh registers for them the loop would not fit.
Each product's left operand p is held until the wait that ends the product; what ptxas made of that was checked in SASS.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)  # fmt: skip
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from flashsign.triton import launch, scaled_keys, tiles
from flashsign.tuning import Tile, processors

# The same helpers, compiled as Gluon: on scalars, and on tensors whose layout is given, the two languages agree.
bag_rows = gluon.jit(tiles.bag_rows.fn)
inverse_norm = gluon.jit(tiles.inverse_norm.fn)

BLOCK = gl.constexpr(128)
"""Queries of one item: 64, the rows of a wgmma, for either group of four warps."""
WARPS = gl.constexpr(8)
REGISTERS = 168
"""Of every thread at the start: 65536 / (32 x 12 warps, as the loader's counts for four). The loader gives its up."""
LOADER_REGISTERS = gl.constexpr(24)
NAMES = {torch.float16: gl.float16, torch.bfloat16: gl.bfloat16}
SIZES = ("queries_all", "keys_all", "tiles", "heads", "key_heads", "parts", "gap", "works")
MOST_PARTS = gl.constexpr(scaled_keys.MOST_PARTS.value)


@gluon.jit
def tile_of(work, bags, sizes, gap, QUERIES: gl.constexpr, PACKED: gl.constexpr):
    """Where tile number `work` lies; no such tile: bag -1."""
    offsets, query_offsets, schedule = bags
    queries_all, keys_all, tiles, heads, key_heads = sizes
    tile, head = work % tiles, work // tiles % heads
    if PACKED:
        bag = gl.load(schedule + tile)
        start = gl.load(schedule + tiles + tile)
    else:
        bag = work // tiles // heads
        start = tile * QUERIES
    real = gl.maximum(bag, 0)
    first_query, queries, index = bag_rows(real, query_offsets, queries_all, PACKED)
    first_key, keys, _ = bag_rows(real, offsets, keys_all, PACKED)
    return bag, head, head // (heads // key_heads), start, first_query, queries, first_key, keys, index, real * gap


@gluon.jit
def steps_of(keys, KEYS: gl.constexpr, PARTS: gl.constexpr):
    """Tiles of keys that pass by: at least one, and two by two where a and b are neighbours."""
    if PARTS == 2:
        return gl.maximum(gl.cdiv(keys, KEYS), 1)
    else:
        return 2 * gl.maximum(gl.cdiv(keys, 2 * KEYS), 1)


@gluon.jit
def next_slot(slot, phase, STAGES: gl.constexpr):
    """The ring's next slot, and the parity of its barriers' current round."""
    last = slot == STAGES - 1
    return gl.where(last, 0, slot + 1), gl.where(last, phase ^ 1, phase)


@gluon.jit
def load_tiles(
    q, k, v, ring, bags, sizes, gap, works,
    QUERIES: gl.constexpr, KEYS: gl.constexpr, PARTS: gl.constexpr, STAGES: gl.constexpr, PACKED: gl.constexpr,
):  # fmt: skip
    """The loader: tile by tile the queries, then the ring's slots as they come free.

    Slot n of a tile holds keys n and values n - 1, as they come to be used together: a tile of n steps has n + 1 slots.
    """
    q_ring, k_ring, v_ring, q_full, q_empty, full, empty = ring
    slot, phase, turn = 0, 0, 0
    for work in range(gl.program_id(0), works, gl.num_programs(0)):
        bag, head, key_head, start, first_query, _, first_key, keys, index, shift = tile_of(
            work, bags, sizes, gap, QUERIES, PACKED
        )
        if bag >= 0:
            # A barrier's first round has nothing to wait for: the opposite parity counts as done.
            mbarrier.wait(q_empty, turn ^ 1)
            mbarrier.expect(q_full, PARTS * q.block_type.nbytes)
            for part in gl.static_range(PARTS):
                row = first_query + start + part * BLOCK
                tma.async_copy_global_to_shared(q, [index, head, row, 0], q_full, q_ring.index(part))
            steps = steps_of(keys, KEYS, PARTS)
            for step in range(steps + 1):
                row = first_key + step * KEYS
                bar = full.index(slot)
                mbarrier.wait(empty.index(slot), phase ^ 1)
                both = (step > 0) & (step < steps)
                mbarrier.expect(bar, k.block_type.nbytes + v.block_type.nbytes, pred=both)
                mbarrier.expect(bar, k.block_type.nbytes, pred=both == 0)
                tma.async_copy_global_to_shared(
                    k, [index, key_head, row + shift, 0], bar, k_ring.index(slot), pred=step < steps
                )
                tma.async_copy_global_to_shared(
                    v, [index, key_head, row - KEYS, 0], bar, v_ring.index(slot), pred=step > 0
                )
                slot, phase = next_slot(slot, phase, STAGES)
            turn ^= 1


@gluon.jit
def row_squares(s, KEYS: gl.constexpr):
    """Sums of s * s over what one thread holds of a row: [BLOCK, 4]. The sum over four threads waits for the end."""
    own = s.reshape([BLOCK, KEYS // 8, 4, 2]).permute([0, 2, 1, 3]).reshape([BLOCK, 4, KEYS // 4])
    return gl.sum(own * own, 2)


@gluon.jit
def zero_scores(KEYS: gl.constexpr):
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, KEYS, 16])
    return gl.zeros([BLOCK, KEYS], gl.float32, layout)


@gluon.jit
def rounded(s, dtype: gl.constexpr, E_PAD: gl.constexpr):
    """Scores as the left operand of u's product: every thread already holds its own numbers."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, E_PAD, 16])
    return gl.convert_layout(s.to(dtype), gl.DotOperandLayout(0, layout, 2), assert_trivial=True)


@gluon.jit
def overlapped(q, k_tile, p, v_tile, u, z, s, never, KEYS: gl.constexpr, E_PAD: gl.constexpr):
    """One item's scores while the other item's p is on its way into u: u (in flight), z, this item's p, and s.

    At the only wait all but the newest product is done, also the one that was in flight before the call.
    """
    s = warpgroup_mma(q, k_tile.permute([1, 0]), s, use_acc=never, is_async=True)
    u = warpgroup_mma(p, v_tile, u, is_async=True)
    s = warpgroup_mma_wait(1, deps=(s,))
    return u, z + row_squares(s, KEYS), rounded(s, v_tile.dtype, E_PAD), s


@gluon.jit
def zero_sums(E_PAD: gl.constexpr):
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, E_PAD, 16])
    return warpgroup_mma_init(gl.zeros([BLOCK, E_PAD], gl.float32, layout))


@gluon.jit
def store_lengths(q, inverse, start, queries, E_PAD: gl.constexpr):
    """|q|^2 of a block's rows to `inverse`, where they wait: registers are what the loop is short of."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, E_PAD, 16])
    rows = q.load(layout).to(gl.float32)
    query = start + gl.arange(0, BLOCK, gl.SliceLayout(1, layout))
    gl.store(inverse + query, gl.sum(rows * rows, 1), mask=query < queries)


@gluon.jit
def store_rows(u, z, o, inverse, start, queries, floor, o_row, E: gl.constexpr, E_PAD: gl.constexpr):
    """A block's o and 1 / n. Returns how many numbers of u are NaN."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, E_PAD, 16])
    query = start + gl.arange(0, BLOCK, gl.SliceLayout(1, layout))
    column = gl.arange(0, E_PAD, gl.SliceLayout(0, layout))
    length = gl.load(inverse + query, mask=query < queries, other=0.0)
    norm = inverse_norm(gl.convert_layout(gl.sum(z, 1), gl.SliceLayout(1, layout)), floor * length)
    gl.store(inverse + query, norm, mask=query < queries)
    at = query.to(gl.int64)[:, None] * o_row + column[None, :]
    inside = (query < queries)[:, None] & (column < E)[None, :]
    gl.store(o + at, (u * norm[:, None]).to(o.dtype.element_ty), mask=inside)
    return gl.sum(gl.sum(gl.where(u == u, 0, 1), 1), 0)


@gluon.jit
def total_squares(totals, parts, bag, head, key_heads):
    """t = sum |k'|^2 of a bag, its parts added in one order: see scaled_keys.bag_totals."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    part = gl.arange(0, MOST_PARTS, layout)
    totals += (bag * key_heads + head).to(gl.int64) * (1 + MOST_PARTS)
    return gl.sum(gl.load(totals + 1 + part, mask=part < parts, other=0.0), 0)


@gluon.jit
def sum_tile(
    work, slot, phase, turn, ring, bags, sizes, out, parts, gap, works, eps,
    E: gl.constexpr, E_PAD: gl.constexpr, QUERIES: gl.constexpr, KEYS: gl.constexpr, PARTS: gl.constexpr,
    STAGES: gl.constexpr, PACKED: gl.constexpr,
):  # fmt: skip
    """The multipliers' part of one tile: both sums of its queries. Writes o and inverse.

    Returns the ring's state, and how many NaNs u held.
    """
    q_ring, k_ring, v_ring, q_full, q_empty, full, empty = ring
    queries_all, _, _, heads, key_heads = sizes
    totals, o, inverse, o_bag, o_head, o_row = out
    q_a = q_ring.index(0).reshape([BLOCK, E_PAD])
    q_b = q_ring.index(PARTS - 1).reshape([BLOCK, E_PAD])
    never = works < 0
    bad = 0
    bag, head, key_head, start, first_query, queries, _, keys, index, _ = tile_of(
        work, bags, sizes, gap, QUERIES, PACKED
    )
    if bag >= 0:
        pairs = steps_of(keys, KEYS, PARTS) // (3 - PARTS) - 1
        lengths = inverse + (index.to(gl.int64) * heads + head) * queries_all + first_query
        mbarrier.wait(q_full, turn)
        store_lengths(q_a, lengths, start, queries, E_PAD)
        if PARTS == 2:
            store_lengths(q_b, lengths, start + BLOCK, queries, E_PAD)

        mbarrier.wait(full.index(slot), phase)
        k_tile = k_ring.index(slot).reshape([KEYS, E_PAD])
        s = warpgroup_mma(q_a, k_tile.permute([1, 0]), zero_scores(KEYS), use_acc=False)
        z_a = row_squares(s, KEYS)
        p_a = rounded(s, k_ring.dtype, E_PAD)
        z_b, u_a, u_b = gl.zeros_like(z_a), zero_sums(E_PAD), zero_sums(E_PAD)
        for _ in range(pairs):
            before = slot
            slot, phase = next_slot(slot, phase, STAGES)
            mbarrier.wait(full.index(slot), phase)
            v_tile = v_ring.index(slot).reshape([KEYS, E_PAD])
            if PARTS == 1:
                k_tile = k_ring.index(slot).reshape([KEYS, E_PAD])
            u_a, z_b, p_b, s = overlapped(q_b, k_tile, p_a, v_tile, u_a, z_b, s, never, KEYS, E_PAD)
            mbarrier.arrive(empty.index(before))
            if PARTS == 1:
                before = slot
                slot, phase = next_slot(slot, phase, STAGES)
                mbarrier.wait(full.index(slot), phase)
                v_tile = v_ring.index(slot).reshape([KEYS, E_PAD])
            k_tile = k_ring.index(slot).reshape([KEYS, E_PAD])
            u_b, z_a, p_a, s = overlapped(q_a, k_tile, p_b, v_tile, u_b, z_a, s, never, KEYS, E_PAD)
            if PARTS == 1:
                mbarrier.arrive(empty.index(before))
        before = slot
        slot, phase = next_slot(slot, phase, STAGES)
        mbarrier.wait(full.index(slot), phase)
        v_tile = v_ring.index(slot).reshape([KEYS, E_PAD])
        if PARTS == 1:
            k_tile = k_ring.index(slot).reshape([KEYS, E_PAD])
        u_a, z_b, p_b, s = overlapped(q_b, k_tile, p_a, v_tile, u_a, z_b, s, never, KEYS, E_PAD)
        # The queries were read by loads too, which the loader's next copy would not wait for without a fence.
        fence_async_shared()
        mbarrier.arrive(q_empty)
        mbarrier.arrive(empty.index(before))
        if PARTS == 1:
            before = slot
            slot, phase = next_slot(slot, phase, STAGES)
            mbarrier.wait(full.index(slot), phase)
            v_tile = v_ring.index(slot).reshape([KEYS, E_PAD])
        u_b = warpgroup_mma(p_b, v_tile, u_b, is_async=True)
        u_a, u_b = warpgroup_mma_wait(0, deps=(u_a, u_b))
        if PARTS == 1:
            mbarrier.arrive(empty.index(before))
        mbarrier.arrive(empty.index(slot))
        slot, phase = next_slot(slot, phase, STAGES)

        floor = eps * total_squares(totals, parts, bag, key_head, key_heads)
        o += index.to(gl.int64) * o_bag + head.to(gl.int64) * o_head + gl.to_tensor(first_query).to(gl.int64) * o_row
        if PARTS == 2:
            bad += store_rows(u_a, z_a, o, lengths, start, queries, floor, o_row, E, E_PAD)
            bad += store_rows(u_b, z_b, o, lengths, start + BLOCK, queries, floor, o_row, E, E_PAD)
        else:
            bad += store_rows(u_a + u_b, z_a + z_b, o, lengths, start, queries, floor, o_row, E, E_PAD)
        turn ^= 1
    return slot, phase, turn, bad


@gluon.jit
def sum_tiles(
    ring, bags, sizes, out, parts, gap, works, eps,
    E: gl.constexpr, E_PAD: gl.constexpr, QUERIES: gl.constexpr, KEYS: gl.constexpr, PARTS: gl.constexpr,
    STAGES: gl.constexpr, PACKED: gl.constexpr, PERSISTENT: gl.constexpr,
):  # fmt: skip
    """The multipliers: tile by tile. Returns how many NaNs u held."""
    slot, phase, turn, bad = 0, 0, 0, 0
    if PERSISTENT:
        # What a tile's end needs is not to be worked out, and held in registers, before the first tile begins.
        for work in tl.range(gl.program_id(0), works, gl.num_programs(0), disable_licm=True):
            slot, phase, turn, more = sum_tile(
                work, slot, phase, turn, ring, bags, sizes, out, parts, gap, works, eps,
                E, E_PAD, QUERIES, KEYS, PARTS, STAGES, PACKED,
            )  # fmt: skip
            bad += more
    else:
        slot, phase, turn, bad = sum_tile(
            gl.program_id(0), slot, phase, turn, ring, bags, sizes, out, parts, gap, works, eps,
            E, E_PAD, QUERIES, KEYS, PARTS, STAGES, PACKED,
        )  # fmt: skip
    return bad, turn


@gluon.jit
def mend_tiles(
    q, k, v, ring, loaded, multiplicity, m_bag, m_head, bags, sizes, out, gap, works,
    E: gl.constexpr, E_PAD: gl.constexpr, QUERIES: gl.constexpr, KEYS: gl.constexpr, PACKED: gl.constexpr,
):  # fmt: skip
    """The program's tiles again, with the values of absent keys left out, whatever they hold; norms stay."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, E_PAD, 16])
    q_ring, k_ring, v_ring, _, _, _, _ = ring
    queries_all, _, _, heads, _ = sizes
    _, o, inverse, o_bag, o_head, o_row = out
    k_tile = k_ring.index(0).reshape([KEYS, E_PAD])
    v_tile = v_ring.index(0).reshape([KEYS, E_PAD])
    q_tile = q_ring.index(0).reshape([BLOCK, E_PAD])
    parity = 0
    for work in range(gl.program_id(0), works, gl.num_programs(0)):
        bag, head, key_head, start, first_query, queries, first_key, keys, index, shift = tile_of(
            work, bags, sizes, gap, QUERIES, PACKED
        )
        if bag >= 0:
            present = multiplicity + index.to(gl.int64) * m_bag + key_head.to(gl.int64) * m_head + first_key
            here = o + index.to(gl.int64) * o_bag + head.to(gl.int64) * o_head
            norms = inverse + (index.to(gl.int64) * heads + head) * queries_all + first_query
            for block in range(QUERIES // BLOCK):
                row = start + block * BLOCK
                gl.thread_barrier()
                mbarrier.expect(loaded, q.block_type.nbytes)
                tma.async_copy_global_to_shared(q, [index, head, first_query + row, 0], loaded, q_ring.index(0))
                mbarrier.wait(loaded, parity)
                parity ^= 1
                u = gl.zeros([BLOCK, E_PAD], gl.float32, layout)
                for begin in range(0, keys, KEYS):
                    gl.thread_barrier()
                    mbarrier.expect(loaded, k.block_type.nbytes + v.block_type.nbytes)
                    at = first_key + begin
                    tma.async_copy_global_to_shared(k, [index, key_head, at + shift, 0], loaded, k_ring.index(0))
                    tma.async_copy_global_to_shared(v, [index, key_head, at, 0], loaded, v_ring.index(0))
                    mbarrier.wait(loaded, parity)
                    parity ^= 1
                    key = begin + gl.arange(0, KEYS, gl.SliceLayout(1, layout))
                    m = gl.load(present + key, mask=key < keys, other=0.0)
                    values = v_tile.load(layout)
                    v_tile.store(gl.where((m == 0)[:, None], gl.zeros_like(values), values))
                    fence_async_shared()
                    gl.thread_barrier()
                    s = warpgroup_mma(q_tile, k_tile.permute([1, 0]), zero_scores(KEYS), use_acc=False)
                    u = warpgroup_mma(rounded(s, v_ring.dtype, E_PAD), v_tile, u)
                query = row + gl.arange(0, BLOCK, gl.SliceLayout(1, layout))
                column = gl.arange(0, E_PAD, gl.SliceLayout(0, layout))
                norm = gl.load(norms + query, mask=query < queries, other=0.0)
                to = (first_query + query).to(gl.int64)[:, None] * o_row + column[None, :]
                inside = (query < queries)[:, None] & (column < E)[None, :]
                gl.store(here + to, (u * norm[:, None]).to(o.dtype.element_ty), mask=inside)


@gluon.jit(do_not_specialize=SIZES)
def stream_forward(
    q, k, v, multiplicity, offsets, query_offsets, schedule, totals, o, inverse,
    m_bag, m_head, o_bag, o_head, o_row, queries_all, keys_all, tiles, heads, key_heads, parts, gap, works, eps,
    E: gl.constexpr, E_PAD: gl.constexpr, QUERIES: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr,
    PACKED: gl.constexpr, PERSISTENT: gl.constexpr,
):  # fmt: skip
    """q, k (scaled), v: descriptors, q's of BLOCK rows. As in stream_forward.py; works: tiles of all programs."""
    PARTS: gl.constexpr = QUERIES // BLOCK
    # Gluon has no starred lists.
    q_ring = gl.allocate_shared_memory(q.dtype, [PARTS] + q.block_shape, q.layout)  # noqa: RUF005
    k_ring = gl.allocate_shared_memory(k.dtype, [STAGES] + k.block_shape, k.layout)  # noqa: RUF005
    v_ring = gl.allocate_shared_memory(v.dtype, [STAGES] + v.block_shape, v.layout)  # noqa: RUF005
    q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    loaded = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(q_full, count=1)
    mbarrier.init(q_empty, count=1)
    mbarrier.init(loaded, count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=1)
    fence_async_shared()
    ring = (q_ring, k_ring, v_ring, q_full, q_empty, full, empty)
    bags = (offsets, query_offsets, schedule)
    sizes = (queries_all, keys_all, tiles, heads, key_heads)
    out = (totals, o, inverse, o_bag, o_head, o_row)
    bad, _ = gl.warp_specialize(
        [
            (sum_tiles, (ring, bags, sizes, out, parts, gap, works, eps,
                         E, E_PAD, QUERIES, KEYS, PARTS, STAGES, PACKED, PERSISTENT)),
            (load_tiles, (q, k, v, ring, bags, sizes, gap, works, QUERIES, KEYS, PARTS, STAGES, PACKED)),
        ],
        [1],
        [LOADER_REGISTERS],
    )  # fmt: skip
    # An absent key whose v is NaN shows in u. That is rare, so the loop does not look for it; the tiles are done again.
    if bad > 0:
        mend_tiles(
            q, k, v, ring, loaded, multiplicity, m_bag, m_head, bags, sizes, out, gap, works,
            E, E_PAD, QUERIES, KEYS, PACKED,
        )  # fmt: skip


def descriptor(rows: Tensor, block: int) -> TensorDescriptor:
    """launch.descriptor in Gluon's terms, with the layout that a wgmma reads without bank conflicts."""
    plain = launch.descriptor(rows, block)
    layout = gl.NVMMASharedLayout.get_default_for(plain.block_shape, NAMES[rows.dtype])
    return TensorDescriptor(rows, plain.shape, plain.strides, plain.block_shape, layout)


def forward(
    q: Tensor, keys: launch.Keys, v: Tensor, m: Tensor, offsets: Tensor | None, query_offsets: Tensor | None,
    eps: float, tile: Tile, o: Tensor, inverse: Tensor, persistent: bool | None = None,
) -> None:  # fmt: skip
    """stream.forward by this file's kernel, written to o and inverse; 16-bit numbers, tiles of 128 or 256 queries.

    A persistent program does tile after tile, which pays where a device has few of them. Otherwise every program does
    one, which leaves it more registers: with tiles of 128 keys ptxas has too few for products in flight, and does one
    after the other (its message C7512).
    """
    heads, key_heads = q.shape[1], v.shape[1]
    tiles = launch.Tiles.of(q.shape[2], q.shape[0], tile.own, query_offsets)
    (works,) = tiles.grid(heads)
    if persistent is None:
        persistent = tile.other <= 64 and works < 3 * processors(q.device)
    stream_forward[(min(works, processors(q.device)) if persistent else works,)](
        descriptor(q, BLOCK.value), descriptor(keys.rows, tile.other), descriptor(v, tile.other),
        m, offsets, query_offsets, tiles.schedule, keys.totals, o, inverse,
        m.stride(0), launch.head_stride(m), *launch.steps(o), q.shape[2], v.shape[2], tiles.count, heads, key_heads,
        keys.parts, keys.gap, works, eps,
        E=q.shape[-1], E_PAD=q.shape[-1], QUERIES=tile.own, KEYS=tile.other, STAGES=tile.stages,
        PACKED=offsets is not None, PERSISTENT=persistent, num_warps=WARPS.value, maxnreg=REGISTERS,
    )  # fmt: skip
