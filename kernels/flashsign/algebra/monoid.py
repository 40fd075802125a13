"""A commutative monoid as a small table: what a streamed layer is made of.

Lift each item, combine in any order, finish once. Source: MonoidReduce, A. Cuba Gyllensten, 2025;
kernels/README.md, "Folds".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

Total = tuple[Tensor, ...]
"""What a fold carries: the tensors of one row of the table."""


@dataclass(frozen=True)
class Monoid:
    """One row of the table in kernels/README.md.

    identity(like): the total of no items, shaped like the given total.
    lift(items, shared): the totals of single items. items: tensors [n, ...], one item a row; shared: tensors that
        every item meets (queries). Each tensor of the result is [n, ...].
    combine(a, b): the total of a's and b's items; broadcasts, and meets identities without making NaN.
    finish(total, shared): the layer's output.
    local_gradient(combined, item, grad): D(combined, item)(grad), the gradient for `item` (or a partial total), where
        `combined` contains it and grad is the gradient for `combined`. None: folds differentiate combine instead.
    commutative: False refuses folds that reorder items.

    Example:
        >>> import torch
        >>> from flashsign import Monoid, fold
        >>> def largest(a, b):
        ...     return (torch.maximum(a[0], b[0]),)
        >>> def minus_infinity(like):
        ...     return (torch.full_like(like[0], -torch.inf),)
        >>> maximum = Monoid("maximum", minus_infinity, lambda items, shared: items, largest, lambda total, _: total[0])
        >>> total = fold(maximum, (torch.tensor([[1.0, 5.0], [4.0, 2.0]]),))
        >>> maximum.finish(total, ())
        tensor([4., 5.])
    """

    name: str
    identity: Callable[[Total], Total]
    lift: Callable[[Total, Total], Total]
    combine: Callable[[Total, Total], Total]
    finish: Callable[[Total, Total], Tensor]
    local_gradient: Callable[[Total, Total, Total], Total] | None = None
    commutative: bool = True


def constants(*values: float) -> Callable[[Total], Total]:
    """An identity whose tensors are each filled with one number."""

    def identity(like: Total) -> Total:
        return tuple(part.new_full(part.shape, value) for part, value in zip(like, values, strict=True))

    return identity


def add(a: Total, b: Total) -> Total:
    """The combine of every monoid whose totals are plain sums."""
    return tuple(x + y for x, y in zip(a, b, strict=True))


def pass_on(combined: Total, item: Total, grad: Total) -> Total:
    """The local gradient of a plain sum: each item gets the total's."""
    return grad


def first(total: Total, shared: Total) -> Tensor:
    """The finish of a fold whose answer is its first tensor."""
    return total[0]
