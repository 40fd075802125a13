"""The kernels as operators of torch: what torch.compile, autograd and fake tensors know about them.

One form: q [C', H, N, E], k and v [C', K, M, E], m [C', 1 or K, M] float32; packed bags: C' = 1 and offsets [C + 1].
Importing this module imports no Triton.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from flashsign.dense import dense_attention
from flashsign.packing import pad_attention
from flashsign.transforms import differentiable_gradients, transformed


def torch_stream(
    q: Tensor, k: Tensor, v: Tensor, m: Tensor, offsets: Tensor | None, query_offsets: Tensor | None, eps: float
) -> Tensor:
    """What the operators compute, in torch operations; differentiable in any mode and order. -> like q."""
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


@torch.library.custom_op("flashsign::stream", mutates_args=())
def stream(
    q: Tensor, k: Tensor, v: Tensor, m: Tensor, offsets: Tensor | None, query_offsets: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """Outputs like q, and what the backward needs of every row, [C', H, N] float32."""
    from flashsign.triton import stream as kernels

    return kernels.forward(q, k, v, m, offsets, query_offsets, eps)


@stream.register_fake
def _(q, k, v, m, offsets, query_offsets, eps):
    return torch.empty_like(q), _per_row(q)


@torch.library.custom_op("flashsign::stream_backward", mutates_args=())
def stream_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, m: Tensor, o: Tensor, inverse: Tensor,
    offsets: Tensor | None, query_offsets: Tensor | None, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients like q, k, v and m."""
    from flashsign.triton import stream as kernels

    dq, dk, dv, dm = kernels.backward(grad, q, k, v, m, o, inverse, offsets, query_offsets, eps)
    return dq, dk, dv, (dm.sum(1, keepdim=True) if m.shape[1] == 1 < dm.shape[1] else dm)


@stream_backward.register_fake
def _(grad, q, k, v, m, o, inverse, offsets, query_offsets, eps):
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), m.new_empty(m.shape)


def _per_row(q: Tensor) -> Tensor:
    return q.new_empty(q.shape[:3], dtype=torch.float32)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, m, offsets, query_offsets, ctx.eps = inputs
    ctx.save_for_backward(q, k, v, m, *output, offsets, query_offsets)


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, m, o, inverse, offsets, query_offsets = ctx.saved_tensors
    if not torch.compiler.is_compiling() and (torch.is_grad_enabled() or transformed()):
        plain = partial(torch_stream, offsets=offsets, query_offsets=query_offsets, eps=ctx.eps)
        return *differentiable_gradients(plain, (q, k, v, m), (grad,)), None, None, None
    found = stream_backward(grad, q, k, v, m, o, inverse, offsets, query_offsets, ctx.eps)
    return *found, None, None, None


stream.register_autograd(_backward, setup_context=_save)
