"""Packed attention in torch, and the same as one operator for calls whose offsets cannot be read
yet.

    flashsign::packed             q, k, v, m -> o
    flashsign::packed_backward    do, q, k, v, m -> dq, dk, dv, dm

In torch, bags of similar size are computed together, so that sizes of tensors follow from the
values of offsets. A program of torch.export, and tensors without values (fake or meta), have one
node for all of it: its shapes are known, and offsets are read when the program runs.

Letters: T queries and S keys of all bags, C bags, H query heads, K key heads, E head width, V value
width.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from flashsign.attention.validation import has_values
from flashsign.eager.packing import packed_attention
from flashsign.eager.transforms import (
    differentiable_gradients,
    in_batches,
    transformed,
    without_autocast,
)
from flashsign.operators.in_torch import chosen_attention
from flashsign.operators.kernel_operators import LIBRARY

Method = Literal["auto", "stream", "moments"]


def attend_packed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    multiplicity: Tensor,
    offsets: Tensor,
    query_offsets: Tensor,
    eps: float,
    method: Method,
) -> Tensor:
    """Attend over packed bags by torch.

    q [T, H, E], k [S, K, E], v [S, K, V], multiplicity [S] or [S, K], one dtype, float32 or
    float64, offsets and query_offsets [C + 1] -> [T, H, V].

    Raises ShapeMismatch unless the offsets cut the rows exactly, where there are values; a program,
    when it runs.
    """
    call = q, k, v, multiplicity, offsets, query_offsets, eps, method
    if has_values(offsets) or (torch.compiler.is_compiling() and not torch.compiler.is_exporting()):
        return _attention(*call)
    output: Tensor = torch.ops.flashsign.packed(*call)
    return output


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    multiplicity: Tensor,
    offsets: Tensor,
    query_offsets: Tensor,
    eps: float,
    method: Method,
) -> Tensor:
    """Compute bags of similar size together, each such group by its own method."""
    dense = partial(chosen_attention, eps=eps, asked=method)
    return packed_attention(dense, q, k, v, multiplicity, offsets, query_offsets)


def _forward(*call: Any) -> Tensor:
    with without_autocast(call[0]):
        return _attention(*call).contiguous()


def _backward(grad: Tensor, *call: Any) -> tuple[Tensor, ...]:
    """Return gradients of the first four tensors of the call; the output is computed again."""
    with torch.enable_grad(), without_autocast(grad):
        leaves = [x.detach().requires_grad_() for x in call[:4]]
        output = _attention(*leaves, *call[4:])
        gradients = torch.autograd.grad(
            output, leaves, grad, allow_unused=True, materialize_grads=True
        )
    return tuple(each.contiguous() for each in gradients)


def _empty_output(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Tensor:
    return q.new_empty(*q.shape[:2], v.shape[-1])


def _empty_gradients(_: Tensor, *call: Any) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in call[:4])


class _Packed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *call: Any) -> Tensor:
        *tensors, ctx.eps, ctx.method = call
        ctx.save_for_backward(*tensors)
        with torch._C._AutoDispatchBelowAutograd():
            output: Tensor = torch.ops.flashsign.packed(*call)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, offsets, query_offsets = ctx.saved_tensors
        rest = offsets, query_offsets, ctx.eps, ctx.method
        if has_values(offsets) and (torch.is_grad_enabled() or transformed() or in_batches(grad)):

            def plain(*tensors: Tensor) -> Tensor:
                return _attention(*tensors, *rest)  # type: ignore[call-arg,arg-type]

            gradients = differentiable_gradients(plain, tuple(tensors), (grad,))
        else:
            gradients = torch.ops.flashsign.packed_backward(grad, *tensors, *rest)
        return *gradients, None, None, None, None


def _differentiable(*call: Any) -> Tensor:
    """Run a call of a program.

    One that runs has values, and every derivative that eager mode has; torch's own tangent would be
    0.
    """
    if transformed() and has_values(call[4]):
        return _attention(*call)
    output: Tensor = _Packed.apply(*call)  # type: ignore[no-untyped-call]
    return output


def _register() -> None:
    call = (
        "Tensor q, Tensor k, Tensor v, Tensor m, Tensor offsets, Tensor query_offsets, float eps, "
        "str method"
    )
    LIBRARY.define(f"packed({call}) -> Tensor")
    LIBRARY.define(f"packed_backward(Tensor grad, {call}) -> (Tensor, Tensor, Tensor, Tensor)")
    for name, run, empty in (
        ("packed", _forward, _empty_output),
        ("packed_backward", _backward, _empty_gradients),
    ):
        torch.library.impl(LIBRARY, name, "CompositeExplicitAutograd")(run)
        torch.library.register_fake(f"flashsign::{name}", empty, lib=LIBRARY)
    torch.library.impl(LIBRARY, "packed", "Autograd")(_differentiable)


_register()
