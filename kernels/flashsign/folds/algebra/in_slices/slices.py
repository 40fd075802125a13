"""The total of one slice, some rows of A with some rows of B, and its part of the gradients, at
each of three depths.

Depth 1: a lift, differentiated by autograd along the chain of totals (chain.py). Depth 2: a lift
and the local gradient D. Depth 3: proj_fold, a product of matrices, with its own gradient or with
D.

Letters: n items, N rows of A, C bags (the batch axis, where there is one), S shares of the items,
side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flashsign.folds.algebra.forms import check_gradients
from flashsign.folds.algebra.monoid import Gradients, Monoid, Total, reduce_lifted, with_axes


@dataclass(frozen=True)
class Slices:
    """How a monoid treats a slice. batched: every tensor has a first axis of bags, over which
    functions are mapped.
    """

    monoid: Monoid
    depth: int
    batched: bool

    def total(self, a: Total, b: Total, mask: Tensor | None, shares: int = 1) -> Total:
        """Return the slice's total.

        a: tensors [(C), N, ...], b: [(C), n, ...], mask: see masked; shares: 1, or what divides n
            at depth 3, whose shares are then folded side by side.
        """
        if self.depth == 3 and (b[0].shape[int(self.batched)] or self.monoid.lift is None):
            parts = self._project(a, b, shares)
            return reduce_lifted(self.monoid, parts, int(self.batched)) if shares > 1 else parts
        return reduce_lifted(self.monoid, self.lift(a, b, mask), int(self.batched))

    def gradients(
        self,
        a: Total,
        b: Total,
        mask: Tensor | None,
        total: Total,
        grads: Total,
        wanted: tuple[bool, ...],
        shares: int,
    ) -> Gradients:
        """Return the slice's part of the gradients for (*a, *b), from the total of all items and
        its gradient.
        """
        if self.depth == 3 and self.monoid.proj_fold_bwd is not None:
            return self._projected_gradients(a, b, total, grads, shares)
        leaves = as_leaves((*a, *b), wanted)
        with torch.enable_grad():
            if self.depth == 3:
                parts = self._project(leaves[: len(a)], leaves[len(a) :], shares)
            else:
                parts = self.lift(leaves[: len(a)], leaves[len(a) :], mask)
        detached = tuple(x.detach() for x in parts)
        many = self.depth < 3 or shares > 1
        adjoint = self.monoid.local_gradients(total, detached, grads, int(self.batched), many)
        check_gradients(f"The local_gradient of {self.monoid.name}", adjoint, parts)
        return pull(parts, adjoint, leaves)

    def lift(self, a: Total, b: Total, mask: Tensor | None) -> Total:
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
        return lifted if mask is None else masked(self.monoid, lifted, mask)

    def _project(self, a: Total, b: Total, shares: int) -> Total:
        """Return the slice's total; for shares > 1 those of the shares, [S, (C), N, ...]."""
        project: Callable[..., Total] | None = self.monoid.proj_fold
        assert project is not None
        if shares > 1:
            b = tuple(_shared(x, int(self.batched), shares) for x in b)
            project = torch.vmap(project, in_dims=(None, 0))
        if self.batched:
            project = torch.vmap(project, in_dims=(0 if a else None, 0), out_dims=int(shares > 1))
        return project(a, b)

    def _projected_gradients(
        self, a: Total, b: Total, total: Total, grads: Total, shares: int
    ) -> Gradients:
        # numbers of the tensors that get a gradient: vmap passes tensors only
        given: list[int] = []

        def backward(*arguments: Any) -> Total:
            assert self.monoid.proj_fold_bwd is not None
            of_a, of_b = self.monoid.proj_fold_bwd(*arguments)
            flat = dict(enumerate((*of_a, *of_b)))
            given[:] = [at for at, grad in flat.items() if grad is not None]
            return tuple(grad for grad in flat.values() if grad is not None)

        call: Callable[..., Total] = backward
        at = int(self.batched)
        if shares > 1:
            b = tuple(_shared(x, at, shares) for x in b)
            call = torch.vmap(call, in_dims=(None, 0, None, None))
        if self.batched:
            call = torch.vmap(call, in_dims=(0 if a else None, 0, 0, 0))
        found: list[Tensor | None] = [None] * (len(a) + len(b))
        for grad, number in zip(call(a, b, total, grads), list(given), strict=True):
            if shares > 1:
                grad = grad.sum(at) if number < len(a) else grad.flatten(at, at + 1)
            found[number] = grad
        return tuple(found)


def masked(monoid: Monoid, lifted: Total, mask: Tensor) -> Total:
    """Return lifted [n, (C), N, ...], the identity where mask is False.

    mask [(C), N or 1, n], or [(C), n] without rows.
    """
    keep = mask.movedim(-1, 0)
    unit = monoid.unit(lifted)
    return tuple(
        torch.where(with_axes(keep, part), part, nothing)
        for part, nothing in zip(lifted, unit, strict=True)
    )


def _shared(x: Tensor, axis: int, shares: int) -> Tensor:
    """Return x with its axis of n items as two, shares x items."""
    return x.reshape(*x.shape[:axis], shares, -1, *x.shape[axis + 1 :])


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
