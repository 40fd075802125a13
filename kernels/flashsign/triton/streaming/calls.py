"""The stream's kernels, called on tensors: one forward pass, and a backward of a pass for keys and one for queries.

The one form of tiles.py: q [C', H, N, E], k and v [C', K, M, E], multiplicity m [C', 1 or K, M] float32, any strides;
packed bags have C' = 1 and offsets [bags + 1].
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import torch
import triton
from torch import Tensor

from flashsign.triton import small_bags
from flashsign.triton.common.launch import (
    Keys,
    Tiles,
    Unchecked,
    aligned,
    cdiv,
    descriptor,
    head_stride,
    precision,
    start,
    steps,
    with_gaps,
)
from flashsign.triton.streaming import backward as stream_backward
from flashsign.triton.streaming import forward as stream_forward
from flashsign.triton.streaming import query_gradient
from flashsign.tuning import tables as tuning
from flashsign.tuning.split_keys import MOST_SHARES, Waves
from flashsign.tuning.tables import capability, padded_width
from flashsign.tuning.tile import Tile

# Gluon is young and changes from release to release: only where its kernel was seen working.
hopper: ModuleType | None = None
if triton.__version__.startswith("3.6."):
    from flashsign.triton.streaming import forward_hopper as stream_forward_hopper

    hopper = stream_forward_hopper

SHARE = 1024
"""Keys whose moments one program sums: few enough for float32, many enough to fill its time."""
STREAMED = 8
"""From so many keys a unit of width on, dq comes from moments: two products of width E against three with every key."""
LONG = 2048
"""Keys from which on the kernel written for Hopper is the faster one: it takes a multiprocessor for itself."""
WIDEST_MOMENTS = 128
"""Of wider heads two moments are more than a program's registers and shared memory."""


def forward(
    q: Tensor, k: Tensor, v: Tensor, m: Tensor, offsets: Tensor | None, query_offsets: Tensor | None,
    eps: float, tile: Tile | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Outputs like q, and 1 / n of every row, [C', H, N] float32."""
    if tile is None and small_bags.fits(q, k, offsets, query_offsets):
        return small_bags.forward(q, k, v, m, offsets, query_offsets, eps)
    o = torch.empty_like(q)
    q, v = aligned(q), aligned(v)
    heads, width = q.shape[1], padded_width(q.shape[-1])
    inverse = torch.empty(q.shape[:3], device=q.device, dtype=torch.float32)
    keys = Keys.of(k, m, offsets)
    chosen = hopper_tile(q, k, query_offsets) if tile is None else None
    if hopper is not None and chosen is not None:
        hopper.forward(q, keys, v, m, offsets, query_offsets, eps, *chosen, o, inverse)
        return o, inverse
    tile = tile or tuning.choose_tile("forward", q, width)
    tiles = Tiles.of(q.shape[2], q.shape[0], tile.own, query_offsets)
    start(
        stream_forward.stream_forward, tiles.grid(heads),
        (descriptor(q, tile.own), descriptor(keys.rows, tile.other), descriptor(v, tile.other),
         m, offsets, query_offsets, tiles.schedule, keys.totals, o, inverse),
        (m.stride(0), head_stride(m), *steps(o), q.shape[2], k.shape[2], tiles.count, heads, k.shape[1],
         keys.parts, keys.gap, eps),
        {"E": q.shape[-1], "E_PAD": width, "QUERIES": tile.own, "KEYS": tile.other, "STAGES": tile.stages,
         "PRECISION": precision(q.dtype), "PACKED": offsets is not None},
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return o, inverse


def hopper_tile(q: Tensor, k: Tensor, query_offsets: Tensor | None) -> tuple[Tile, Waves] | None:
    """The tile of the kernel written for Hopper that is done first, and in what waves; None where it does not run."""
    tiles = tuning.HOPPER.get((q.element_size(), q.shape[-1]))
    bags = 1 if query_offsets is None else max(1, len(query_offsets) - 1)
    keys = k.shape[2] // bags
    if tiles is None or keys < LONG or not q.is_cuda or capability(q.device) != (9, 0):
        return None
    best = None
    for tile in tiles:
        # Packed bags have keys of their own, so many each on average: what is left of them is not dealt out.
        works = cdiv(q.shape[2], tile.own) * q.shape[0] if query_offsets is None else q.shape[2] // tile.own + bags
        most = MOST_SHARES if query_offsets is None else 1
        waves = Waves.of(works * q.shape[1], keys, tile, tuning.processors(q.device), most)
        if best is None or waves.cost < best[1].cost:
            best = tile, waves
    return best


def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, m: Tensor, o: Tensor, inverse: Tensor,
    offsets: Tensor | None, query_offsets: Tensor | None, eps: float,
    tile: Tile | None = None, query_tile: Tile | None = None, moments: bool | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """dq, dk, dv like q, k, v, and dm [C', K, M] float32 of every key head.

    moments: whether dq comes from the keys' moments; by default where that is less work.
    """
    if (tile, query_tile, moments) == (None, None, None) and small_bags.fits(q, k, offsets, query_offsets):
        return small_bags.backward(grad, q, k, v, m, o, inverse, offsets, query_offsets, eps)
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    dm = torch.empty(k.shape[:3], device=k.device, dtype=torch.float32)
    q, k, v, grad = aligned(q), aligned(k), aligned(v), aligned(grad)
    call = Backward(q, k, v, m, offsets, query_offsets, eps, grad, inverse, Keys.of(k, m, offsets))
    totals = call.query_totals(o)
    call.key_gradients(totals, dk, dv, dm, tile)
    call.query_gradient(totals, dq, query_tile, moments)
    return dq, dk, dv, dm


@dataclass(frozen=True)
class QueryTotals:
    """What keys need of queries: rows q~, grads do~ and delta, with gaps as scaled keys have, and pull [C', H, N].

    See scaled_queries.
    """

    rows: Tensor
    grads: Tensor
    delta: Tensor
    pull: Tensor


@dataclass(frozen=True)
class Backward:
    """One backward call: its tensors, and the kernels on them."""

    q: Tensor
    k: Tensor
    v: Tensor
    m: Tensor
    offsets: Tensor | None
    query_offsets: Tensor | None
    eps: float
    grad: Tensor
    inverse: Tensor
    keys: Keys

    @property
    def heads(self) -> tuple[int, int]:
        return self.q.shape[1], self.k.shape[1]

    @property
    def rows(self) -> tuple[int, int]:
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

    @property
    def multiplicity_strides(self) -> tuple[int, int]:
        return self.m.stride(0), head_stride(self.m)

    def query_totals(self, o: Tensor) -> QueryTotals:
        q, grad, keys = self.q, self.grad, self.keys
        rows, grads, delta = (with_gaps(x, len(keys.totals), keys.gap) for x in (q, q, self.inverse))
        pull = torch.empty_like(self.inverse)
        block = max(16, 4096 // self.width)
        tiles = Tiles.of(q.shape[2], q.shape[0], block, self.query_offsets)
        start(
            stream_backward.scaled_queries, tiles.grid(q.shape[1]),
            (q, o, grad, self.inverse, tiles.schedule, self.query_offsets, keys.totals, rows, grads, delta, pull),
            (*steps(q), *steps(o), *steps(grad), *steps(rows), delta.stride(1),
             q.shape[2], tiles.count, *self.heads, keys.parts, keys.gap, self.eps),
            {**self.widths, "QUERIES": block, "PACKED": self.packed}, num_warps=4,
        )  # fmt: skip
        return QueryTotals(rows, grads, delta, pull)

    def key_gradients(self, totals: QueryTotals, dk: Tensor, dv: Tensor, dm: Tensor, tile: Tile | None) -> None:
        tile = tile or tuning.choose_tile("key_gradients", self.k, self.width)
        tiles = Tiles.of(self.k.shape[2], self.k.shape[0], tile.own, self.offsets)
        delta, keys = totals.delta, self.keys
        delta = Unchecked(delta, list(delta.shape), list(delta.stride()), [1, 1, tile.other])
        pulls = torch.empty(len(keys.totals), self.heads[1], device=self.k.device)
        start(
            stream_backward.sum_of_bags, (self.heads[1], len(keys.totals)),
            (totals.pull, self.query_offsets, pulls), (self.rows[0], *self.heads),
            {"BLOCK": 1024, "PACKED": self.packed}, num_warps=4,
        )  # fmt: skip
        start(
            stream_backward.key_gradients, tiles.grid(self.heads[1]),
            (descriptor(totals.rows, tile.other), descriptor(self.k, tile.own), descriptor(keys.rows, tile.own),
             descriptor(self.v, tile.own), descriptor(totals.grads, tile.other), delta,
             self.m, pulls, self.offsets, self.query_offsets, tiles.schedule, keys.totals, dk, dv, dm),
            (*self.multiplicity_strides, *steps(dk), *steps(dv),
             *self.rows, tiles.count, *self.heads, keys.parts, keys.gap),
            {**self.widths, "QUERIES": tile.other, "KEYS": tile.own, "STAGES": tile.stages,
             "PRECISION": precision(self.q.dtype), "PACKED": self.packed},
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip

    def query_gradient(self, totals: QueryTotals, dq: Tensor, tile: Tile | None, moments: bool | None) -> None:
        q, grad, keys = self.q, self.grad, self.keys
        tile = tile or tuning.choose_tile("query_gradient", q, self.width)
        tiles = Tiles.of(q.shape[2], q.shape[0], tile.own, self.query_offsets)
        grid = tiles.grid(q.shape[1])
        if moments is None:
            moments = self.width <= WIDEST_MOMENTS and self.k.shape[2] > STREAMED * self.width
        weak = torch.empty(grid, device=q.device, dtype=torch.int32) if moments else None
        exact = precision(q.dtype)
        if moments:
            start(
                query_gradient.moment_query_gradient, grid,
                (q, grad, self.inverse, totals.delta, tiles.schedule, self.query_offsets, keys.totals,
                 self.key_moments(), dq, weak),
                (*steps(q), *steps(grad), *steps(dq), totals.delta.stride(1),
                 q.shape[2], tiles.count, *self.heads, keys.parts, keys.gap, self.eps),
                {**self.widths, "QUERIES": tile.own, "WIDTH": min(self.width, 32), "PRECISION": exact,
                 "HALF": q.element_size() == 2, "PACKED": self.packed},
                num_warps=tile.warps, num_stages=2,
            )  # fmt: skip
        start(
            query_gradient.stream_query_gradient, grid,
            (descriptor(totals.rows, tile.own), descriptor(keys.rows, tile.other), descriptor(self.v, tile.other),
             descriptor(grad, tile.own), self.m, self.inverse, totals.delta, self.offsets, self.query_offsets,
             tiles.schedule, keys.totals, dq, weak),
            (*self.multiplicity_strides, *steps(dq), totals.delta.stride(1),
             *self.rows, tiles.count, *self.heads, keys.parts, keys.gap, self.eps),
            {**self.widths, "QUERIES": tile.own, "KEYS": tile.other, "STAGES": tile.stages, "ONLY_WEAK": moments,
             "PRECISION": exact, "PACKED": self.packed},
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip

    def key_moments(self) -> Tensor:
        """A and G of every bag and key head, [bags, K, 2, E_PAD, E_PAD] float32."""
        v, keys, width = self.v, self.keys, self.width
        bags = len(keys.totals)
        mean = v.shape[2] if self.offsets is None else cdiv(v.shape[2], bags)
        # As few as precision allows, but enough to fill the device while they stay worth their sum.
        filling = tuning.processors(v.device) // (bags * v.shape[1])
        shares = max(1, cdiv(mean, SHARE), min(filling, cdiv(mean, SHARE // 4)))
        out = torch.empty(shares, bags, v.shape[1], 2, width, width, device=v.device, dtype=torch.float32)
        start(
            query_gradient.key_moments, (shares, v.shape[1], bags), (keys.rows, v, self.m, self.offsets, out),
            (*steps(keys.rows), *steps(v), *self.multiplicity_strides, v.shape[2], v.shape[1], keys.gap),
            {**self.widths, "BLOCK": 64, "STAGES": 3, "PRECISION": precision(v.dtype), "PACKED": self.packed},
            num_warps=8 if width > 64 else 4, num_stages=3,
        )  # fmt: skip
        return out.sum(0) if shares > 1 else out[0]
