"""Gradients slice by slice, by the Local Gradient Theorem: each block is lifted again and gets
D(total, item).

If d(a.b)/da is a function D(a.b, a), the gradient of a fold for one of its items is D(total, item),
and the parts of an item that several rows share are added. So a fold stores its inputs and its
total.

Without D: autograd through prefix . slice, from the last slice to the first. The totals before each
slice are computed again by halving, so that only log2(slices) of them exist at a time.
Source: MonoidReduce, A. Cuba Gyllensten, 2025; kernels/README.md, "Folds".
"""

from __future__ import annotations

import torch
from torch import Tensor

from flashsign.folds.algebra.in_slices.plan import Part, Plan
from flashsign.folds.algebra.in_slices.slices import as_leaves, pull
from flashsign.folds.algebra.monoid import Gradients, Total


def gradients_in_slices(
    plan: Plan, a: Total, b: Total, total: Total, grads: Total, wanted: tuple[bool, ...]
) -> Gradients:
    """Return the gradients for (*A, *B), None where none is wanted."""
    if plan.depth == 1:
        return chain_gradients(plan, a, b, grads, wanted)
    # What the outer loop runs over is summed slice by slice, so that 16-bit tensors need no wide
    # copy of it.
    items_outer = sum(x.numel() for x in b) >= sum(x.numel() for x in a) or not plan.rows
    sums = GradientSums((*a, *b), wanted, plan.axis)
    rows, items = plan.a_parts(a), plan.b_parts(b)
    for o in items if items_outer else rows:
        of_slice: dict[int, tuple[Part | None, Tensor]] = {}
        for n in rows if items_outer else items:
            i, j = (n, o) if items_outer else (o, n)
            if j.start == j.stop:
                continue
            gradients = plan.slices.gradients(
                *plan.slice_of(a, b, i, j), plan.of_rows(total, i), plan.of_rows(grads, i), wanted
            )
            for number, grad in enumerate(gradients):
                if grad is None or not wanted[number]:
                    continue
                place = plan.place(i, j, number)
                if (number >= plan.count) != items_outer:
                    sums.add(number, place, grad)
                elif number in of_slice:
                    of_slice[number][1].add_(grad)
                else:
                    of_slice[number] = place, _wide_copy(grad)
        for number, (place, grad) in of_slice.items():
            sums.put(number, place, grad)
    return sums.result()


def _wide_copy(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32), copy=True)


def chain_gradients(
    plan: Plan, a: Total, b: Total, grads: Total, wanted: tuple[bool, ...]
) -> Gradients:
    """Return the gradients for (*A, *B), None where none is wanted, from those of the total."""
    sums = GradientSums((*a, *b), wanted, plan.axis)
    parts = plan.b_parts(b)
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
    """Add the gradients of these slices, whose items follow prefix;
    return the gradient for prefix.
    """
    if len(parts) > 1:
        half = len(parts) // 2
        middle = prefix
        for j in parts[:half]:
            middle = plan.combined(middle, plan.total_of(a, b, i, j))
        grads = _chain(plan, a, b, i, parts[half:], middle, grads, wanted, sums)
        del middle
        return _chain(plan, a, b, i, parts[:half], prefix, grads, wanted, sums)
    (j,) = parts
    rows, items = plan.slice_of(a, b, i, j)
    leaves = as_leaves((*rows, *items), wanted)
    before = as_leaves(prefix, tuple(x.is_floating_point() for x in prefix))
    with torch.enable_grad():
        own = plan.slices.total(leaves[: len(rows)], leaves[len(rows) :])
        whole = plan.combined(before, own)
    gradients = pull(whole, grads, (*leaves, *before))
    for number, grad in enumerate(gradients[: len(leaves)]):
        if grad is not None:
            sums.add(number, plan.place(i, j, number), grad)
    return tuple(
        torch.zeros_like(x) if g is None else g
        for g, x in zip(gradients[len(leaves) :], prefix, strict=True)
    )


class GradientSums:
    """The gradients of all tensors, filled slice by slice; sums of 16-bit numbers are float32 until
    the end.
    """

    def __init__(self, tensors: Total, wanted: tuple[bool, ...], axis: int):
        self.tensors, self.wanted, self.axis = tensors, wanted, axis
        self.found: list[Tensor | None] = [None] * len(tensors)

    def add(self, number: int, part: Part | None, grad: Tensor) -> None:
        """Add a part of the gradient of a tensor; part: its rows, None: all of them."""
        self._view(number, part, wide=True).add_(grad)

    def put(self, number: int, part: Part | None, grad: Tensor) -> None:
        self._view(number, part, wide=False).copy_(grad)

    def _view(self, number: int, part: Part | None, wide: bool) -> Tensor:
        whole = self.found[number]
        if whole is None:
            x = self.tensors[number]
            dtype = torch.promote_types(x.dtype, torch.float32) if wide else x.dtype
            # Plain strides: the tensor may be expanded, and several of its elements one place in
            # memory.
            whole = self.found[number] = torch.zeros(x.shape, dtype=dtype, device=x.device)
        return (
            whole if part is None else whole.narrow(self.axis, part.start, part.stop - part.start)
        )

    def result(self) -> Gradients:
        for number, x in enumerate(self.tensors):
            if self.wanted[number] and self.found[number] is None:
                self._view(number, None, wide=False)
            grad = self.found[number]
            if grad is not None:
                self.found[number] = grad.to(x.dtype)
        return tuple(self.found)
