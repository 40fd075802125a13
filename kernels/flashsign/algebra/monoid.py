"""A commutative monoid: the five functions that a streamed layer is made of.

Lift each item, combine in any order, finish once. Source: MonoidReduce, A. Cuba Gyllensten, 2025;
kernels/README.md, "Folds".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

Total = tuple[Tensor, ...]
"""The tensors that a fold accumulates, such as (u, z, t) of spherical attention."""


@dataclass(frozen=True)
class Monoid:
    """One row of the table in kernels/README.md.

    identity(like): the total of no items, shaped like the given total.
    lift(items, shared): the totals of single items. items: tensors [n, ...], one item a row; shared: tensors that
        every item meets (queries). Each tensor of the result is [n, ...].
    combine(a, b): the total of a's and b's items; broadcasts, and combines identities without making NaN.
    finish(total, shared): the layer's output.
    local_gradient(combined, item, grad): D(combined, item)(grad), the gradient for `item` (a lifted item or a partial
        total that `combined` contains), where grad is the gradient for `combined`. None: folds differentiate combine.
    commutative: False makes fold refuse to reorder items.

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
    """An identity whose tensors are each filled with one number: constants(-inf, 0) -> identity(like)."""

    def identity(like: Total) -> Total:
        return tuple(part.new_full(part.shape, value) for part, value in zip(like, values, strict=True))

    return identity


def add(a: Total, b: Total) -> Total:
    """The combine of every monoid whose totals are plain sums."""
    return tuple(x + y for x, y in zip(a, b, strict=True))


def pass_on(combined: Total, item: Total, grad: Total) -> Total:
    """The local gradient of a plain sum: the gradient of each item is that of the total."""
    return grad


def first(total: Total, shared: Total) -> Tensor:
    """The finish of a fold whose output is the first tensor of its total."""
    return total[0]
