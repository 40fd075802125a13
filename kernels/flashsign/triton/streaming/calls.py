"""Launches of the stream's kernels: one pass forward, and backward one pass for keys and one for queries.

The kernels' one layout (common.layout): q [C', H, N, E], k and v [C', K, M, E], multiplicity m [C', 1 or K, M] float32,
any strides; packed bags have C' = 1 and offsets [bags + 1].
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import torch
import triton
from torch import Tensor

from flashsign.dispatch import HOPPER_TRITON, Kernel, dq_from_moments, hopper_block_sizes
from flashsign.triton.common.launch import start
from flashsign.triton.common.layout import (
    UncheckedDescriptor,
    aligned,
    cdiv,
    descriptor,
    multiplicity_strides,
    precision,
    strides,
    with_gaps,
)
from flashsign.triton.common.tile_assignment import TileAssignment
from flashsign.triton.streaming import query_gradient
from flashsign.triton.streaming.backward import key_gradients, scaled_queries, sum_of_bags
from flashsign.triton.streaming.forward import stream_forward
from flashsign.triton.streaming.scaled_keys import ScaledKeys
from flashsign.tuning.block_sizes import BlockSizes
from flashsign.tuning.choose import choose_block_sizes
from flashsign.tuning.device import multiprocessor_count
from flashsign.tuning.head_width import padded_width

hopper: ModuleType | None = None
if triton.__version__.startswith(HOPPER_TRITON):
    from flashsign.triton.streaming import forward_hopper

    hopper = forward_hopper

KEYS_PER_PROGRAM = 1024
"""Keys whose moments one program sums: few enough for float32 sums, many enough to be worth a program."""


def forward(
    q: Tensor, k: Tensor, v: Tensor, m: Tensor, offsets: Tensor | None, query_offsets: Tensor | None,
    eps: float, sizes: BlockSizes | None = None, kernel: Kernel = "triton_stream",
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Outputs like q, and 1 / n of every row, [C', H, N] float32.

    sizes: block sizes of the plain kernel (default: tuning.choose). kernel: "triton_stream" or "triton_stream_hopper",
    which has its own block sizes (dispatch.stream_kernel says which).
    """
    o = torch.empty_like(q)
    q, v = aligned(q), aligned(v)
    heads, width = q.shape[1], padded_width(q.shape[-1])
    inverse = torch.empty(q.shape[:3], device=q.device, dtype=torch.float32)
    keys = ScaledKeys.of(k, m, offsets)
    if kernel == "triton_stream_hopper" and hopper is not None:
        hopper.forward(q, keys, v, m, offsets, query_offsets, eps, *hopper_block_sizes(q, k, query_offsets), o, inverse)
        return o, inverse
    sizes = sizes or choose_block_sizes("forward", q, width)
    tiles = TileAssignment.of(q.shape[2], q.shape[0], sizes.own, query_offsets)
    start(
        stream_forward,
        tiles.grid(heads),
        tensors={
            "q": descriptor(q, sizes.own),
            "k": descriptor(keys.rows, sizes.other),
            "v": descriptor(v, sizes.other),
            "multiplicity": m,
            "offsets": offsets,
            "query_offsets": query_offsets,
            "schedule": tiles.schedule,
            "totals": keys.totals,
            "o": o,
            "inverse": inverse,
        },
        numbers={
            **multiplicity_strides(m),
            **strides(o=o),
            "queries_all": q.shape[2],
            "keys_all": k.shape[2],
            "tiles": tiles.count,
            "heads": heads,
            "key_heads": k.shape[1],
            "parts": keys.parts,
            "gap": keys.gap,
            "eps": eps,
        },
        constants={
            "E": q.shape[-1],
            "E_PAD": width,
            "QUERIES": sizes.own,
            "KEYS": sizes.other,
            "STAGES": sizes.stages,
            "PRECISION": precision(q.dtype),
            "PACKED": offsets is not None,
        },
        num_warps=sizes.warps,
        num_stages=sizes.stages,
    )
    return o, inverse


def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, m: Tensor, o: Tensor, inverse: Tensor,
    offsets: Tensor | None, query_offsets: Tensor | None, eps: float,
    key_sizes: BlockSizes | None = None, query_sizes: BlockSizes | None = None, moments: bool | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """dq, dk, dv like q, k, v, and dm [C', K, M] float32 of every key head.

    grad: of the output; inverse: 1 / n as forward returned it. key_sizes, query_sizes: block sizes of the passes for
    keys and for queries (default: tuning.choose). moments: whether dq comes from the keys' moments (default:
    dispatch.dq_from_moments).
    """
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    dm = torch.empty(k.shape[:3], device=k.device, dtype=torch.float32)
    q, k, v, grad = aligned(q), aligned(k), aligned(v), aligned(grad)
    call = Backward(q, k, v, m, offsets, query_offsets, eps, grad, inverse, ScaledKeys.of(k, m, offsets))
    totals = call.query_totals(o)
    call.key_gradients(totals, dk, dv, dm, key_sizes)
    call.query_gradient(totals, dq, query_sizes, moments)
    return dq, dk, dv, dm


@dataclass(frozen=True)
class QueryTotals:
    """What backward.scaled_queries writes: rows (q~), grads (do~) and delta, with the gaps of ScaledKeys between packed
    bags, and twice_dt [C', H, N]."""

    rows: Tensor
    grads: Tensor
    delta: Tensor
    twice_dt: Tensor


@dataclass(frozen=True)
class Backward:
    """A backward call: its tensors (see backward), the scaled keys, and the launches of its kernels."""

    q: Tensor
    k: Tensor
    v: Tensor
    m: Tensor
    offsets: Tensor | None
    query_offsets: Tensor | None
    eps: float
    grad: Tensor
    inverse: Tensor
    keys: ScaledKeys

    @property
    def heads(self) -> tuple[int, int]:
        """Numbers of query heads and of key heads."""
        return self.q.shape[1], self.k.shape[1]

    @property
    def rows(self) -> tuple[int, int]:
        """Numbers of queries and of keys, of a dense bag or of all packed bags."""
        return self.q.shape[2], self.k.shape[2]

    @property
    def width(self) -> int:
        return padded_width(self.q.shape[-1])

    @property
    def widths(self) -> dict[str, int | str | bool]:
        return {"E": self.q.shape[-1], "E_PAD": self.width}

    @property
    def packed(self) -> bool:
        return self.offsets is not None

    def query_totals(self, o: Tensor) -> QueryTotals:
        """The queries and gradients scaled for both passes; o: outputs, like q."""
        q, grad, keys = self.q, self.grad, self.keys
        rows, grads, delta = (with_gaps(x, len(keys.totals), keys.gap) for x in (q, q, self.inverse))
        twice_dt = torch.empty_like(self.inverse)
        block = max(16, 4096 // self.width)
        tiles = TileAssignment.of(q.shape[2], q.shape[0], block, self.query_offsets)
        heads, key_heads = self.heads
        start(
            scaled_queries,
            tiles.grid(heads),
            tensors={
                "q": q,
                "o": o,
                "grad": grad,
                "inverse": self.inverse,
                "schedule": tiles.schedule,
                "query_offsets": self.query_offsets,
                "totals": keys.totals,
                "out": rows,
                "grads_out": grads,
                "delta": delta,
                "twice_dt": twice_dt,
            },
            numbers={
                **strides(q=q, o=o, grad=grad, out=rows),
                "delta_head": delta.stride(1),
                "queries_all": q.shape[2],
                "tiles": tiles.count,
                "heads": heads,
                "key_heads": key_heads,
                "parts": keys.parts,
                "gap": keys.gap,
                "eps": self.eps,
            },
            constants={**self.widths, "QUERIES": block, "PACKED": self.packed},
            num_warps=4,
        )
        return QueryTotals(rows, grads, delta, twice_dt)

    def key_gradients(self, totals: QueryTotals, dk: Tensor, dv: Tensor, dm: Tensor, sizes: BlockSizes | None) -> None:
        """The pass for keys: writes dk, dv like k, v, and dm [C', K, M]."""
        sizes = sizes or choose_block_sizes("key_gradients", self.k, self.width)
        tiles = TileAssignment.of(self.k.shape[2], self.k.shape[0], sizes.own, self.offsets)
        delta, keys, (heads, key_heads), (queries, all_keys) = totals.delta, self.keys, self.heads, self.rows
        delta = UncheckedDescriptor(delta, list(delta.shape), list(delta.stride()), [1, 1, sizes.other])
        twice_dt = torch.empty(len(keys.totals), key_heads, device=self.k.device)
        start(
            sum_of_bags,
            (key_heads, len(keys.totals)),
            tensors={"rows": totals.twice_dt, "query_offsets": self.query_offsets, "out": twice_dt},
            numbers={"queries_all": queries, "heads": heads, "key_heads": key_heads},
            constants={"BLOCK": 1024, "PACKED": self.packed},
            num_warps=4,
        )
        start(
            key_gradients,
            tiles.grid(key_heads),
            tensors={
                "q": descriptor(totals.rows, sizes.other),
                "k": descriptor(self.k, sizes.own),
                "scaled": descriptor(keys.rows, sizes.own),
                "v": descriptor(self.v, sizes.own),
                "grad": descriptor(totals.grads, sizes.other),
                "delta": delta,
                "multiplicity": self.m,
                "twice_dt": twice_dt,
                "offsets": self.offsets,
                "query_offsets": self.query_offsets,
                "schedule": tiles.schedule,
                "totals": keys.totals,
                "dk": dk,
                "dv": dv,
                "dm": dm,
            },
            numbers={
                **multiplicity_strides(self.m),
                **strides(dk=dk, dv=dv),
                "queries_all": queries,
                "keys_all": all_keys,
                "tiles": tiles.count,
                "heads": heads,
                "key_heads": key_heads,
                "parts": keys.parts,
                "gap": keys.gap,
            },
            constants={
                **self.widths,
                "QUERIES": sizes.other,
                "KEYS": sizes.own,
                "STAGES": sizes.stages,
                "PRECISION": precision(self.q.dtype),
                "PACKED": self.packed,
            },
            num_warps=sizes.warps,
            num_stages=sizes.stages,
        )

    def query_gradient(self, totals: QueryTotals, dq: Tensor, sizes: BlockSizes | None, moments: bool | None) -> None:
        """The pass for queries: writes dq, from moments where `moments`, else by the stream."""
        sizes = sizes or choose_block_sizes("query_gradient", self.q, self.width)
        tiles = TileAssignment.of(self.q.shape[2], self.q.shape[0], sizes.own, self.query_offsets)
        if moments is None:
            moments = dq_from_moments(self.width, self.k.shape[2])
        ill_conditioned = self.moment_query_gradient(totals, dq, sizes, tiles) if moments else None
        self.stream_query_gradient(totals, dq, sizes, tiles, ill_conditioned)

    def moment_query_gradient(
        self, totals: QueryTotals, dq: Tensor, sizes: BlockSizes, tiles: TileAssignment
    ) -> Tensor:
        """Writes dq from the keys' moments. Returns, for each program, int32 1 if its tile must be streamed, else 0."""
        q, grad, keys, (heads, key_heads) = self.q, self.grad, self.keys, self.heads
        ill_conditioned = torch.empty(tiles.grid(heads), device=q.device, dtype=torch.int32)
        start(
            query_gradient.moment_query_gradient,
            tiles.grid(heads),
            tensors={
                "q": q,
                "grad": grad,
                "inverse": self.inverse,
                "delta": totals.delta,
                "schedule": tiles.schedule,
                "query_offsets": self.query_offsets,
                "totals": keys.totals,
                "moments": self.key_moments(),
                "dq": dq,
                "ill_conditioned": ill_conditioned,
            },
            numbers={
                **strides(q=q, grad=grad, dq=dq),
                "delta_head": totals.delta.stride(1),
                "queries_all": q.shape[2],
                "tiles": tiles.count,
                "heads": heads,
                "key_heads": key_heads,
                "parts": keys.parts,
                "gap": keys.gap,
                "eps": self.eps,
            },
            constants={
                **self.widths,
                "QUERIES": sizes.own,
                "WIDTH": min(self.width, 32),
                "PRECISION": precision(q.dtype),
                "HALF": q.element_size() == 2,
                "PACKED": self.packed,
            },
            num_warps=sizes.warps,
            num_stages=2,
        )
        return ill_conditioned

    def stream_query_gradient(
        self, totals: QueryTotals, dq: Tensor, sizes: BlockSizes, tiles: TileAssignment, ill_conditioned: Tensor | None
    ) -> None:
        """Writes dq by a stream over the keys, for all tiles or for those that ill_conditioned marks."""
        keys, (heads, key_heads), (queries, all_keys) = self.keys, self.heads, self.rows
        start(
            query_gradient.stream_query_gradient,
            tiles.grid(heads),
            tensors={
                "q": descriptor(totals.rows, sizes.own),
                "k": descriptor(keys.rows, sizes.other),
                "v": descriptor(self.v, sizes.other),
                "grad": descriptor(self.grad, sizes.own),
                "multiplicity": self.m,
                "inverse": self.inverse,
                "delta": totals.delta,
                "offsets": self.offsets,
                "query_offsets": self.query_offsets,
                "schedule": tiles.schedule,
                "totals": keys.totals,
                "dq": dq,
                "ill_conditioned": ill_conditioned,
            },
            numbers={
                **multiplicity_strides(self.m),
                **strides(dq=dq),
                "delta_head": totals.delta.stride(1),
                "queries_all": queries,
                "keys_all": all_keys,
                "tiles": tiles.count,
                "heads": heads,
                "key_heads": key_heads,
                "parts": keys.parts,
                "gap": keys.gap,
                "eps": self.eps,
            },
            constants={
                **self.widths,
                "QUERIES": sizes.own,
                "KEYS": sizes.other,
                "STAGES": sizes.stages,
                "ONLY_ILL_CONDITIONED": ill_conditioned is not None,
                "PRECISION": precision(self.q.dtype),
                "PACKED": self.packed,
            },
            num_warps=sizes.warps,
            num_stages=sizes.stages,
        )

    def key_moments(self) -> Tensor:
        """A and G of every bag and key head, [bags, K, 2, E_PAD, E_PAD] float32."""
        v, keys, width, (_, key_heads) = self.v, self.keys, self.width, self.heads
        bags = len(keys.totals)
        mean = v.shape[2] if self.offsets is None else cdiv(v.shape[2], bags)
        # As few parts as precision allows, or more to fill the device, unless adding them up would cost more.
        filling = multiprocessor_count(v.device) // (bags * key_heads)
        parts = max(1, cdiv(mean, KEYS_PER_PROGRAM), min(filling, cdiv(mean, KEYS_PER_PROGRAM // 4)))
        out = torch.empty(parts, bags, key_heads, 2, width, width, device=v.device, dtype=torch.float32)
        start(
            query_gradient.key_moments,
            (parts, key_heads, bags),
            tensors={"k": keys.rows, "v": v, "multiplicity": self.m, "offsets": self.offsets, "out": out},
            numbers={
                **strides(k=keys.rows, v=v),
                **multiplicity_strides(self.m),
                "rows": v.shape[2],
                "key_heads": key_heads,
                "gap": keys.gap,
            },
            constants={
                **self.widths,
                "BLOCK": 64,
                "STAGES": 3,
                "PRECISION": precision(v.dtype),
                "PACKED": self.packed,
            },
            num_warps=8 if width > 64 else 4,
            num_stages=3,
        )
        return out.sum(0) if parts > 1 else out[0]
