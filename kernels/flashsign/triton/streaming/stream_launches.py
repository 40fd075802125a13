"""Launches of the stream's kernels: one pass forward, and backward one pass for keys and one for
queries.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any

import torch
import triton
from torch import Tensor

from flashsign.attention.call import AttentionCall, pointers
from flashsign.attention.dispatch import HOPPER_TRITON, Kernel, dq_from_moments
from flashsign.triton.common.launch import start
from flashsign.triton.common.layout import (
    TileAssignment,
    UncheckedDescriptor,
    aligned,
    aligned_call,
    cdiv,
    descriptor,
    with_gaps,
)
from flashsign.triton.streaming import query_gradient
from flashsign.triton.streaming.scaled_keys import ScaledKeys
from flashsign.triton.streaming.stream_backward import key_gradients, scaled_queries, sum_of_bags
from flashsign.triton.streaming.stream_forward import stream_forward
from flashsign.tuning import tables
from flashsign.tuning.block_sizes import BlockSizes
from flashsign.tuning.choose import TABLES_ALONE, Tiles, choose_block_sizes
from flashsign.tuning.device import multiprocessor_count
from flashsign.tuning.split_keys import MOST_SPLITS, SplitKeys

hopper: ModuleType | None = None
if triton.__version__.startswith(HOPPER_TRITON):
    from flashsign.triton.streaming import forward_hopper

    hopper = forward_hopper

KEYS_PER_PROGRAM = 1024
"""Keys whose moments one program sums: few enough for float32 sums, many enough to be worth a
program.
"""
FEWEST_KEYS = 128
"""The least keys of a program where a device would not be full otherwise: adding up more parts
takes too long.
"""


def forward(
    call: AttentionCall, kernel: Kernel = "triton_stream", tiles: Tiles = TABLES_ALONE
) -> tuple[Tensor, Tensor]:
    """Return outputs [C', H, N, V], and 1 / n of every row, [C', H, N] float32.

    kernel: "triton_stream" or "triton_stream_hopper"; tiles: block sizes of some kernels.
    """
    o, inverse = call.empty_output(), call.empty_rows()
    call = aligned_call(call)
    keys = ScaledKeys.of(call)
    if kernel == "triton_stream_hopper" and hopper is not None:
        hopper.forward(call, keys, *hopper_block_sizes(call, tiles), o, inverse)
        return o, inverse
    q = call.q
    sizes = choose_block_sizes("forward", q, call.width, tiles, call.value_width)
    assigned = TileAssignment.of(q.shape[2], q.shape[0], sizes.own, call.query_offsets)
    start(
        stream_forward,
        assigned.grid(q.shape[1]),
        {
            **call.arguments,
            **keys.arguments,
            **assigned.arguments,
            **loop(sizes.own, sizes.other, sizes),
            "q": descriptor(q, sizes.own),
            "k": descriptor(keys.rows, sizes.other),
            "v": descriptor(call.v, sizes.other),
            **pointers(o=o),
            "inverse": inverse,
        },
        num_warps=sizes.warps,
        num_stages=sizes.stages,
    )
    return o, inverse


def hopper_block_sizes(call: AttentionCall, tiles: Tiles) -> tuple[BlockSizes, SplitKeys]:
    """Return the block sizes with which the kernel for Hopper is fastest, and how it splits keys
    then.

    tiles: block sizes that are taken, by the name of a kernel, "hopper" among them.
    """
    q, bags = call.q, max(1, call.bags) if call.packed else 1
    keys = call.k.shape[2] // bags
    own = tiles.get("hopper")
    found: list[tuple[BlockSizes, SplitKeys]] = []
    table = tables.tiles_of("hopper", q.element_size(), q.shape[-1], call.value_width)
    for sizes in [own] if isinstance(own, BlockSizes) else table:
        # Packed bags differ in their numbers of keys: the mean is taken, and their keys are never
        # split.
        count = (
            q.shape[2] // sizes.own + bags
            if call.packed
            else -(-q.shape[2] // sizes.own) * q.shape[0]
        )
        most = 1 if call.packed else MOST_SPLITS
        found.append(
            (
                sizes,
                SplitKeys.of(count * q.shape[1], keys, sizes, multiprocessor_count(q.device), most),
            )
        )
    return min(found, key=lambda pair: pair[1].cost)


def loop(queries: int, keys: int, sizes: BlockSizes) -> dict[str, int]:
    """Return constants of a kernel that loops over tiles of queries or of keys."""
    return {"QUERIES": queries, "KEYS": keys, "STAGES": sizes.stages}


def backward(
    call: AttentionCall,
    grad: Tensor,
    o: Tensor,
    inverse: Tensor,
    tiles: Tiles = TABLES_ALONE,
    from_moments: bool | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return dq, dk, dv like q, k, v, and dm [C', K, M] float32 of every key head.

    grad: of the output; o, inverse: as forward returned them; tiles: block sizes of some kernels.
        from_moments: whether dq comes from the keys' moments (default: dispatch.dq_from_moments).
    """
    dq, dk, dv, dm = call.empty_gradients()
    call = aligned_call(call)
    passes = Passes(call, ScaledKeys.of(call), aligned(grad), inverse, tiles)
    totals = passes.query_totals(o)
    passes.key_gradients(totals, dk, dv, dm)
    if from_moments is None:
        from_moments = dq_from_moments(call.width, call.k.shape[2])
    sizes = choose_block_sizes("query_gradient", call.q, call.width, tiles, call.value_width)
    assigned = TileAssignment.of(call.q.shape[2], call.q.shape[0], sizes.own, call.query_offsets)
    ill_conditioned = (
        passes.moment_query_gradient(totals, dq, sizes, assigned) if from_moments else None
    )
    passes.stream_query_gradient(totals, dq, sizes, assigned, ill_conditioned)
    return dq, dk, dv, dm


@dataclass(frozen=True)
class QueryTotals:
    """The results of stream_backward.scaled_queries.

    rows (q~), grads (do~) and delta have the gaps of ScaledKeys between packed bags; twice_dt
    [C', H, N].
    """

    rows: Tensor
    grads: Tensor
    delta: Tensor
    twice_dt: Tensor


@dataclass(frozen=True)
class Passes:
    """The launches of a backward's kernels."""

    call: AttentionCall
    keys: ScaledKeys
    grad: Tensor
    inverse: Tensor
    tiles: Tiles

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """Arguments of all kernels, by name."""
        given = pointers(grad=self.grad), self.keys.arguments
        return {**self.call.arguments, **given[0], **given[1], "inverse": self.inverse}

    def query_totals(self, o: Tensor) -> QueryTotals:
        """Return the queries and gradients scaled for both passes; o: outputs."""
        call, q = self.call, self.call.q
        rows, grads, delta = (
            with_gaps(x, call.bags, self.keys.gap) for x in (q, self.grad, self.inverse)
        )
        twice_dt = torch.empty_like(self.inverse)
        block = max(16, 4096 // call.width)
        tiles = TileAssignment.of(q.shape[2], q.shape[0], block, call.query_offsets)
        start(
            scaled_queries,
            tiles.grid(q.shape[1]),
            {
                **self.arguments,
                **tiles.arguments,
                **pointers(o=o, out=rows, grads_out=grads),
                "delta": delta,
                "delta_head": delta.stride(1),
                "twice_dt": twice_dt,
                "QUERIES": block,
            },
            num_warps=4,
        )
        return QueryTotals(rows, grads, delta, twice_dt)

    def key_gradients(self, totals: QueryTotals, dk: Tensor, dv: Tensor, dm: Tensor) -> None:
        """Run the pass for keys: write dk, dv like k, v, and dm [C', K, M]."""
        call, keys, key_heads = self.call, self.keys, self.call.heads[1]
        sizes = choose_block_sizes(
            "key_gradients", call.k, call.width, self.tiles, call.value_width
        )
        tiles = TileAssignment.of(call.k.shape[2], call.k.shape[0], sizes.own, call.offsets)
        delta = totals.delta
        twice_dt = torch.empty(call.bags, key_heads, device=call.k.device)
        start(
            sum_of_bags,
            (key_heads, call.bags),
            {**self.arguments, "rows": totals.twice_dt, "out": twice_dt, "BLOCK": 1024},
            num_warps=4,
        )
        start(
            key_gradients,
            tiles.grid(key_heads),
            {
                **self.arguments,
                **tiles.arguments,
                **loop(sizes.other, sizes.own, sizes),
                "q": descriptor(totals.rows, sizes.other),
                "k": descriptor(call.k, sizes.own),
                "scaled": descriptor(keys.rows, sizes.own),
                "v": descriptor(call.v, sizes.own),
                "grad": descriptor(totals.grads, sizes.other),
                "delta": UncheckedDescriptor(
                    delta, list(delta.shape), list(delta.stride()), [1, 1, sizes.other]
                ),
                "twice_dt": twice_dt,
                **pointers(dk=dk, dv=dv),
                "dm": dm,
            },
            num_warps=sizes.warps,
            num_stages=sizes.stages,
        )

    def moment_query_gradient(
        self, totals: QueryTotals, dq: Tensor, sizes: BlockSizes, tiles: TileAssignment
    ) -> Tensor:
        """Write dq from the keys' moments. Returns, for each program, int32 1 if its tile must be
        streamed, else 0.
        """
        call, q = self.call, self.call.q
        ill_conditioned = torch.empty(tiles.grid(q.shape[1]), device=q.device, dtype=torch.int32)
        start(
            query_gradient.moment_query_gradient,
            tiles.grid(q.shape[1]),
            {
                **self.arguments,
                **tiles.arguments,
                "delta": totals.delta,
                "delta_head": totals.delta.stride(1),
                "moments": self.key_moments(),
                **pointers(dq=dq),
                "ill_conditioned": ill_conditioned,
                "QUERIES": sizes.own,
                "WIDTH": min(call.width, 32),
                "VALUES": min(call.value_width, 32),
            },
            num_warps=sizes.warps,
            num_stages=2,
        )
        return ill_conditioned

    def stream_query_gradient(
        self,
        totals: QueryTotals,
        dq: Tensor,
        sizes: BlockSizes,
        tiles: TileAssignment,
        ill_conditioned: Tensor | None,
    ) -> None:
        """Write dq by a stream over the keys, for all tiles or for those that ill_conditioned
        marks.
        """
        start(
            query_gradient.stream_query_gradient,
            tiles.grid(self.call.q.shape[1]),
            {
                **self.arguments,
                **tiles.arguments,
                **loop(sizes.own, sizes.other, sizes),
                "q": descriptor(totals.rows, sizes.own),
                "k": descriptor(self.keys.rows, sizes.other),
                "v": descriptor(self.call.v, sizes.other),
                "grad": descriptor(self.grad, sizes.own),
                "delta": totals.delta,
                "delta_head": totals.delta.stride(1),
                **pointers(dq=dq),
                "ill_conditioned": ill_conditioned,
                "ONLY_ILL_CONDITIONED": ill_conditioned is not None,
            },
            num_warps=sizes.warps,
            num_stages=sizes.stages,
        )

    def key_moments(self) -> Tensor:
        """Return A and G of every bag and key head.

        They are one tensor [bags, K, E_PAD V_PAD + E_PAD E_PAD], float32.
        """
        call, v, key_heads = self.call, self.call.v, self.call.heads[1]
        mean = cdiv(v.shape[2], call.bags) if call.packed else v.shape[2]
        # As few parts as precision allows, or more to fill the device, unless adding them up would
        # cost more.
        filling = multiprocessor_count(v.device) // (call.bags * key_heads)
        parts = max(1, cdiv(mean, KEYS_PER_PROGRAM), min(filling, cdiv(mean, FEWEST_KEYS)))
        numbers = call.width * (call.value_width + call.width)
        out = torch.empty(
            parts, call.bags, key_heads, numbers, device=v.device, dtype=torch.float32
        )
        start(
            query_gradient.key_moments,
            (parts, key_heads, call.bags),
            {**self.arguments, **pointers(k=self.keys.rows), "out": out, "BLOCK": 64, "STAGES": 3},
            num_warps=8 if call.width > 64 else 4,
            num_stages=3,
        )
        return out.sum(0) if parts > 1 else out[0]
