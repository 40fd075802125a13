"""The differentiable total of a plan: an autograd function that keeps inputs and the total, nothing of the slices."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from flashsign.algebra.in_slices.collecting import collected_gradients, collecting_forward, collects
from flashsign.algebra.in_slices.gradients import gradients_in_slices
from flashsign.algebra.in_slices.over_group import ONE_DERIVATIVE, combined_over_group, summed_over_group
from flashsign.algebra.in_slices.plan import Plan
from flashsign.algebra.in_slices.totals import plain_total, total_in_slices
from flashsign.algebra.monoid import Total
from flashsign.eager.transforms import differentiable_gradients, in_batches, transformed, without_autocast


def differentiable_total(plan: Plan, *tensors: Tensor) -> Total:
    """The differentiable total of (*A, *B): tensors [(C), N, ...]."""
    if transformed():
        if plan.group is not None:
            raise NotImplementedError(ONE_DERIVATIVE)
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
            if plan.group is None and collects(plan, a, b, ctx.needs_input_grad[1:]):
                total, slopes = collecting_forward(plan, a, b, ctx.needs_input_grad[1:])
            else:
                total = total_in_slices(plan, a, b)
            if plan.group is not None:
                total = combined_over_group(plan.monoid, total, plan.group)
        # The total may be an input itself (a sum of one item), and autograd forbids to return a view of an input.
        inputs = {x.untyped_storage()._cdata for x in tensors}
        total = tuple(x.clone() if x.untyped_storage()._cdata in inputs else x for x in total)
        ctx.save_for_backward(*tensors, *total, *slopes)
        ctx.plan, ctx.sizes = plan, (len(tensors), len(total))
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        plan, (inputs, numbers) = ctx.plan, ctx.sizes
        saved = ctx.saved_tensors  # read once: checkpointing allows no more
        tensors, total, slopes = saved[:inputs], saved[inputs : inputs + numbers], saved[inputs + numbers :]
        if torch.is_grad_enabled() or any(map(in_batches, grads)):
            if plan.group is not None:
                raise NotImplementedError(ONE_DERIVATIVE)
            return None, *differentiable_gradients(partial(plain_total, plan), tensors, grads)
        wanted = ctx.needs_input_grad[1:]
        with without_autocast(grads[0]):
            if slopes:
                return None, *collected_gradients(slopes, grads, tensors, wanted)
            if plan.group is not None:
                grads = summed_over_group(grads, plan.group)
            return None, *gradients_in_slices(plan, tensors[: plan.count], tensors[plan.count :], total, grads, wanted)
