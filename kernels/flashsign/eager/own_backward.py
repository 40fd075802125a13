"""Functions that are given with their first derivatives: by kernels, or by a formula that keeps
less than autograd would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flashsign.eager.transforms import differentiable_gradients, in_batches, without_autocast

Gradients = tuple[Tensor | None, ...]


@dataclass(frozen=True)
class OwnBackward:
    """A function of some tensors, of which those that a call does not have are None.

    plain(*tensors): the same in torch operations, which compilers see, and of which second and
        batched derivatives are taken.
    forward(*tensors): the output, and a tuple of what the backward needs besides the tensors.
    backward(grad, tensors, kept, wanted): a gradient for each tensor, or None; wanted: for which.
    """

    plain: Callable[..., Tensor]
    forward: Callable[..., tuple[Tensor, Gradients]]
    backward: Callable[[Tensor, Any, Any, tuple[bool, ...]], Gradients]

    def __call__(self, *tensors: Tensor | None) -> Tensor:
        if torch.compiler.is_compiling():
            return self.plain(*tensors)
        output: Tensor = _OwnBackward.apply(self, *tensors)  # type: ignore[no-untyped-call]
        return output


class _OwnBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: OwnBackward, *tensors: Tensor | None) -> Tensor:
        with on_device_of(tensors[0]):
            output, kept = function.forward(*tensors)
        ctx.save_for_backward(*tensors, *kept)
        ctx.function, ctx.count = function, len(tensors)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        saved, function = ctx.saved_tensors, ctx.function
        tensors, kept = saved[: ctx.count], saved[ctx.count :]
        if torch.is_grad_enabled() or in_batches(grad):

            def plain(*given: Tensor) -> Tensor:
                left = iter(given)
                every = (None if x is None else next(left) for x in tensors)
                output: Tensor = function.plain(*every)
                return output

            there = tuple(x for x in tensors if x is not None)
            slopes = iter(differentiable_gradients(plain, there, (grad,)))
            return None, *(None if x is None else next(slopes) for x in tensors)
        with on_device_of(grad):
            return None, *function.backward(grad, tensors, kept, ctx.needs_input_grad[1:])


@contextmanager
def on_device_of(x: Tensor | None) -> Iterator[None]:
    """Make x's device the current one, on which kernels start, and keep autocast from rounding
    products beside them.
    """
    assert x is not None
    with without_autocast(x):
        if x.is_cuda and x.get_device() != torch.cuda.current_device():
            with torch.cuda.device(x.device):
                yield
        else:
            yield
