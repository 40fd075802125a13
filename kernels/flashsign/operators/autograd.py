"""The derivatives of the operators: one autograd function for the stream and for moments.

First derivatives run the backward kernels. Second derivatives, batched ones and transforms differentiate the same
attention in torch operations, which support every mode of differentiation.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from flashsign import dispatch
from flashsign.eager.transforms import differentiable_gradients, in_batches, transformed
from flashsign.operators import in_torch
from flashsign.operators.registration import OPERATORS


def attend(
    name: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    m: Tensor,
    offsets: Tensor | None,
    query_offsets: Tensor | None,
    eps: float,
) -> Tensor:
    """Attention by the kernels of an operator, "stream" or "moments", in operators.layout.

    q [C', H, N, E], k and v [C', K, M, E], m [C', 1 or K, M] float32 -> like q. Differentiable in q, k, v and m; second
    derivatives are those of in_torch.attention.
    """
    # torch's dispatcher and autograd each take as long as everything else before a launch. So eager mode calls the
    # functions behind the operators, and without autograd where no gradient is wanted.
    wanted = q.requires_grad or k.requires_grad or v.requires_grad or m.requires_grad
    if not (wanted and torch.is_grad_enabled()) and not torch.compiler.is_compiling():
        return OPERATORS[name].forward(q, k, v, m, offsets, query_offsets, eps)[0]
    output: Tensor = _Attention.apply(name, q, k, v, m, offsets, query_offsets, eps)  # type: ignore[no-untyped-call]
    return output


stream, moments = partial(attend, "stream"), partial(attend, "moments")


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        name: str,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        m: Tensor,
        offsets: Tensor | None,
        query_offsets: Tensor | None,
        eps: float,
    ) -> Tensor:
        if torch.compiler.is_compiling():
            found = getattr(torch.ops.flashsign, name)(q, k, v, m, offsets, query_offsets, eps)
            ctx.only = None
        else:
            found = OPERATORS[name].forward(q, k, v, m, offsets, query_offsets, eps)
            ctx.only = dispatch.requested_kernel()  # kept, as a backward on a GPU runs in a thread of its own
        ctx.save_for_backward(q, k, v, m, offsets, query_offsets, *found)
        ctx.name, ctx.eps = name, eps
        o: Tensor = found[0]
        return o

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, m, offsets, query_offsets, *saved = ctx.saved_tensors
        tracing = torch.compiler.is_compiling()
        if not tracing and (torch.is_grad_enabled() or transformed() or in_batches(grad)):
            plain = partial(in_torch.attention, "stream", offsets=offsets, query_offsets=query_offsets, eps=ctx.eps)
            return None, *differentiable_gradients(plain, (q, k, v, m), (grad,)), None, None, None
        arguments = (grad, q, k, v, m, *saved, offsets, query_offsets, ctx.eps)
        if tracing:
            dq, dk, dv, dm = getattr(torch.ops.flashsign, f"{ctx.name}_backward")(*arguments)
        elif ctx.only is None:
            dq, dk, dv, dm = OPERATORS[ctx.name].backward(*arguments)
        else:
            with dispatch.only(ctx.only):
                dq, dk, dv, dm = OPERATORS[ctx.name].backward(*arguments)
        if not ctx.needs_input_grad[4]:
            return None, dq, dk, dv, None, None, None, None
        # Mostly multiplicities are data and get here None: the sum over key heads that share them is one more launch.
        shared = m.shape[1] == 1 < dm.shape[1]
        return None, dq, dk, dv, dm.sum(1, keepdim=True) if shared else dm, None, None, None
