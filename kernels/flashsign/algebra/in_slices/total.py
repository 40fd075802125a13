"""The differentiable total of a plan: an autograd function that keeps inputs and the total, nothing of the slices.

Over a group, each process with other items, totals travel forward and their gradients backward.
Source: MonoidReduce, A. Cuba Gyllensten, 2025; kernels/README.md, "Folds".
"""

from __future__ import annotations

from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor, distributed

from flashsign.algebra.in_slices.collecting import collected_gradients, collecting_forward, collects
from flashsign.algebra.in_slices.gradients import gradients_in_slices
from flashsign.algebra.in_slices.plan import Plan
from flashsign.algebra.in_slices.slices import as_leaves, pull
from flashsign.algebra.monoid import Total
from flashsign.eager.transforms import differentiable_gradients, in_batches, transformed, without_autocast

ONE_DERIVATIVE = (
    "A fold with group= can be differentiated once, in reverse, because any other derivative would need collectives of "
    "its own: for forward mode, torch.func, batched and second derivatives, fold without a group."
)


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
                ranks = of_all_ranks(total, plan.group)
                total = reduce(plan.combined, ranks)
                if plan.depth == 1:  # without D, the gradient of this rank's total needs those of the others
                    slopes = tuple(part for rank in ranks for part in rank)
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
            if plan.group is not None:
                grads = summed_over_group(grads, plan.group)
                if plan.depth == 1:
                    grads = of_own_total(plan, slopes, grads)
            elif slopes:
                return None, *collected_gradients(slopes, grads, tensors, wanted)
            return None, *gradients_in_slices(plan, tensors[: plan.count], tensors[plan.count :], total, grads, wanted)


def plain_total(plan: Plan, *tensors: Tensor) -> Total:
    """The total in plain operations, all slices in memory: differentiable in any mode and order."""
    a, b = tensors[: plan.count], tensors[plan.count :]
    found = []
    for i in plan.a_parts(a):
        totals = [plan.total_of(a, b, i, j) for j in plan.b_parts(a, b)]
        found.append(reduce(plan.combined, totals))
    if len(found) == 1:
        return found[0]
    return tuple(torch.cat(parts, plan.axis) for parts in zip(*found, strict=True))


def total_in_slices(plan: Plan, a: Total, b: Total) -> Total:
    """The total, one slice in memory at a time; not differentiable."""
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


def of_all_ranks(total: Total, group: distributed.ProcessGroup) -> list[Total]:
    """The totals of all ranks, equal to the last bit on each, in the order of ranks."""
    parts = []
    for part in total:
        part = part.contiguous()
        gathered = [torch.empty_like(part) for _ in range(distributed.get_world_size(group))]
        distributed.all_gather(gathered, part, group=group)
        parts.append(gathered)
    return list(zip(*parts, strict=True))


def of_own_total(plan: Plan, ranks: Total, grads: Total) -> Total:
    """The gradient for this rank's total; ranks: the totals of all ranks, one after the other, grads: for the whole."""
    own = distributed.get_rank(plan.group)
    count = len(grads)
    totals = [ranks[at : at + count] for at in range(0, len(ranks), count)]
    leaves = totals[own] = as_leaves(totals[own], tuple(x.is_floating_point() for x in totals[own]))
    with torch.enable_grad():
        whole = reduce(plan.combined, totals)
    found = pull(whole, grads, leaves)
    return tuple(torch.zeros_like(x) if grad is None else grad for x, grad in zip(leaves, found, strict=True))


def summed_over_group(grads: Total, group: distributed.ProcessGroup) -> Total:
    """The gradient for the total of the sum of all ranks' losses."""
    sums = tuple(grad.contiguous().clone() for grad in grads)
    for part in sums:
        distributed.all_reduce(part, group=group)
    return sums


def items_before(items: int, like: Tensor, group: distributed.ProcessGroup) -> int:
    """How many items the ranks before this one have."""
    own = torch.tensor([items], device=like.device)
    counts = [torch.empty_like(own) for _ in range(distributed.get_world_size(group))]
    distributed.all_gather(counts, own, group=group)
    return int(sum(int(count) for count in counts[: distributed.get_rank(group)]))
