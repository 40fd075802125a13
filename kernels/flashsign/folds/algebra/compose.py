"""Monoids made of others: a unit for what has none, and two folds over the same items as one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from flashsign.folds.algebra.monoid import Monoid, Total, with_axes


def with_unit(semigroup: Monoid, empty: float = 0.0) -> Monoid:
    """Return the semigroup with a free unit: a monoid in which "no item" is a value of its own.

    semigroup: a Monoid whose identity is None or is not to be used. The new total begins with a
        tensor that is 1 where there is an item and 0 where there is none, [N] or as long as all
        tensors of the total agree; then the semigroup's tensors follow, which mean nothing where it
        is 0. There the output is `empty`.

    Example: the smallest number, which has no identity among integers.
        >>> import torch
        >>> from flashsign import Monoid, fold, with_unit
        >>> def smaller(a, b):
        ...     return (torch.minimum(a[0], b[0]),)
        >>> def same(items, shared):
        ...     return items
        >>> numbers = Monoid("least", None, same, smaller, lambda total, _: total[0])
        >>> least = with_unit(numbers, empty=-1)
        >>> for x in ([7, 3, 5], []):
        ...     least.finish(fold(least, (torch.tensor(x, dtype=torch.int64),)), ()).item()
        3
        -1
    """

    def identity(like: Total) -> Total:
        return tuple(torch.zeros_like(part) for part in like)

    def lift(items: Total, shared: Total) -> Total:
        assert semigroup.lift is not None
        lifted = semigroup.lift(items, shared)
        least = min(lifted, key=lambda part: part.ndim)
        return torch.ones_like(least), *lifted

    def combine(a: Total, b: Total) -> Total:
        (a_there, *a_parts), (b_there, *b_parts) = a, b
        # Where one side is missing, the other one takes its place, so that combine never sees what
        # means nothing.
        left = tuple(_choose(a_there, x, y) for x, y in zip(a_parts, b_parts, strict=True))
        right = tuple(_choose(b_there, y, x) for x, y in zip(a_parts, b_parts, strict=True))
        both = semigroup.combine(left, right)
        one = a_there * b_there
        return torch.maximum(a_there, b_there).detach(), *(
            _choose(one, x, y) for x, y in zip(both, left, strict=True)
        )

    def local(combined: Total, item: Total, grad: Total) -> Total:
        assert semigroup.local_gradient is not None
        there = item[0]
        # An item that is missing takes the total's place, where D is finite.
        safe = tuple(_choose(there, x, y) for x, y in zip(item[1:], combined[1:], strict=True))
        gradients = semigroup.local_gradient(combined[1:], safe, grad[1:])
        return torch.zeros_like(grad[0] * there), *(
            _choose(there, x, torch.zeros_like(x)) for x in gradients
        )

    def finish(total: Total, shared: Total) -> Tensor:
        output = semigroup.finish(total[1:], shared)
        there = total[0] != 0
        if there.ndim > output.ndim:
            there = there.flatten(output.ndim).any(-1) if output.ndim else there.any()
        return torch.where(with_axes(there, output), output, empty)

    return replace(
        semigroup,
        name=f"{semigroup.name} with a unit",
        identity=identity,
        lift=lift if semigroup.lift is not None else None,
        combine=combine,
        finish=finish,
        local_gradient=local if semigroup.local_gradient is not None else None,
        proj_fold=None,
        proj_fold_bwd=None,
    )


def product(
    a: Monoid,
    b: Monoid,
    finish: Callable[[Total, Total], Tensor],
    *,
    of_a: int,
    shared_weight: tuple[int, int] | None = None,
    name: str | None = None,
) -> Monoid:
    """Return two folds over the same items as one.

    The total is a's tensors, then b's; finish(total, shared) sees both.

    of_a: how many tensors a's total has.
    name: by default of both.
    shared_weight: (i, j): tensor i of a's total and tensor j of b's are one and the same weight,
        such as the log-weight of a numerator and of its denominator. It is then kept once, in a's
        place, and b's tensors follow without it: the pullback over the weight, of v [n, E] and
        1 [n, 1] under x [n] for example.

    Raises ValueError for what is none of these.
    Sources: MonoidReduce, A. Cuba Gyllensten, 2025; safe exponential sums and their pullback,
        heidemann.me/blog/2026-03-06-attention-monoid.

    Example: softmax attention as the quotient of two sums of exponentials, x [n] and v [n, E] ->
        [E], 0 of no items.
        >>> import torch
        >>> from flashsign import SAFE_EXPONENTIAL_SUM, check_monoid, fold, product
        >>> x, v = torch.randn(50), torch.randn(50, 8)
        >>> def ones(items, shared):
        ...     return torch.ones_like(items[0][:, :1]), items[1]
        >>> below = SAFE_EXPONENTIAL_SUM.after(ones)
        >>> quotient = lambda total, _: total[0] / torch.where(total[2] == 0, 1.0, total[2])
        >>> softmax = product(SAFE_EXPONENTIAL_SUM, below, quotient, of_a=2, shared_weight=(1, 1))
        >>> check_monoid(softmax, (v, x))
        >>> output = softmax.finish(fold(softmax, (v, x)), ())
        >>> torch.allclose(output, torch.softmax(x, 0) @ v, atol=1e-5)
        True
    """

    def split(total: Total) -> tuple[Total, Total]:
        left, rest = total[:of_a], list(total[of_a:])
        if shared_weight is not None:
            rest.insert(shared_weight[1], left[shared_weight[0]])
        return left, tuple(rest)

    def joined(left: Total, right: Total) -> Total:
        if shared_weight is not None:
            right = tuple(x for at, x in enumerate(right) if at != shared_weight[1])
        return *left, *right

    def identity(like: Total) -> Total:
        left, right = split(like)
        return joined(a.unit(left), b.unit(right))

    def lift(items: Total, shared: Total) -> Total:
        assert a.lift is not None and b.lift is not None
        left, right = a.lift(items, shared), b.lift(items, shared)
        if len(left) != of_a:
            raise ValueError(f"of_a is {of_a}, and the total of {a.name} has {len(left)} tensors.")
        return joined(left, right)

    def combine(x: Total, y: Total) -> Total:
        (x_a, x_b), (y_a, y_b) = split(x), split(y)
        return joined(a.combine(x_a, y_a), b.combine(x_b, y_b))

    def local(combined: Total, item: Total, grad: Total) -> Total:
        assert a.local_gradient is not None and b.local_gradient is not None
        (c_a, c_b), (i_a, i_b), (g_a, g_b) = split(combined), split(item), split(grad)
        if shared_weight is not None:
            # The weight's own gradient enters once, with a.
            g_b = tuple(
                torch.zeros_like(g) if at == shared_weight[1] else g for at, g in enumerate(g_b)
            )
        to_a, to_b = list(a.local_gradient(c_a, i_a, g_a)), b.local_gradient(c_b, i_b, g_b)
        if shared_weight is not None:
            to_a[shared_weight[0]] = to_a[shared_weight[0]] + to_b[shared_weight[1]]
        return joined(tuple(to_a), to_b)

    if a.lift is None or b.lift is None:
        raise ValueError(
            f"{(b if a.lift else a).name} has no lift, which a product needs: pass one that has."
        )
    with_d = a.local_gradient is not None and b.local_gradient is not None
    return Monoid(
        name or f"{a.name} and {b.name}",
        identity,
        lift,
        combine,
        finish,
        local if with_d else None,
        commutative=a.commutative and b.commutative,
        numbered=a.numbered,
        broadcasts=a.broadcasts and b.broadcasts,
    )


def _choose(there: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return x where there is not 0, else y; `there` has the first axes of both."""
    return torch.where(with_axes(there != 0, x), x, y)
