"""The differentiable total of a plan: an autograd function that keeps inputs and the total, nothing
of the slices.

Source: MonoidReduce, A. Cuba Gyllensten, 2025; kernels/README.md, "Folds".
"""

from __future__ import annotations

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
from flashsign.folds.algebra.in_slices.collecting import (
    collected_gradients,
    collecting_forward,
    collects,
)
from flashsign.folds.algebra.in_slices.gradients import gradients_in_slices
from flashsign.folds.algebra.in_slices.plan import Plan
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
        a, b = tensors[: plan.count], tensors[plan.count :]
        slopes: Total = ()
        # Under autocast, products would be rounded that a monoid keeps wide.
        with without_autocast(b[0]):
            if collects(plan, a, b, ctx.needs_input_grad[1:]):
                total, slopes = collecting_forward(plan, a, b, ctx.needs_input_grad[1:])
            else:
                total = total_in_slices(plan, a, b)
        # The total may be an input itself (a sum of one item), and autograd forbids to return a
        # view of an input.
        inputs = {x.untyped_storage()._cdata for x in tensors}
        total = tuple(x.clone() if x.untyped_storage()._cdata in inputs else x for x in total)
        ctx.save_for_backward(*tensors, *total, *slopes)
        ctx.plan, ctx.sizes = plan, (len(tensors), len(total))
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        plan, (inputs, numbers) = ctx.plan, ctx.sizes
        saved = ctx.saved_tensors  # read once: checkpointing allows no more
        tensors = saved[:inputs]
        total = saved[inputs : inputs + numbers]
        slopes = saved[inputs + numbers :]
        if torch.is_grad_enabled() or any(map(in_batches, grads)):
            return None, *differentiable_gradients(partial(plain_total, plan), tensors, grads)
        wanted = ctx.needs_input_grad[1:]
        with without_autocast(grads[0]):
            if slopes:
                return None, *collected_gradients(slopes, grads, tensors, wanted)
            return None, *gradients_in_slices(
                plan, tensors[: plan.count], tensors[plan.count :], total, grads, wanted
            )


def plain_total(plan: Plan, *tensors: Tensor) -> Total:
    """Return the total in plain operations, all slices in memory: differentiable in any mode and
    order.
    """
    a, b = tensors[: plan.count], tensors[plan.count :]
    of_rows = []
    for i in plan.a_parts(a):
        totals = [plan.total_of(a, b, i, j) for j in plan.b_parts(a, b)]
        of_rows.append(reduce(plan.combined, totals))
    if len(of_rows) == 1:
        return of_rows[0]
    return tuple(torch.cat(parts, plan.axis) for parts in zip(*of_rows, strict=True))


def total_in_slices(plan: Plan, a: Total, b: Total) -> Total:
    """Return the total, one slice in memory at a time; not differentiable."""
    totals: Total = ()
    for i, j, starts in plan.blocks(a, b):
        part = plan.total_of(a, b, i, j)
        if len(plan.a_parts(a)) == 1:
            totals = part if starts else plan.combined(totals, part)
            continue
        if not totals:
            totals = tuple(plan.room(x, a) for x in part)
        here = plan.of_rows(totals, i)
        for whole, new in zip(here, part if starts else plan.combined(here, part), strict=True):
            whole.copy_(new)
    return totals
