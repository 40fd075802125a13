"""Folds over items: all at once in chunks, one after the other by definition, or added as they
come.

Letters: n items, N rows of shared tensors. Source: MonoidReduce, A. Cuba Gyllensten, 2025;
kernels/README.md, "Folds".
"""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

from flashsign.errors import ShapeMismatch
from flashsign.folds.algebra.checks import check_items
from flashsign.folds.algebra.in_slices.plan import Plan
from flashsign.folds.algebra.in_slices.total import differentiable_total
from flashsign.folds.algebra.monoid import Monoid, Total, refuse_no_items


def fold(
    monoid: Monoid,
    items: Total,
    shared: Total = (),
    *,
    chunk: int = 256,
    depth: int | None = None,
) -> Total:
    """Return the total of all items.

    Tensors as monoid.lift returns them, without [n]. monoid.finish(total, shared) ends it.

    items: tensors [n, ...]; shared: tensors of any shape. Memory holds a `chunk` of items at a
        time, forward and backward. The items keep their order, so that combine need not commute.
        depth: see Monoid; by default the deepest that the monoid has.
    Differentiable: once in slices; second derivatives, forward mode and torch.func in plain
        operations, with every slice in memory.
    Raises ShapeMismatch for items that are no tensors, are missing or differ in length, ValueError
    for a chunk below 1, a depth that the monoid does not have, and where a function of one's own
    monoid returns no tensors. Source: MonoidReduce, A. Cuba Gyllensten, 2025.

    Example:
        >>> import torch
        >>> from flashsign import SOFTMAX, fold
        >>> q, k, v = torch.randn(20, 8), torch.randn(1000, 8), torch.randn(1000, 8)
        >>> total = fold(SOFTMAX, (k, v, torch.ones(1000)), (q,), chunk=100)
        >>> torch.allclose(SOFTMAX.finish(total, (q,)), torch.softmax(q @ k.T, -1) @ v, atol=1e-5)
        True
    """
    return _fold(monoid, items, shared, chunk, depth)


def fold_literal(monoid: Monoid, items: Total, shared: Total = ()) -> Total:
    """Return the definition of fold, for tests: one item after the other, differentiated by
    autograd.

    items: tensors [n, ...]; shared: tensors of any shape; returns the total's tensors, as fold
        does.

    Example:
        >>> import torch
        >>> from flashsign import SUM, fold, fold_literal
        >>> x = torch.arange(6.0).reshape(3, 2)
        >>> fold_literal(SUM, (x,)), fold(SUM, (x,))
        ((tensor([6., 9.]),), (tensor([6., 9.]),))
    """
    check_items(monoid.name, items, shared, 0)
    if monoid.lift is None:
        raise ValueError(f"{monoid.name} has no lift, so its fold has no definition item by item.")
    shared, items = numbered(monoid, shared, items)
    lifted = monoid.lift(items, shared)
    one_by_one = zip(*(part.unbind(0) for part in lifted), strict=True)
    return reduce(
        monoid.combine,
        one_by_one,
        monoid.unit(tuple(part.new_empty(part.shape[1:]) for part in lifted)),
    )


class Fold:
    """A total that grows: items are added as they come, in any batches, and two such totals can be
    joined.

    shared: what every item meets; chunk: most items in memory at a time, as in fold. Differentiable
        like fold, in every item that was added.

    Example: attention to keys that arrive in two batches.
        >>> import torch
        >>> from flashsign import SOFTMAX, Fold
        >>> q, k, v = torch.randn(20, 8), torch.randn(100, 8), torch.randn(100, 8)
        >>> total = Fold(SOFTMAX, (q,))
        >>> for some in (slice(0, 30), slice(30, 100)):
        ...     total = total.add((k[some], v[some], torch.ones(100)[some]))
        >>> torch.allclose(total.result(), torch.softmax(q @ k.T, -1) @ v, atol=1e-5)
        True
    """

    def __init__(self, monoid: Monoid, shared: Total = (), *, chunk: int = 256):
        self.monoid, self.shared, self.chunk = monoid, shared, chunk
        self.total: Total | None = None
        self.items = 0

    def add(self, items: Total) -> Fold:
        """Add items, tensors [n, ...]; return self.

        Raises what fold raises, and ShapeMismatch for items that are shaped otherwise than those
        before.
        """
        part = _fold(self.monoid, items, self.shared, self.chunk, None, self.items)
        _refuse_others(self.total, part)
        self.total = part if self.total is None else self.monoid.combine(self.total, part)
        self.items += len(items[0])
        return self

    def plus(self, other: Fold) -> Fold:
        """Return the total of the items of both, this one's first.

        other was made with the same monoid and shared tensors.

        Raises ValueError for another monoid, and for one that numbers its items, whose positions
        both count from 0, and ShapeMismatch for totals of other shapes.
        """
        if other.monoid is not self.monoid:
            raise ValueError(
                f"Only folds of one monoid can be joined; found {self.monoid.name}, "
                f"{other.monoid.name}."
            )
        if self.monoid.numbered:
            raise ValueError(f"{self.monoid.name} numbers its items: add all of them to one Fold.")
        _refuse_others(self.total, other.total)
        joined = Fold(self.monoid, self.shared, chunk=self.chunk)
        parts = [each.total for each in (self, other) if each.total is not None]
        joined.total = reduce(self.monoid.combine, parts) if parts else None
        joined.items = self.items + other.items
        return joined

    def result(self) -> Tensor:
        """Return the output of the layer so far.

        Raises ValueError before the first add, when its shape is not known.
        """
        if self.total is None:
            raise ValueError(
                f"Nothing was added to this fold of {self.monoid.name}: add items first."
            )
        refuse_no_items(self.monoid, self.items)
        return self.monoid.finish(self.total, self.shared)


def _fold(
    monoid: Monoid, items: Total, shared: Total, chunk: int, depth: int | None, before: int = 0
) -> Total:
    check_items(monoid.name, items, shared, 0)
    shared, items = numbered(monoid, shared, items, first=before)
    plan = Plan(monoid, chosen_depth(monoid, depth), len(shared), 1, chunk, rows=False)
    return differentiable_total(plan, *shared, *items)


def _refuse_others(total: Total | None, other: Total | None) -> None:
    if (
        total is not None
        and other is not None
        and [x.shape for x in total] != [x.shape for x in other]
    ):
        raise ShapeMismatch("All items of a fold must have one shape.")


def chosen_depth(monoid: Monoid, depth: int | None) -> int:
    """Return the depth that was asked for, else the deepest.

    Raises ValueError where the monoid does not have it.
    """
    if depth is None:
        return monoid.depths[-1]
    if depth not in monoid.depths:
        raise ValueError(f"{monoid.name} has no depth {depth}; found depths {monoid.depths}.")
    return depth


def numbered(
    monoid: Monoid, a: Total, b: Total, *, axis: int = 0, first: int = 0
) -> tuple[Total, Total]:
    """Return A and B, for a monoid that is numbered with one tensor more: the positions of their
    rows, int64 [(C), rows].

    axis: of rows; first: the position of B's first row.
    """
    if not monoid.numbered:
        return a, b

    def with_positions(tensors: Total, first: int) -> Total:
        shape = tensors[0].shape[: axis + 1]
        positions = torch.arange(first, first + shape[-1], device=tensors[0].device)
        return *tensors, positions.expand(shape)

    return with_positions(a, 0) if a else a, with_positions(b, first)
