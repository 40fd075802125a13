"""Gradients of a fold without D: autograd through prefix . slice, from the last slice to the first.

The totals before each slice are needed; they are computed again by halving, so that only log2(slices) of them exist at
a time. Source: MonoidReduce, A. Cuba Gyllensten, 2025; kernels/README.md, "Folds".
"""

from __future__ import annotations

import torch

from flashsign.algebra.in_slices.gradient_sums import GradientSums
from flashsign.algebra.in_slices.plan import Part, Plan
from flashsign.algebra.in_slices.slices import as_leaves, pull
from flashsign.algebra.monoid import Gradients, Total


def chain_gradients(plan: Plan, a: Total, b: Total, grads: Total, wanted: tuple[bool, ...]) -> Gradients:
    """The gradients for (*A, *B), None where none is wanted, from those of the total."""
    sums = GradientSums((*a, *b), wanted, plan.axis)
    parts = plan.b_parts(a, b)
    for i in plan.a_parts(a):
        nothing = plan.total_of(a, b, i, Part(0, 0))
        _chain(plan, a, b, i, parts, nothing, plan.of_rows(grads, i), wanted, sums)
    return sums.result()


def _chain(
    plan: Plan,
    a: Total,
    b: Total,
    i: Part,
    parts: list[Part],
    prefix: Total,
    grads: Total,
    wanted: tuple[bool, ...],
    sums: GradientSums,
) -> Total:
    """Adds the gradients of these slices, whose items follow prefix; returns the gradient for prefix."""
    combine = plan.monoid.combine
    if len(parts) > 1:
        half = len(parts) // 2
        middle = prefix
        for j in parts[:half]:
            middle = combine(middle, plan.total_of(a, b, i, j))
        grads = _chain(plan, a, b, i, parts[half:], middle, grads, wanted, sums)
        del middle
        return _chain(plan, a, b, i, parts[:half], prefix, grads, wanted, sums)
    (j,) = parts
    rows, items, mask = plan.slice_of(a, b, i, j)
    leaves = as_leaves((*rows, *items), plan.wanted_of_slice(wanted, rows))
    before = as_leaves(prefix, tuple(x.is_floating_point() for x in prefix))
    with torch.enable_grad():
        own = plan.slices.total(leaves[: len(rows)], leaves[len(rows) :], mask)
        whole = combine(before, own)
    found = pull(whole, grads, (*leaves, *before))
    for number, grad in zip(sums.numbers, plan.without_positions(found[: len(leaves)], rows), strict=True):
        if grad is not None and wanted[number]:
            sums.add(number, plan.place(i if number < plan.count else j, number), grad)
    return tuple(torch.zeros_like(x) if g is None else g for g, x in zip(found[len(leaves) :], prefix, strict=True))
