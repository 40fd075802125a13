"""The moment kernels as operators of torch, and their autograd: as operators.streaming, with what moments keep.

sums [bags K, 2, E', E'] and totals [bags K, 4, .]: the moments of each bag's keys, float32; E' is E's padded width.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from flashsign.eager.transforms import differentiable_gradients, in_batches, transformed
from flashsign.operators.streaming import LIBRARY, Four, no_graph, torch_stream
from flashsign.tuning.tables import moment_block, padded_width

for schema in (
    "moments(Tensor q, Tensor k, Tensor v, Tensor m, Tensor? offsets, Tensor? query_offsets, float eps)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    "moments_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor m, Tensor o, Tensor inverse, Tensor sums,"
    " Tensor totals, Tensor? offsets, Tensor? query_offsets, float eps) -> (Tensor, Tensor, Tensor, Tensor)",
):
    LIBRARY.define(schema)  # type: ignore[no-untyped-call]


@torch.library.impl(LIBRARY, "moments", "CompositeExplicitAutograd")
def _moments(
    q: Tensor, k: Tensor, v: Tensor, m: Tensor, offsets: Tensor | None, query_offsets: Tensor | None, eps: float
) -> Four:
    from flashsign.triton.moments import calls as moments

    return moments.forward(q, k, v, m, offsets, query_offsets, eps)


@torch.library.impl(LIBRARY, "moments_backward", "CompositeExplicitAutograd")
def _moments_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, m: Tensor, o: Tensor, inverse: Tensor, sums: Tensor,
    totals: Tensor, offsets: Tensor | None, query_offsets: Tensor | None, eps: float,
) -> Four:  # fmt: skip
    from flashsign.triton.moments import calls as moments

    return moments.backward(grad, q, k, v, m, o, inverse, sums, totals, offsets, query_offsets, eps)


@torch.library.register_fake("flashsign::moments", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _(q: Tensor, k: Tensor, v: Tensor, m: Tensor, offsets: Tensor | None, *_: object) -> Four:
    squares = (q.shape[0] if offsets is None else offsets.shape[0] - 1) * k.shape[1]
    width = padded_width(q.shape[-1])
    sums = q.new_empty(squares, 2, width, width, dtype=torch.float32)
    totals = q.new_empty(squares, 4, width**2 // moment_block(width), dtype=torch.float32)
    return torch.empty_like(q), q.new_empty(q.shape[:3], dtype=torch.float32), sums, totals


@torch.library.register_fake("flashsign::moments_backward", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _(_: Tensor, q: Tensor, k: Tensor, v: Tensor, m: Tensor, *__: object) -> Four:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), m.new_empty(k.shape[:3])


def moments(
    q: Tensor, k: Tensor, v: Tensor, m: Tensor, offsets: Tensor | None, query_offsets: Tensor | None, eps: float
) -> Tensor:
    """Attention by the moments' kernels, -> like q; differentiable in q, k, v and m, twice by way of torch_stream."""
    if no_graph(q, k, v, m):
        return _moments(q, k, v, m, offsets, query_offsets, eps)[0]
    output: Tensor = _Moments.apply(q, k, v, m, offsets, query_offsets, eps)  # type: ignore[no-untyped-call]
    return output


class _Moments(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, m: Tensor,
        offsets: Tensor | None, query_offsets: Tensor | None, eps: float,
    ) -> Tensor:  # fmt: skip
        forward = torch.ops.flashsign.moments if torch.compiler.is_compiling() else _moments
        o, inverse, sums, totals = forward(q, k, v, m, offsets, query_offsets, eps)
        ctx.save_for_backward(q, k, v, m, o, inverse, sums, totals, offsets, query_offsets)
        ctx.eps = eps
        return o

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, m, o, inverse, sums, totals, offsets, query_offsets = ctx.saved_tensors
        if not torch.compiler.is_compiling() and (torch.is_grad_enabled() or transformed() or in_batches(grad)):
            plain = partial(torch_stream, offsets=offsets, query_offsets=query_offsets, eps=ctx.eps)
            return *differentiable_gradients(plain, (q, k, v, m), (grad,)), None, None, None
        backward = torch.ops.flashsign.moments_backward if torch.compiler.is_compiling() else _moments_backward
        dq, dk, dv, dm = backward(grad, q, k, v, m, o, inverse, sums, totals, offsets, query_offsets, ctx.eps)
        if ctx.needs_input_grad[3] and m.shape[1] == 1 < dm.shape[1]:
            dm = dm.sum(1, keepdim=True)
        return dq, dk, dv, dm if ctx.needs_input_grad[3] else None, None, None, None
