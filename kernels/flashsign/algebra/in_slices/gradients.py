"""Gradients slice by slice, by the Local Gradient Theorem: each block is lifted again and gets D(total, item).

If d(a.b)/da is a function D(a.b, a), the gradient of a fold for one of its items is D(total, item), and the parts of an
item that several rows share are added. So a fold stores its inputs and its total.
Source: MonoidReduce, A. Cuba Gyllensten, 2025; kernels/README.md, "Folds".
"""

from __future__ import annotations

import torch
from torch import Tensor

from flashsign.algebra.in_slices.chain import chain_gradients
from flashsign.algebra.in_slices.gradient_sums import GradientSums
from flashsign.algebra.in_slices.plan import Plan
from flashsign.algebra.monoid import Gradients, Total


def gradients_in_slices(
    plan: Plan, a: Total, b: Total, total: Total, grads: Total, wanted: tuple[bool, ...]
) -> Gradients:
    """The gradients for (*A, *B), None where none is wanted."""
    if plan.depth == 1:
        return chain_gradients(plan, a, b, grads, wanted)
    slices, count = plan.slices, plan.count
    # What the outer loop runs over is summed slice by slice, so that 16-bit tensors need no wide copy of it.
    items_outer = sum(x.numel() for x in b) >= sum(x.numel() for x in a) or not plan.rows
    sums = GradientSums((*a, *b), wanted, plan.axis)
    outer, inner = (plan.b_parts(a, b), plan.a_parts(a)) if items_outer else (plan.a_parts(a), plan.b_parts(a, b))
    of_outer = range(count, len(wanted)) if items_outer else range(count)
    for o in outer:
        of_slice: dict[int, Tensor] = {}
        for n in inner:
            i, j = (n, o) if items_outer else (o, n)
            if j.start == j.stop:
                continue
            arguments = plan.slice_of(a, b, i, j)
            found = slices.gradients(
                *arguments,
                plan.of_rows(total, i),
                plan.of_rows(grads, i),
                plan.wanted_of_slice(wanted, arguments[0]),
                j.shares,
            )
            for number, grad in zip(sums.numbers, plan.without_positions(found, arguments[0]), strict=True):
                if grad is None or not wanted[number]:
                    continue
                if number in of_outer:
                    of_slice[number] = of_slice[number].add_(grad) if number in of_slice else _wide_copy(grad)
                else:
                    sums.add(number, plan.place(i if items_outer else j, number), grad)
        for number, grad in of_slice.items():
            sums.put(number, plan.place(o, number), grad)
    return sums.result()


def _wide_copy(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32), copy=True)
