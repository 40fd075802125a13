"""The stream's kernels as operators of torch, so that torch.compile sees one node where they run, and their autograd.

One form: q [C', H, N, E], k and v [C', K, M, E], m [C', 1 or K, M] float32; packed bags: C' = 1 and offsets [C + 1].
Importing this module imports no Triton.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from flashsign.eager.dense import dense_attention
from flashsign.eager.packing import pad_attention
from flashsign.eager.transforms import differentiable_gradients, in_batches, transformed

# Defined by schema rather than by decorator: a decorated operator took 100 microseconds a call, this one 10.
LIBRARY = torch.library.Library("flashsign", "DEF")  # type: ignore[no-untyped-call]
for schema in (
    "stream(Tensor q, Tensor k, Tensor v, Tensor m, Tensor? offsets, Tensor? query_offsets, float eps)"
    " -> (Tensor, Tensor)",
    "stream_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor m, Tensor o, Tensor inverse,"
    " Tensor? offsets, Tensor? query_offsets, float eps) -> (Tensor, Tensor, Tensor, Tensor)",
):
    LIBRARY.define(schema)  # type: ignore[no-untyped-call]

Four = tuple[Tensor, Tensor, Tensor, Tensor]


@torch.library.impl(LIBRARY, "stream", "CompositeExplicitAutograd")
def _stream(
    q: Tensor, k: Tensor, v: Tensor, m: Tensor, offsets: Tensor | None, query_offsets: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    from flashsign.triton.streaming import calls as stream

    return stream.forward(q, k, v, m, offsets, query_offsets, eps)


@torch.library.impl(LIBRARY, "stream_backward", "CompositeExplicitAutograd")
def _stream_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, m: Tensor, o: Tensor, inverse: Tensor,
    offsets: Tensor | None, query_offsets: Tensor | None, eps: float,
) -> Four:  # fmt: skip
    from flashsign.triton.streaming import calls as stream

    return stream.backward(grad, q, k, v, m, o, inverse, offsets, query_offsets, eps)


@torch.library.register_fake("flashsign::stream", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _(q: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.register_fake("flashsign::stream_backward", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _(_: Tensor, q: Tensor, k: Tensor, v: Tensor, m: Tensor, *__: object) -> Four:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), m.new_empty(k.shape[:3])


def stream(
    q: Tensor, k: Tensor, v: Tensor, m: Tensor, offsets: Tensor | None, query_offsets: Tensor | None, eps: float
) -> Tensor:
    """Attention by the stream's kernels, -> like q; differentiable in q, k, v and m, twice by way of torch_stream."""
    if no_graph(q, k, v, m):
        return _stream(q, k, v, m, offsets, query_offsets, eps)[0]
    output: Tensor = _Stream.apply(q, k, v, m, offsets, query_offsets, eps)  # type: ignore[no-untyped-call]
    return output


def no_graph(*tensors: Tensor) -> bool:
    """Whether an eager call needs no autograd, whose function takes as long as the rest of the way to a launch."""
    wanted = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    return not wanted and not torch.compiler.is_compiling()


def torch_stream(
    q: Tensor, k: Tensor, v: Tensor, m: Tensor, offsets: Tensor | None, query_offsets: Tensor | None, eps: float
) -> Tensor:
    """The same in torch operations; differentiable in any mode and order."""
    if offsets is None:
        return _dense(q, k, v, m, eps)
    q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))

    def dense(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        return _dense(q, k, v, m if m.ndim == 3 else m[:, None], eps)

    assert query_offsets is not None
    return pad_attention(dense, q, k, v, m[0].mT, offsets, query_offsets).transpose(0, 1)[None]


def _dense(q: Tensor, k: Tensor, v: Tensor, m: Tensor, eps: float) -> Tensor:
    sums = torch.promote_types(q.dtype, torch.float32)
    return dense_attention(q.to(sums), k.to(sums), v.to(sums), m.to(sums), eps, "stream").to(q.dtype)


class _Stream(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, m: Tensor,
        offsets: Tensor | None, query_offsets: Tensor | None, eps: float,
    ) -> Tensor:  # fmt: skip
        # In eager mode without the dispatcher, which took as long as the launches.
        forward = torch.ops.flashsign.stream if torch.compiler.is_compiling() else _stream
        o, inverse = forward(q, k, v, m, offsets, query_offsets, eps)
        ctx.save_for_backward(q, k, v, m, o, inverse, offsets, query_offsets)
        ctx.eps = eps
        return o

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, m, o, inverse, offsets, query_offsets = ctx.saved_tensors
        if not torch.compiler.is_compiling() and (torch.is_grad_enabled() or transformed() or in_batches(grad)):
            plain = partial(torch_stream, offsets=offsets, query_offsets=query_offsets, eps=ctx.eps)
            return *differentiable_gradients(plain, (q, k, v, m), (grad,)), None, None, None
        backward = torch.ops.flashsign.stream_backward if torch.compiler.is_compiling() else _stream_backward
        dq, dk, dv, dm = backward(grad, q, k, v, m, o, inverse, offsets, query_offsets, ctx.eps)
        # Multiplicities are mostly data: the sum over the key heads that share them is a launch of its own.
        if ctx.needs_input_grad[3] and m.shape[1] == 1 < dm.shape[1]:
            dm = dm.sum(1, keepdim=True)
        return dq, dk, dv, dm if ctx.needs_input_grad[3] else None, None, None, None
