"""A commutative monoid: the functions that a streamed layer is made of.

Lift each item, combine in any order, finish once. Sources: MonoidReduce, A. Cuba Gyllensten, 2025
(openreview.net/forum?id=Fopv5Hpm1C) and its code (github.com/joenaess/GeMMMapReduce), whose
binary_reduce is combine here; kernels/README.md, "Folds".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from flashsign.errors import ShapeMismatch
from flashsign.folds.algebra.checks import returning_tensors

Total = tuple[Tensor, ...]
"""The tensors that a fold accumulates, such as (u, z, t) of spherical attention."""

Gradients = tuple[Tensor | None, ...]
"""One for each tensor; None for integers."""


@dataclass(frozen=True)
class Monoid:
    """One row of the table in kernels/README.md.

    identity(like): the total of no items, shaped like the given total. None: there is none (see
        with_unit).
    lift(items, shared): the totals of single items. items: tensors [n, ...], one item a row;
        shared: tensors that every item meets (queries). Each tensor of the result is [n, ...], and
            [n, N, ...] where shared has N rows.
    combine(a, b): the total of a's and b's items; combines identities without making NaN. Folds map
        it over axes of bags and slices, so it is written for tensors shaped like one total: [N],
        [N, E].
    finish(total, shared): the layer's output.
    local_gradient(combined, item, grad): D(combined, item)(grad), the gradient for `item` (a lifted
        item or a partial total that `combined` contains), where grad is the gradient for
        `combined`. None: folds differentiate combine.
    commutative: False makes monoid_reduce refuse it; fold keeps the order of the items.
        proj_fold(shared, items): the total of a slice, [N, ...], without lifting its items one by
        one:
        a product of matrices instead of a tensor of items x rows x width. None: the slice is lifted
        and combined.
    proj_fold_bwd(shared, items, total, grad): the slice's part of the gradients, (of shared, of
        items), where total and grad are those of all items. None in place of a gradient for
        integers. Left out: autograd of proj_fold, with D.
    numbered: lift and proj_fold get one tensor more at the end of items and of shared (unless that
        is empty), the int64 positions of these rows among all.
    needs_items: a fold of no items has no output (log 0, say), and layers refuse it.
    broadcasts: combine and local_gradient take totals with any axes in front of their own; nothing
        is mapped then, which saves time. check_monoid tests it.

    Folds raise ValueError where a function returns no tuple of tensors.

    A monoid has three depths, which agree: a lift alone (1), a lift and D (2), proj_fold with its
    gradient (3).

    Example:
        >>> import torch
        >>> from flashsign import Monoid, fold
        >>> def largest(a, b):
        ...     return (torch.maximum(a[0], b[0]),)
        >>> def minus_infinity(like):
        ...     return (torch.full_like(like[0], -torch.inf),)
        >>> def same(items, shared):
        ...     return items
        >>> def first(total, shared):
        ...     return total[0]
        >>> maximum = Monoid("maximum", minus_infinity, same, largest, first)
        >>> total = fold(maximum, (torch.tensor([[1.0, 5.0], [4.0, 2.0]]),))
        >>> maximum.finish(total, ())
        tensor([4., 5.])
    """

    name: str
    identity: Callable[[Total], Total] | None
    lift: Callable[[Total, Total], Total] | None
    combine: Callable[[Total, Total], Total]
    finish: Callable[[Total, Total], Tensor]
    local_gradient: Callable[[Total, Total, Total], Total] | None = None
    commutative: bool = True
    proj_fold: Callable[[Total, Total], Total] | None = None
    proj_fold_bwd: Callable[[Total, Total, Total, Total], tuple[Gradients, Gradients]] | None = None
    numbered: bool = False
    needs_items: bool = False
    broadcasts: bool = False

    def __post_init__(self) -> None:
        for field in ("identity", "lift", "combine", "local_gradient", "proj_fold"):
            if (own := getattr(self, field)) is not None:
                checked = returning_tensors(own, f"The {field} of {self.name}")
                object.__setattr__(self, field, checked)

    @property
    def depths(self) -> tuple[int, ...]:
        """The depths that this monoid can be folded at, in rising order.

        Raises ValueError where there is none.
        """
        with_d = self.local_gradient is not None
        whole = self.proj_fold is not None and (self.proj_fold_bwd is not None or with_d)
        kinds = {1: self.lift is not None, 2: self.lift is not None and with_d, 3: whole}
        depths = tuple(depth for depth, there in kinds.items() if there)
        if not depths:
            raise ValueError(
                f"{self.name} has neither a lift nor a proj_fold with its gradient: pass lift=, or "
                "proj_fold= with proj_fold_bwd= or local_gradient=."
            )
        return depths

    def after(self, prepare: Callable[[Total, Total], Total], name: str | None = None) -> Monoid:
        """Return this monoid over items that prepare(items, shared) makes first.

        These may be scores from queries and keys. Only the lift and D remain, because proj_fold
        knows the old items.

        Example: log sum_j e^(q . k_j) from the log-sum-exp of numbers.
            >>> import torch
            >>> from flashsign import LOG_SUM_EXP, monoid_reduce
            >>> scores = LOG_SUM_EXP.after(lambda items, shared: (items[0] @ shared[0].mT,))
            >>> q, k = torch.randn(4, 8), torch.randn(50, 8)
            >>> sums = monoid_reduce(scores, (q,), (k,))
            >>> torch.allclose(sums, torch.logsumexp(q @ k.mT, -1), atol=1e-5)
            True
        """
        lift = self.lift
        if lift is None:
            raise ValueError(f"{self.name} has no lift, so no other one can come before it.")

        def prepared(items: Total, shared: Total) -> Total:
            return lift(prepare(items, shared), shared)

        return replace(
            self,
            name=name or self.name,
            lift=prepared,
            proj_fold=None,
            proj_fold_bwd=None,
        )

    def combined(self, a: Total, b: Total, axes: int) -> Total:
        """Return combine, mapped over so many axes in front of the totals' own: of bags, of the
        items of a slice.
        """
        combine: Callable[..., Total] = self.combine
        for _ in range(0 if self.broadcasts else axes):
            combine = torch.vmap(combine)
        return combine(a, b)

    def local_gradients(
        self, combined: Total, parts: Total, grads: Total, axes: int, many: bool
    ) -> Total:
        """Return local_gradient, mapped over so many axes of bags.

        many: parts have one axis more in front, of items.
        """
        assert self.local_gradient is not None
        local: Callable[..., Total] = self.local_gradient
        if self.broadcasts:
            return local(combined, parts, grads)
        for _ in range(axes):
            local = torch.vmap(local)
        return (torch.vmap(local, in_dims=(None, 0, None)) if many else local)(
            combined, parts, grads
        )

    def unit(self, like: Total) -> Total:
        """Return the identity. Raises ValueError for a monoid without one."""
        if self.identity is None:
            raise ValueError(
                f"{self.name} has no identity, so it cannot be folded: fold with_unit of it "
                "instead."
            )
        return self.identity(like)


def constants(*values: float) -> Callable[[Total], Total]:
    """Return an identity whose tensors are each filled with one number: constants(-inf, 0) ->
    identity(like).
    """

    def identity(like: Total) -> Total:
        for part, value in zip(like, values, strict=True):
            of_numbers = part.dtype != torch.bool or isinstance(value, bool)
            if not part.is_floating_point() and (math.isinf(value) or not of_numbers):
                raise ShapeMismatch(
                    f"This fold begins with {value:g}, which is no {part.dtype}; pass numbers of a "
                    "floating dtype, as x.float()."
                )
        return tuple(
            part.new_full(part.shape, value) for part, value in zip(like, values, strict=True)
        )

    return identity


def add(a: Total, b: Total) -> Total:
    """Return the combine of every monoid whose totals are plain sums."""
    return tuple(x + y for x, y in zip(a, b, strict=True))


def pass_on(combined: Total, item: Total, grad: Total) -> Total:
    """Return the local gradient of a plain sum: the gradient of each item is that of the total."""
    return grad


def first(total: Total, shared: Total) -> Tensor:
    """Return the finish of a fold whose output is the first tensor of its total."""
    return total[0]


def as_they_are(items: Total, shared: Total) -> Total:
    """Return the lift of items that are totals already."""
    return items


def wide(x: Tensor) -> Tensor:
    """Return x in float32 at least: sums of thousands of numbers need more than the 8 or 11 bits of
    half precision.
    """
    return x.to(torch.promote_types(x.dtype, torch.float32))


def with_axes(x: Tensor, like: Tensor) -> Tensor:
    """Return x with axes of size 1 at its end, so that it broadcasts over the numbers of every row
    of like.
    """
    return x[(..., *(None,) * (like.ndim - x.ndim))]


def refuse_no_items(monoid: Monoid, items: int) -> None:
    if monoid.needs_items and not items:
        raise ValueError(f"{monoid.name} of no items has no value: pass at least one.")


def reduce_lifted(monoid: Monoid, lifted: Total, axes: int = 0) -> Total:
    """Return lifted items [n, (bags), ...] combined into one total [(bags), ...].

    Neighbours are combined first, so that items keep their order; axes: of bags.
    """
    total = monoid.unit(tuple(part.new_empty(part.shape[1:]) for part in lifted))
    while (count := len(lifted[0])) > 1:
        if count % 2:
            total = monoid.combined(tuple(part[-1] for part in lifted), total, axes)
        even = count - count % 2
        first, second = (tuple(part[start:even:2] for part in lifted) for start in (0, 1))
        lifted = monoid.combined(first, second, axes + 1)
    return monoid.combined(tuple(part[0] for part in lifted), total, axes) if count else total
