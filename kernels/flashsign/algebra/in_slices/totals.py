"""The total of all slices: one slice in memory at a time, or all of them in plain operations.

Source: MonoidReduce, A. Cuba Gyllensten, 2025; kernels/README.md, "Folds".
"""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

from flashsign.algebra.in_slices.plan import Plan
from flashsign.algebra.monoid import Total


def plain_total(plan: Plan, *tensors: Tensor) -> Total:
    """The total in plain operations, all slices in memory: differentiable in any mode and order."""
    a, b = tensors[: plan.count], tensors[plan.count :]
    found = []
    for i in plan.a_parts(a):
        totals = [plan.total_of(a, b, i, j) for j in plan.b_parts(a, b)]
        found.append(reduce(plan.monoid.combine, totals))
    if len(found) == 1:
        return found[0]
    return tuple(torch.cat(parts, plan.axis) for parts in zip(*found, strict=True))


def total_in_slices(plan: Plan, a: Total, b: Total) -> Total:
    """The total, one slice in memory at a time; not differentiable."""
    totals: Total = ()
    for i, j, starts in plan.blocks(a, b):
        part = plan.total_of(a, b, i, j)
        if len(plan.a_parts(a)) == 1:
            totals = part if starts else plan.monoid.combine(totals, part)
            continue
        if not totals:
            totals = tuple(plan.room(x, a) for x in part)
        here = plan.of_rows(totals, i)
        for whole, new in zip(here, part if starts else plan.monoid.combine(here, part), strict=True):
            whole.copy_(new)
    return totals
