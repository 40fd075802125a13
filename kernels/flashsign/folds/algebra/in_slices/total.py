"""The differentiable total of a plan: an autograd function that keeps inputs and the total, nothing
of the slices.

Source: MonoidReduce, A. Cuba Gyllensten, 2025; kernels/README.md, "Folds".
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor

from flashsign.eager.transforms import (
    differentiable_gradients,
    in_batches,
    transformed,
    without_autocast,
)
from flashsign.folds.algebra.in_slices.gradients import gradients_in_slices
from flashsign.folds.algebra.in_slices.plan import Part, Plan
from flashsign.folds.algebra.monoid import Total


def differentiable_total(plan: Plan, *tensors: Tensor) -> Total:
    """Return the differentiable total of (*A, *B): tensors [(C), N, ...]."""
    if transformed():
        return plain_total(plan, *tensors)
    total: Total = _Reduce.apply(plan, *tensors)  # type: ignore[no-untyped-call]
    return total


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: Plan, *tensors: Tensor) -> Total:
        # Under autocast, products would be rounded that a monoid keeps wide.
        with without_autocast(tensors[-1]):
            total = total_in_slices(plan, tensors[: plan.count], tensors[plan.count :])
        # The total may be an input itself (a sum of one item), and autograd forbids to return a
        # view of an input.
        inputs = {x.untyped_storage()._cdata for x in tensors}
        total = tuple(x.clone() if x.untyped_storage()._cdata in inputs else x for x in total)
        ctx.save_for_backward(*tensors, *total)
        ctx.plan, ctx.inputs = plan, len(tensors)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        plan: Plan = ctx.plan
        saved = ctx.saved_tensors  # read once: checkpointing allows no more
        tensors, total = saved[: ctx.inputs], saved[ctx.inputs :]
        if torch.is_grad_enabled() or any(map(in_batches, grads)):
            return None, *differentiable_gradients(partial(plain_total, plan), tensors, grads)
        a, b = tensors[: plan.count], tensors[plan.count :]
        with without_autocast(grads[0]):
            return None, *gradients_in_slices(plan, a, b, total, grads, ctx.needs_input_grad[1:])


def plain_total(plan: Plan, *tensors: Tensor) -> Total:
    """Return the total in plain operations, all slices in memory: differentiable in any mode and
    order.
    """
    a, b = tensors[: plan.count], tensors[plan.count :]
    parts = [total for _, total in _by_rows(plan, a, b)]
    return (
        tuple(torch.cat(x, plan.axis) for x in zip(*parts, strict=True)) if parts[1:] else parts[0]
    )


def total_in_slices(plan: Plan, a: Total, b: Total) -> Total:
    """Return the total, one slice in memory at a time; not differentiable."""
    whole: Total = ()
    for i, part in _by_rows(plan, a, b):
        if len(plan.a_parts(a)) == 1:
            return part
        if not whole:
            whole = tuple(_for_all_rows(plan, x, a[0]) for x in part)
        for x, new in zip(plan.of_rows(whole, i), part, strict=True):
            x.copy_(new)
    return whole


def _by_rows(plan: Plan, a: Total, b: Total) -> Iterator[tuple[Part, Total]]:
    """Yield each slice of A's rows, and its total over all items."""
    for i in plan.a_parts(a):
        yield i, reduce(plan.combined, (plan.total_of(a, b, i, j) for j in plan.b_parts(b)))


def _for_all_rows(plan: Plan, part: Tensor, rows: Tensor) -> Tensor:
    shape = list(part.shape)
    shape[plan.axis] = rows.shape[plan.axis]
    return part.new_empty(shape)
