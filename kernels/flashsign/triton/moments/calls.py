"""The moments' kernels, called on tensors: forward a pass over the keys and one over the queries, backward the reverse.

The one form of tiles.py: q [C', H, N, E], k and v [C', K, M, E], multiplicity m [C', 1 or K, M] float32, any strides
with E adjacent; packed bags have C' = 1 and offsets [bags + 1]. Widths to WIDEST.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from flashsign.triton.common.launch import aligned, cdiv, head_stride, precision, start, steps
from flashsign.triton.moments import backward as moment_backward
from flashsign.triton.moments import forward as moment_forward
from flashsign.triton.moments import ill_conditioned_rows as weak_rows
from flashsign.triton.moments import sums as moment_sums
from flashsign.tuning import tables as tuning
from flashsign.tuning.tables import choose_pass, padded_width
from flashsign.tuning.tile import Pass

CHAIN = 4096
"""Most keys or queries that one program sums in float32."""
FEWEST = 256
"""Rows below which a part of a sum costs more to write than to make."""


class Squares(NamedTuple):
    """Two sums of squares [bags K, 2, E_PAD, E_PAD], and their totals: see moment_sums.add_parts."""

    sums: Tensor
    totals: Tensor


class Weak(NamedTuple):
    """Lists of weak rows, one a bag and key head, and how many are on each [bags K]: see weak_rows."""

    rows: Tensor
    counts: Tensor


def forward(
    q: Tensor, k: Tensor, v: Tensor, m: Tensor, offsets: Tensor | None, query_offsets: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Outputs like q, 1 / n of every row [C', H, N] float32, and A and G as Squares, sums and totals."""
    call = Call(aligned(q), aligned(k), aligned(v), m, offsets, query_offsets, eps)
    o = torch.empty_like(q)
    inverse = torch.empty(q.shape[:3], device=q.device, dtype=torch.float32)
    weak = call.no_rows()
    moments = call.sum_keys(weak)
    call.attend_moments(moments, o, inverse, weak)
    call.attend_weak(moments, o, inverse, weak)
    return o, inverse, *moments


def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, m: Tensor, o: Tensor, inverse: Tensor, sums: Tensor, totals: Tensor,
    offsets: Tensor | None, query_offsets: Tensor | None, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """dq, dk, dv like q, k, v, and dm [C', K, M] float32 of every key head; sums, totals: as forward gave them."""
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    dm = torch.empty(k.shape[:3], device=k.device, dtype=torch.float32)
    call = Call(aligned(q), aligned(k), aligned(v), m, offsets, query_offsets, eps)
    grad, moments = aligned(grad), Squares(sums, totals)
    weak, delta = call.no_rows(), torch.empty_like(inverse)
    gradients = call.sum_queries(grad, o, inverse, moments, delta, weak)
    call.key_gradients(gradients, moments, dk, dv, dm)
    call.query_gradients(grad, inverse, delta, moments, gradients, dq, weak)
    call.weak_query_gradients(grad, o, inverse, moments, dq, weak)
    return dq, dk, dv, dm


@dataclass(frozen=True)
class Call:
    """The tensors of a call, and the kernels on them."""

    q: Tensor
    k: Tensor
    v: Tensor
    m: Tensor
    offsets: Tensor | None
    query_offsets: Tensor | None
    eps: float

    @property
    def bags(self) -> int:
        return self.q.shape[0] if self.offsets is None else len(self.offsets) - 1

    @property
    def heads(self) -> tuple[int, int]:
        return self.q.shape[1], self.k.shape[1]

    @property
    def width(self) -> int:
        return padded_width(self.q.shape[-1])

    @property
    def half(self) -> bool:
        return self.q.element_size() == 2

    @property
    def block(self) -> int:
        return tuning.moment_block(self.width)

    @property
    def form(self) -> dict[str, int | str | bool]:
        return {
            "E": self.q.shape[-1], "E_PAD": self.width, "PRECISION": precision(self.q.dtype),
            "PACKED": self.offsets is not None,
        }  # fmt: skip

    @property
    def key_strides(self) -> tuple[int, ...]:
        return *steps(self.k), *steps(self.v), self.m.stride(0), head_stride(self.m)

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, device=self.q.device, dtype=dtype)

    def no_rows(self) -> Weak:
        """Room for every row; add_parts sets the count to zero."""
        room = self.q.shape[0] * self.q.shape[1] * self.q.shape[2]
        return Weak(self.empty(room, dtype=torch.int32), self.empty(self.bags * self.heads[1], dtype=torch.int32))

    def shares(self, rows: Tensor, tile: Pass, fewest: int) -> int:
        """Parts that every bag and head of rows [C', heads, rows, E] is done in, to have about so many programs."""
        mean = rows.shape[2] if self.offsets is None else cdiv(rows.shape[2], self.bags)
        filling = tuning.processors(rows.device) * tile.programs // (self.bags * rows.shape[1])
        return max(1, min(filling, cdiv(mean, fewest)), cdiv(mean, CHAIN))

    def sum_keys(self, weak: Weak) -> Squares:
        tile, (_, key_heads) = choose_pass("moment_keys", self.k, self.width), self.heads
        shares = self.shares(self.k, tile, FEWEST)
        parts, scales = self.room(shares)
        start(
            moment_sums.sum_keys, (shares, key_heads, self.bags),
            (self.k, self.v, self.m, self.offsets, parts, scales), (*self.key_strides, self.k.shape[2], key_heads),
            {**self.form, "BLOCK": tile.rows, "LOOK": 1024, "STAGES": tile.stages},
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
        return self.add(parts, scales, weak, scaled=True)

    def sum_queries(
        self, grad: Tensor, o: Tensor, inverse: Tensor, moments: Squares, delta: Tensor, weak: Weak
    ) -> Squares:
        q, (heads, key_heads) = self.q, self.heads
        tile = choose_pass("moment_query_sums", q, self.width)
        shares = self.shares(q, tile, FEWEST)
        parts, doubts = self.room(shares * (heads // key_heads))
        start(
            moment_backward.sum_queries, (shares, heads, self.bags),
            (q, o, grad, inverse, moments.totals, self.query_offsets, parts, doubts, delta),
            (*steps(q), *steps(o), *steps(grad), q.shape[2], heads, key_heads, self.eps),
            {**self.form, "QUERIES": tile.rows, "STAGES": tile.stages, "BLOCK": self.block},
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
        return self.add(parts, doubts, weak, scaled=False)

    def room(self, parts: int) -> tuple[Tensor, Tensor]:
        """For parts of Squares, and a number of each."""
        squares = self.bags * self.heads[1]
        return self.empty(parts, squares, 2, self.width, self.width), self.empty(parts, squares)

    def add(self, parts: Tensor, scales: Tensor, weak: Weak, scaled: bool) -> Squares:
        sums, totals = self.empty(*parts.shape[1:]), self.empty(parts.shape[1], 4, self.width**2 // self.block)
        start(
            moment_sums.add_parts, (self.width**2 // self.block, parts.shape[1]),
            (parts, scales, sums, totals, weak.counts), (len(parts),),
            {"E_PAD": self.width, "BLOCK": self.block, "SHARES": 1 << (len(parts) - 1).bit_length(), "SCALED": scaled},
            num_warps=4,
        )  # fmt: skip
        return Squares(sums, totals)

    def over_rows(
        self, kernel: Any, what: Literal["QUERIES", "KEYS"], name: str,
        tensors: tuple[Tensor | None, ...], numbers: tuple[int | float, ...],
    ) -> None:  # fmt: skip
        """A pass over queries or keys that sums nothing; name: of its tile."""
        rows = self.q if what == "QUERIES" else self.k
        tile = choose_pass(name, rows, self.width)
        start(
            kernel, (self.shares(rows, tile, tile.rows), rows.shape[1], self.bags), tensors, numbers,
            {**self.form, what: tile.rows, "STAGES": tile.stages, "HALF": self.half, "BLOCK": self.block},
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip

    def attend_moments(self, moments: Squares, o: Tensor, inverse: Tensor, weak: Weak) -> None:
        q = self.q
        self.over_rows(
            moment_forward.attend_moments, "QUERIES", "moment_queries",
            (q, *moments, self.query_offsets, o, inverse, *weak),
            (*steps(q), *steps(o), q.shape[2], *self.heads, self.eps),
        )  # fmt: skip

    def query_gradients(
        self, grad: Tensor, inverse: Tensor, delta: Tensor, moments: Squares, gradients: Squares, dq: Tensor, weak: Weak
    ) -> None:
        q = self.q
        self.over_rows(
            moment_backward.query_gradients, "QUERIES", "moment_query_gradients",
            (q, grad, inverse, delta, *moments, gradients.totals, self.query_offsets, dq, *weak),
            (*steps(q), *steps(grad), *steps(dq), q.shape[2], *self.heads, self.eps),
        )  # fmt: skip

    def key_gradients(self, gradients: Squares, moments: Squares, dk: Tensor, dv: Tensor, dm: Tensor) -> None:
        k = self.k
        self.over_rows(
            moment_backward.key_gradients, "KEYS", "moment_key_gradients",
            (k, self.v, self.m, self.offsets, *gradients, moments.totals, dk, dv, dm),
            (*self.key_strides, *steps(dk), *steps(dv), k.shape[2], k.shape[1], self.eps),
        )  # fmt: skip

    def attend_weak(self, moments: Squares, o: Tensor, inverse: Tensor, weak: Weak) -> None:
        q = self.q
        self.over_weak(
            weak_rows.attend_weak,
            (q, self.k, self.v, self.m, self.offsets, self.query_offsets, moments.totals, *weak, o, inverse),
            (*steps(q), *self.key_strides, *steps(o)),
        )

    def weak_query_gradients(
        self, grad: Tensor, o: Tensor, inverse: Tensor, moments: Squares, dq: Tensor, weak: Weak
    ) -> None:
        q = self.q
        self.over_weak(
            weak_rows.weak_query_gradients,
            (q, self.k, self.v, grad, o, self.m, inverse, self.offsets, self.query_offsets, moments.totals, *weak, dq),
            (*steps(q), *self.key_strides, *steps(grad), *steps(o), *steps(dq)),
        )

    def over_weak(self, kernel: Any, tensors: tuple[Tensor | None, ...], strides: tuple[int, ...]) -> None:
        """Few programs, which mostly find an empty list."""
        _, key_heads = self.heads
        programs = max(1, 2 * tuning.processors(self.q.device) // (self.bags * key_heads))
        start(
            kernel, (programs, key_heads, self.bags), tensors,
            (*strides, self.q.shape[2], self.k.shape[2], *self.heads, self.eps),
            {**self.form, "QUERIES": 64 if self.half else 32, "KEYS": 32, "BLOCK": self.block}, num_warps=4,
        )  # fmt: skip
