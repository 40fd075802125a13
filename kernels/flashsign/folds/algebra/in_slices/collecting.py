"""A's gradient, collected during the forward: where a row's total is a few numbers and B is
constant.

Beside each number of the total, its derivative for the row is folded. Derivatives of parts join as
D says,

    d(a.b)/dA = D(a.b, a) da/dA + D(a.b, b) db/dA

so the backward needs no pass over the items. Of log-sum-exp, the derivative is the mean of the
items under their weights: attention. Source: MonoidReduce, A. Cuba Gyllensten, 2025.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from flashsign.folds.algebra.in_slices.plan import Plan
from flashsign.folds.algebra.in_slices.slices import as_leaves
from flashsign.folds.algebra.monoid import Gradients, Total, with_axes


class WithSlopes(NamedTuple):
    """A total and slopes[k][t], the derivative of its number k for the wanted tensor t of A, shaped
    like that.
    """

    total: Total
    slopes: list[Total]


def collects(plan: Plan, a: Total, b: Total, wanted: tuple[bool, ...]) -> bool:
    """Return whether it is worth it: D is known, B wants no gradient, and the total of a row is a
    few numbers.
    """
    of_a, of_b = any(wanted[: plan.count]), any(wanted[plan.count :])
    if plan.monoid.local_gradient is None or not plan.rows or of_b or not of_a:
        return False
    if 0 in (a[0].shape[plan.axis], b[0].shape[plan.axis]):
        return False
    one = plan.a_parts(a)[0]._replace(stop=1)
    return all(part.ndim == plan.axis + 1 for part in plan.total_of(a, b, one, one))


def collecting_forward(
    plan: Plan, a: Total, b: Total, wanted: tuple[bool, ...]
) -> tuple[Total, Total]:
    """Return the total of every row, and the slopes as one tuple: number by number, for all wanted
    tensors.
    """
    of_rows = []
    for i in plan.a_parts(a):
        joined: WithSlopes | None = None
        for j in plan.b_parts(a, b):
            rows, items, mask = plan.slice_of(a, b, i, j)
            leaves = as_leaves(rows, (*wanted[: plan.count], *(False,) * (len(rows) - plan.count)))
            with torch.enable_grad():
                total = plan.slices.total(leaves, items, mask, j.shares)
            part = WithSlopes(
                tuple(x.detach() for x in total), [_slopes(number, leaves) for number in total]
            )
            joined = part if joined is None else join(plan, joined, part)
        assert joined is not None
        of_rows.append((*joined.total, *(x for slope in joined.slopes for x in slope)))
    numbers = len(joined.total) if joined else 0
    whole = tuple(torch.cat(parts, plan.axis) for parts in zip(*of_rows, strict=True))
    return whole[:numbers], whole[numbers:]


def join(plan: Plan, a: WithSlopes, b: WithSlopes) -> WithSlopes:
    """Return the total of both with its slopes."""
    whole = plan.combined(a.total, b.total)
    slopes = []
    for k in range(len(whole)):
        one = tuple(torch.full_like(x, float(k == number)) for number, x in enumerate(whole))
        terms = [
            tuple(with_axes(factor, x) * x for x in slope)
            for part in (a, b)
            for factor, slope in zip(
                plan.local_gradients(whole, part.total, one), part.slopes, strict=True
            )
        ]
        slopes.append(tuple(reduce(torch.add, of_tensor) for of_tensor in zip(*terms, strict=True)))
    return WithSlopes(whole, slopes)


def collected_gradients(
    slopes: Total, grads: Total, tensors: Total, wanted: tuple[bool, ...]
) -> Gradients:
    """Return the gradients for all tensors.

    They come from the slopes of collecting_forward and the gradients of the total's numbers.
    """
    count = sum(wanted)
    gradients = (
        reduce(
            torch.add,
            [with_axes(grad, x) * x for grad, x in zip(grads, slopes[t::count], strict=True)],
        )
        for t in range(count)
    )
    return tuple(
        next(gradients).to(x.dtype) if want else None
        for x, want in zip(tensors, wanted, strict=True)
    )


def _slopes(number: Tensor, leaves: Total) -> Total:
    """Return the derivatives of one number of each row for that row of every leaf: rows do not
    depend on each other.
    """
    wanted = [x for x in leaves if x.requires_grad]
    if not number.requires_grad:
        return tuple(torch.zeros_like(x) for x in wanted)
    ones = torch.ones_like(number)
    return torch.autograd.grad(
        number, wanted, ones, retain_graph=True, allow_unused=True, materialize_grads=True
    )
