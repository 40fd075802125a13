"""The forward of spherical attention on Hopper, in Gluon: keeps the tensor cores busy.

Sums and arguments are those of forward.py:

    s_ij = q_i.k'_j
    u_i  = sum_j s_ij v_j
    z_i  = sum_j s_ij^2
    o_i  = u_i / sqrt(z_i + eps |q_i|^2 t + tiny)
A program has one tile of queries and eight warps. A ring buffer of STAGES slots holds tiles of keys
and values; a slot that is no longer needed is loaded again, several steps ahead. An item is a block
of 128 queries with a tile of keys. Two items, a and b, alternate, so that one never writes what the
other reads: while the warps square and round the scores of one item, the tensor cores add the
previous item to its u.

    PARTS    a, b                                                  a program's tile
    2        first and second 128 queries with one tile of keys    256 queries
    1        128 queries with one tile of keys and with the next   128 queries

Step n uses keys n and values n - 1, so these are in one slot: there is one wait and one load a
step. The scores of the next item overwrite those of the last (use_acc=never, which is False at run
time): with registers of their own for them the loop would not fit. The left operand p of each
product is kept until the wait that ends the product; what ptxas makes of that was checked in SASS.

u and z are plain sums, so keys may be split anywhere. Tiles of a last wave that would leave most of
the device idle have their keys split (SPLIT): several programs do the same queries, each with a
part of the keys, and split_keys.add_splits adds their sums (flashsign.tuning.split_keys).
"""

from __future__ import annotations

import torch
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
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_wait

from flashsign.attention.call import AttentionCall, pointers
from flashsign.triton.common import device_functions, launch
from flashsign.triton.common.layout import GAP, TileAssignment, cdiv, descriptor
from flashsign.triton.streaming import scaled_keys
from flashsign.triton.streaming.nan_repair import repair_rows
from flashsign.triton.streaming.scaled_keys import ScaledKeys
from flashsign.triton.streaming.split_keys import add_split_keys
from flashsign.tuning.block_sizes import BlockSizes
from flashsign.tuning.split_keys import SplitKeys

# Triton 3.7 renamed the one, and 3.9 took the old name of the other away.
barrier = getattr(gl, "barrier", None) or gl.thread_barrier
copy_tile = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
# The same helpers, compiled as Gluon: on scalars, and on tensors whose layout is given, the two
# languages agree.
bag_rows = gluon.jit(device_functions.bag_rows.fn)
inverse_norm = gluon.jit(device_functions.inverse_norm.fn)
marked = gluon.jit(device_functions.marked.fn)

BLOCK = gl.constexpr(128)
"""Queries of one item: 64, the rows of a wgmma, for each of the two warpgroups."""
WARPS = gl.constexpr(8)
"""Warps of a program: two warpgroups."""
NAMES = {torch.float16: gl.float16, torch.bfloat16: gl.bfloat16}
# Not specialised: a kernel is not compiled anew where one of these is 1 or a multiple of 16.
SIZES = (
    "queries_all",
    "keys_all",
    "tiles",
    "heads",
    "key_heads",
    "parts",
    "gap",
    "first",
    "splits",
)
MOST_PARTS = gl.constexpr(scaled_keys.MOST_PARTS.value)


@gluon.jit
def tile_of(
    program,
    bags,
    sizes,
    first,
    splits,
    QUERIES: gl.constexpr,
    PAIR: gl.constexpr,
    PACKED: gl.constexpr,
    SPLIT: gl.constexpr,
):
    """Return where a program's tile lies (bag -1: no tile), its first key, and how many pairs of
    steps its keys take.

    first: tiles that other programs do; PAIR: keys of a pair of steps. Returns bag, head, key head,
        the tile's first row in the bag, the bag's first query, its number of queries, its index,
        the program's first key, and pairs.
    """
    offsets, query_offsets, schedule = bags
    queries_all, keys_all, tiles, heads, key_heads = sizes
    work, split = first + program, 0
    if SPLIT:
        work, split = first + program // splits, program % splits
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
    pairs = gl.maximum(gl.cdiv(keys, PAIR), 1)
    if SPLIT:
        begin = split * pairs // splits
        pairs = (split + 1) * pairs // splits - begin
        first_key += begin * PAIR
    return (
        bag,
        head,
        head // (heads // key_heads),
        start,
        first_query,
        queries,
        index,
        first_key,
        pairs,
    )


@gluon.jit
def next_slot(slot, phase, STAGES: gl.constexpr):
    """The next slot of the ring, and the parity of its barrier's current phase."""
    last = slot == STAGES - 1
    return gl.where(last, 0, slot + 1), gl.where(last, phase ^ 1, phase)


@gluon.jit
def load_slot(k, v, ring, at, slot, step, steps, KEYS: gl.constexpr):
    """Start loading tile `step` of the keys and tile `step - 1` of the values into a slot; none for
    step > steps.

    The tile of values that is loaded at step 0 and the tile of keys at step `steps` are never used.
    """
    k_ring, v_ring, full = ring
    index, key_head, first_scaled, first_key = at
    bar, wanted = full.index(slot), step <= steps
    row = step * KEYS
    mbarrier.expect(bar, k.block_type.nbytes + v.block_type.nbytes, pred=wanted)
    copy_tile(k, [index, key_head, first_scaled + row, 0], bar, k_ring.index(slot), pred=wanted)
    row -= KEYS
    copy_tile(v, [index, key_head, first_key + row, 0], bar, v_ring.index(slot), pred=wanted)


@gluon.constexpr_function
def product_layout(columns):
    """Return the layout of a product [BLOCK, columns] in the registers of the warps."""
    return gl.NVMMADistributedLayout([3, 0], [WARPS.value, 1], [16, columns, 16])


@gluon.jit
def zeros(COLUMNS: gl.constexpr):
    """An accumulator [BLOCK, COLUMNS] of zeros."""
    layout: gl.constexpr = product_layout(COLUMNS)
    return gl.zeros([BLOCK, COLUMNS], gl.float32, layout)


@gluon.jit
def row_squares(s, KEYS: gl.constexpr):
    """Return sums of s * s over the numbers of a row that one thread holds, [BLOCK, 4]: all_squares
    adds the four threads.
    """
    own = s.reshape([BLOCK, KEYS // 8, 4, 2]).permute([0, 2, 1, 3]).reshape([BLOCK, 4, KEYS // 4])
    return gl.sum(own * own, 2)


@gluon.jit
def rounded(s, dtype: gl.constexpr, V: gl.constexpr):
    """Return the rounded scores as the left operand of u's product: no thread needs numbers of
    another one for that.
    """
    layout: gl.constexpr = product_layout(V)
    return gl.convert_layout(s.to(dtype), gl.DotOperandLayout(0, layout, 2), assert_trivial=True)


@gluon.jit
def overlapped(q, k_tile, p, v_tile, u, z, s, never, KEYS: gl.constexpr, V: gl.constexpr):
    """Compute one item's scores while the tensor cores add the other item's p to its u.

    q, z, s: of this item; p, v_tile, u: of the other one. Returns u (its product is still running),
        z, this item's p and s. After the wait only the newest product is running, so those that
        were started before this call have ended.
    """
    s = warpgroup_mma(q, k_tile.permute([1, 0]), s, use_acc=never, is_async=True)
    u = warpgroup_mma(p, v_tile, u, is_async=True)
    s = warpgroup_mma_wait(1, deps=(s,))
    return u, z + row_squares(s, KEYS), rounded(s, v_tile.dtype, V), s


@gluon.jit
def sum_keys(
    q_a,
    q_b,
    k,
    v,
    ring,
    at,
    steps,
    never,
    E: gl.constexpr,
    V: gl.constexpr,
    KEYS: gl.constexpr,
    PARTS: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Both sums of both items over `steps` tiles of keys: u_a, u_b, z_a, z_b. Loads of the first
    STAGES slots have been started.
    """
    k_ring, v_ring, full = ring
    slot, phase, coming = 0, 0, STAGES
    mbarrier.wait(full.index(slot), phase)
    k_tile = k_ring.index(slot).reshape([KEYS, E])
    s = warpgroup_mma(q_a, k_tile.permute([1, 0]), zeros(KEYS), use_acc=False)
    z_a = row_squares(s, KEYS)
    p_a = rounded(s, k_ring.dtype, V)
    z_b = gl.zeros_like(z_a)
    u_a, u_b = warpgroup_mma_init(zeros(V)), warpgroup_mma_init(zeros(V))
    for _ in range(steps // (3 - PARTS) - 1):
        before = slot
        slot, phase = next_slot(slot, phase, STAGES)
        mbarrier.wait(full.index(slot), phase)
        v_tile = v_ring.index(slot).reshape([KEYS, V])
        if PARTS == 1:
            k_tile = k_ring.index(slot).reshape([KEYS, E])
        u_a, z_b, p_b, s = overlapped(q_b, k_tile, p_a, v_tile, u_a, z_b, s, never, KEYS, V)
        # In this warpgroup all products that read slot `before` have ended; after the barrier in
        # the other one too.
        barrier()
        load_slot(k, v, ring, at, before, coming, steps, KEYS)
        coming += 1
        if PARTS == 1:
            before = slot
            slot, phase = next_slot(slot, phase, STAGES)
            mbarrier.wait(full.index(slot), phase)
            v_tile = v_ring.index(slot).reshape([KEYS, V])
        k_tile = k_ring.index(slot).reshape([KEYS, E])
        u_b, z_a, p_a, s = overlapped(q_a, k_tile, p_b, v_tile, u_b, z_a, s, never, KEYS, V)
        if PARTS == 1:
            barrier()
            load_slot(k, v, ring, at, before, coming, steps, KEYS)
            coming += 1
    slot, phase = next_slot(slot, phase, STAGES)
    mbarrier.wait(full.index(slot), phase)
    v_tile = v_ring.index(slot).reshape([KEYS, V])
    if PARTS == 1:
        k_tile = k_ring.index(slot).reshape([KEYS, E])
    u_a, z_b, p_b, s = overlapped(q_b, k_tile, p_a, v_tile, u_a, z_b, s, never, KEYS, V)
    if PARTS == 1:
        slot, phase = next_slot(slot, phase, STAGES)
        mbarrier.wait(full.index(slot), phase)
        v_tile = v_ring.index(slot).reshape([KEYS, V])
    u_b = warpgroup_mma(p_b, v_tile, u_b, is_async=True)
    u_a, u_b = warpgroup_mma_wait(0, deps=(u_a, u_b))
    return u_a, u_b, z_a, z_b


@gluon.jit
def own_rows(start, COLUMNS: gl.constexpr):
    """Numbers of a block's rows from `start` on, [BLOCK], and of its columns, in the layout of a
    product.
    """
    layout: gl.constexpr = product_layout(COLUMNS)
    return start + gl.arange(0, BLOCK, gl.SliceLayout(1, layout)), gl.arange(
        0, COLUMNS, gl.SliceLayout(0, layout)
    )


@gluon.jit
def all_squares(z, V: gl.constexpr):
    """z [BLOCK, 4] summed over the four threads of a row, [BLOCK], in the layout of own_rows."""
    layout: gl.constexpr = product_layout(V)
    return gl.convert_layout(gl.sum(z, 1), gl.SliceLayout(1, layout))


@gluon.jit
def store_split(u, z, sums, squares, row, V: gl.constexpr):
    """Write u and z of a block to sums and squares, for add_splits; row: the block's first."""
    rows, column = own_rows(row, V)
    gl.store(squares + rows, all_squares(z, V))
    gl.store(sums + rows.to(gl.int64)[:, None] * V + column[None, :], u)


@gluon.jit
def store_q_squared(q, inverse, start, queries, E: gl.constexpr):
    """Write |q|^2 of a block's rows to `inverse` until the loop has ended, because the loop is
    short of registers.
    """
    layout: gl.constexpr = product_layout(E)
    rows = q.load(layout).to(gl.float32)
    query, _ = own_rows(start, E)
    gl.store(inverse + query, gl.sum(rows * rows, 1), mask=query < queries)


@gluon.jit
def store_rows(
    u, z, o, inverse, start, queries, floor, o_row, V: gl.constexpr, V_PAD: gl.constexpr
):
    """Write o and 1 / n of a block, with the sign bit set where u is NaN (nan_repair.py); floor:
    eps t.
    """
    query, column = own_rows(start, V_PAD)
    q_squared = gl.load(inverse + query, mask=query < queries, other=0.0)
    inverse_n = inverse_norm(all_squares(z, V_PAD), floor * q_squared)
    broken = gl.max(gl.where(u == u, 0, 1), 1) > 0
    gl.store(inverse + query, marked(inverse_n, broken), mask=query < queries)
    at = query.to(gl.int64)[:, None] * o_row + column[None, :]
    here = (query < queries)[:, None] & (column < V)[None, :]
    gl.store(o + at, (u * inverse_n[:, None]).to(o.dtype.element_ty), mask=here)


@gluon.jit
def total_squares(totals, parts, bag, head, key_heads):
    """t = sum |k'|^2 of a bag, whose parts are added in a fixed order: see
    scaled_keys.bag_totals.
    """
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    part = gl.arange(0, MOST_PARTS, layout)
    totals += (bag * key_heads + head).to(gl.int64) * (1 + MOST_PARTS)
    return gl.sum(gl.load(totals + 1 + part, mask=part < parts, other=0.0), 0)


@gluon.jit(do_not_specialize=SIZES)
def stream_forward(
    q,
    k,
    v,
    offsets,
    query_offsets,
    schedule,
    totals,
    o,
    inverse,
    sums,
    squares,
    o_bag,
    o_head,
    o_row,
    queries_all,
    keys_all,
    tiles,
    heads,
    key_heads,
    parts,
    gap,
    first,
    splits,
    eps,
    E: gl.constexpr,
    V: gl.constexpr,
    V_PAD: gl.constexpr,
    QUERIES: gl.constexpr,
    KEYS: gl.constexpr,
    STAGES: gl.constexpr,
    PACKED: gl.constexpr,
    SPLIT: gl.constexpr,
):
    """As forward.py. q, k (scaled), v: descriptors, that of q with BLOCK rows; first: tiles that
    other programs do.

    SPLIT: `splits` programs a tile, each of which writes u and z of its part of the keys to sums
        [programs * QUERIES, V_PAD] and squares [programs * QUERIES]. Otherwise one program a tile,
        which writes o and inverse.
    """
    PARTS: gl.constexpr = QUERIES // BLOCK
    PAIR: gl.constexpr = (3 - PARTS) * KEYS
    program = gl.program_id(0)
    bags = (offsets, query_offsets, schedule)
    sizes = (queries_all, keys_all, tiles, heads, key_heads)
    if PACKED:
        gdc_wait()  # for the schedule and the offsets, if the previous kernel wrote them
    bag, head, key_head, start, first_query, queries, index, first_key, pairs = tile_of(
        program, bags, sizes, first, splits, QUERIES, PAIR, PACKED, SPLIT
    )
    if bag < 0:
        return
    at = (index, key_head, first_key + bag * gap, first_key)
    steps = pairs * (PAIR // KEYS)

    # Gluon has no starred lists.
    q_ring = gl.allocate_shared_memory(q.dtype, [PARTS] + q.block_shape, q.layout)  # noqa: RUF005
    k_ring = gl.allocate_shared_memory(k.dtype, [STAGES] + k.block_shape, k.layout)  # noqa: RUF005
    v_ring = gl.allocate_shared_memory(v.dtype, [STAGES] + v.block_shape, v.layout)  # noqa: RUF005
    loaded = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(loaded, count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
    fence_async_shared()
    mbarrier.expect(loaded, PARTS * q.block_type.nbytes)
    for part in gl.static_range(PARTS):
        row = first_query + start + part * BLOCK
        copy_tile(q, [index, head, row, 0], loaded, q_ring.index(part))
    if not PACKED:
        gdc_wait()  # for the scaled keys; queries were there before the previous kernel
    q_a = q_ring.index(0).reshape([BLOCK, E])
    q_b = q_ring.index(PARTS - 1).reshape([BLOCK, E])
    ring = (k_ring, v_ring, full)
    for stage in gl.static_range(STAGES):
        load_slot(k, v, ring, at, stage, stage, steps, KEYS)
    mbarrier.wait(loaded, 0)
    inverse += (index.to(gl.int64) * heads + head) * queries_all + first_query
    if not SPLIT:
        store_q_squared(q_a, inverse, start, queries, E)
        if PARTS == 2:
            store_q_squared(q_b, inverse, start + BLOCK, queries, E)
    u_a, u_b, z_a, z_b = sum_keys(
        q_a, q_b, k, v, ring, at, steps, heads < 0, E, V_PAD, KEYS, PARTS, STAGES
    )
    if PARTS == 1:
        u_a, z_a = u_a + u_b, z_a + z_b
    if SPLIT:
        store_split(u_a, z_a, sums, squares, program * QUERIES, V_PAD)
        if PARTS == 2:
            store_split(u_b, z_b, sums, squares, program * QUERIES + BLOCK, V_PAD)
    else:
        floor = eps * total_squares(totals, parts, bag, key_head, key_heads)
        o += (
            index.to(gl.int64) * o_bag
            + head.to(gl.int64) * o_head
            + gl.to_tensor(first_query).to(gl.int64) * o_row
        )
        store_rows(u_a, z_a, o, inverse, start, queries, floor, o_row, V, V_PAD)
        if PARTS == 2:
            store_rows(u_b, z_b, o, inverse, start + BLOCK, queries, floor, o_row, V, V_PAD)


def gluon_descriptor(rows: Tensor, block: int) -> TensorDescriptor:
    """Return layout.descriptor for Gluon, with the layout of shared memory that a wgmma reads
    without bank conflicts.

    rows [C', heads, rows, E], 16-bit.
    """
    plain = descriptor(rows, block)
    shared = gl.NVMMASharedLayout.get_default_for(plain.block_shape, NAMES[rows.dtype])
    return TensorDescriptor(rows, plain.shape, plain.strides, plain.block_shape, shared)


def forward(
    call: AttentionCall,
    keys: ScaledKeys,
    sizes: BlockSizes,
    plan: SplitKeys,
    o: Tensor,
    inverse: Tensor,
) -> None:
    """Write, as stream_launches.forward does by its kernel, o [C', H, N, V], and inverse
    [C', H, N], 1 / n.

    Numbers have 16 bits; sizes: tables.HOPPER, of 128 or 256 queries; plan: which tiles have their
    keys split.
    """
    q, v = call.q, call.v
    assert plan.splits <= max(1, cdiv(v.shape[2], 2 * sizes.other)), "a split has no keys"
    assert not call.packed or (not plan.split_tiles and 2 * sizes.other <= GAP), (
        "packed bags cannot split keys"
    )
    tiles = TileAssignment.of(q.shape[2], q.shape[0], sizes.own, call.query_offsets)
    sums = torch.empty(
        plan.split_tiles * plan.splits * sizes.own, call.value_width, device=q.device
    )
    squares = torch.empty(len(sums), device=q.device)

    def run(programs: int, first: int, splits: int, early: bool) -> None:
        launch.start(
            stream_forward,
            (programs,),
            {
                **call.arguments,
                **keys.arguments,
                **tiles.arguments,
                "q": gluon_descriptor(q, BLOCK.value),
                "k": gluon_descriptor(keys.rows, sizes.other),
                "v": gluon_descriptor(v, sizes.other),
                **pointers(o=o),
                "inverse": inverse,
                "sums": sums,
                "squares": squares,
                "first": first,
                "splits": splits,
                "QUERIES": sizes.own,
                "KEYS": sizes.other,
                "STAGES": sizes.stages,
                "SPLIT": splits > 1,
            },
            num_warps=WARPS.value,
            launch_pdl=early,
        )

    if plan.whole_tiles:
        run(plan.whole_tiles, 0, 1, early=True)
    if plan.split_tiles:
        run(
            plan.split_tiles * plan.splits,
            plan.whole_tiles,
            plan.splits,
            early=not plan.whole_tiles,
        )
        add_split_keys(call, keys, sums, squares, tiles.count, sizes.own, plan, o, inverse)
    repair_rows(call, keys, o, inverse)
