"""The total of one slice, some rows of A with some rows of B, and its part of the gradients, at
each of three depths.

Depth 1: a lift, differentiated by autograd along the chain of totals (gradients.py). Depth 2: a
lift and the local gradient D. Depth 3: proj_fold, a product of matrices, with its own gradient or
with D.

Letters: n items, N rows of A, C bags (the batch axis, where there is one).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flashsign.folds.algebra.monoid import Gradients, Monoid, Total, reduce_lifted


@dataclass(frozen=True)
class Slices:
    """How a monoid treats a slice. batched: every tensor has a first axis of bags, over which
    functions are mapped.
    """

    monoid: Monoid
    depth: int
    batched: bool

    def total(self, a: Total, b: Total) -> Total:
        """Return the slice's total; a: tensors [(C), N, ...], b: [(C), n, ...]."""
        if self.depth == 3 and (b[0].shape[int(self.batched)] or self.monoid.lift is None):
            return self._project(a, b)
        return reduce_lifted(self.monoid, self.lift(a, b), int(self.batched))

    def gradients(
        self, a: Total, b: Total, total: Total, grads: Total, wanted: tuple[bool, ...]
    ) -> Gradients:
        """Return the slice's part of the gradients for (*a, *b), from the total of all items and
        its gradient.
        """
        if self.depth == 3 and self.monoid.proj_fold_bwd is not None:
            return self._projected_gradients(a, b, total, grads)
        leaves = as_leaves((*a, *b), wanted)
        make = self._project if self.depth == 3 else self.lift
        with torch.enable_grad():
            parts = make(leaves[: len(a)], leaves[len(a) :])
        adjoint = self.monoid.local_gradients(
            total,
            tuple(x.detach() for x in parts),
            grads,
            axes=int(self.batched),
            many=self.depth < 3,
        )
        return pull(parts, adjoint, leaves)

    def lift(self, a: Total, b: Total) -> Total:
        """Return lifted items [n, (C), N, ...]."""
        lift: Callable[..., Total] | None = self.monoid.lift
        assert lift is not None
        if self.batched:
            lift = torch.vmap(lift, in_dims=(0, 0 if a else None), out_dims=1)
        lifted = lift(b, a)
        items = b[0].shape[int(self.batched)]
        if any(len(part) != items for part in lifted):
            raise ValueError(
                f"The lift of {self.monoid.name} must return totals of {items} items, in the first "
                "axis."
            )
        return lifted

    def _project(self, a: Total, b: Total) -> Total:
        project: Callable[..., Total] | None = self.monoid.proj_fold
        assert project is not None
        if self.batched:
            project = torch.vmap(project, in_dims=(0 if a else None, 0))
        return project(a, b)

    def _projected_gradients(self, a: Total, b: Total, total: Total, grads: Total) -> Gradients:
        # numbers of the tensors that get a gradient: vmap passes tensors only
        given: list[int] = []

        def backward(*arguments: Any) -> Total:
            assert self.monoid.proj_fold_bwd is not None
            of_a, of_b = self.monoid.proj_fold_bwd(*arguments)
            flat = dict(enumerate((*of_a, *of_b)))
            given[:] = [at for at, grad in flat.items() if grad is not None]
            return tuple(grad for grad in flat.values() if grad is not None)

        call: Callable[..., Total] = backward
        if self.batched:
            call = torch.vmap(call, in_dims=(0 if a else None, 0, 0, 0))
        found: list[Tensor | None] = [None] * (len(a) + len(b))
        for grad, number in zip(call(a, b, total, grads), list(given), strict=True):
            found[number] = grad
        return tuple(found)


def as_leaves(tensors: Total, wanted: tuple[bool, ...]) -> Total:
    """Return the tensors cut from any graph; those that are wanted require a gradient."""
    return tuple(x.detach().requires_grad_(want) for x, want in zip(tensors, wanted, strict=True))


def pull(outputs: Total, grads: Total, inputs: Total) -> Gradients:
    """Return gradients for inputs (None where none is wanted), grads broadcast to the outputs'
    shapes.
    """
    graded = [
        (out, grad.expand_as(out))
        for out, grad in zip(outputs, grads, strict=True)
        if out.requires_grad
    ]
    wanted = [x for x in inputs if x.requires_grad]
    if not graded or not wanted:
        return tuple(torch.zeros_like(x) if x.requires_grad else None for x in inputs)
    gradients = iter(
        torch.autograd.grad(
            [out for out, _ in graded],
            wanted,
            [grad for _, grad in graded],
            allow_unused=True,
            materialize_grads=True,
        )
    )
    return tuple(next(gradients) if x.requires_grad else None for x in inputs)
