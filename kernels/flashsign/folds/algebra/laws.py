"""Laws of a monoid that can be folded in any slices and any order, checked in float64 on items of
one's own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from flashsign.errors import BrokenLaw
from flashsign.folds.algebra.checks import check_items
from flashsign.folds.algebra.fold import Fold, fold, fold_literal, numbered
from flashsign.folds.algebra.in_slices.slices import Slices
from flashsign.folds.algebra.monoid import Monoid, Total, reduce_lifted

Equal = tuple[str, Total, Total]
"""The name of a law, and its two sides."""


def check_monoid(
    monoid: Monoid, items: Total, shared: Total = (), *, tolerance: float = 1e-8
) -> None:
    """Check every law on these items: tensors [n, ...], three or more; shared: as in fold.

    Returns nothing.

    The laws: identity, a fold of one item is its lift, associativity, commutativity (unless
    commutative=False), chunks of any size, padding with the identity, a fold of all is that of its
    parts, the depths have one total, the gradient of every depth is that of the definition, D holds
    for partial totals, and a fold of nothing is the identity and finishes finite (unless
    needs_items). Numbers are float64, compared relative to the largest of their tensor. Raises
    BrokenLaw, which names the first law that fails, ValueError for fewer than three items.

    Example: a mean of means has no identity.
        >>> import torch
        >>> from flashsign import BrokenLaw, Monoid, check_monoid
        >>> def half(a, b):
        ...     return ((a[0] + b[0]) / 2,)
        >>> def zero(like):
        ...     return (torch.zeros_like(like[0]),)
        >>> mean = Monoid("mean", zero, lambda items, _: items, half, lambda total, _: total[0])
        >>> try:
        ...     check_monoid(mean, (torch.randn(5, 2),))
        ... except BrokenLaw as error:
        ...     print(str(error).split(":")[0])
        mean breaks a law, identity, from the left
    """
    check_items(monoid.name, items, shared, 0)
    if len(items[0]) < 3:
        raise ValueError(
            f"check_monoid needs at least 3 items to test the laws of {monoid.name} on; pass more."
        )
    if any(bool(x.isnan().any()) for x in (*items, *shared)):
        raise ValueError(
            f"check_monoid compares numbers, and these items or shared tensors of {monoid.name} "
            "have NaN."
        )
    items, shared = (
        tuple(x.double() if x.is_floating_point() else x for x in each) for each in (items, shared)
    )
    for name, left, right in _laws(monoid, items, shared):
        for number, (x, y) in enumerate(zip(left, right, strict=True)):
            worst = _difference(x, y)
            if not worst <= tolerance:
                raise BrokenLaw(
                    f"{monoid.name} breaks a law, {name}: tensor {number} of its two sides differs "
                    f"by {worst:.2g} of its largest number; compare both sides on these items."
                )
    nothing = tuple(x[:0] for x in items)
    output = None if monoid.needs_items else monoid.finish(fold(monoid, nothing, shared), shared)
    if output is not None and not output.isfinite().all():
        raise BrokenLaw(
            f"{monoid.name} breaks a law, a fold of nothing finishes finite: found "
            f"{output.flatten()[:3].tolist()}; "
            "guard its finish against the identity, or say needs_items=True."
        )


def _laws(monoid: Monoid, items: Total, shared: Total) -> Iterator[Equal]:
    lifted = lifted_items(monoid, items, shared)
    one, two, three = (tuple(part[at] for part in lifted) for at in range(3))
    nothing = monoid.unit(one)
    combine, count = monoid.combine, len(items[0])
    yield "identity, from the left", combine(nothing, one), one
    yield "identity, from the right", combine(one, nothing), one
    yield "identity, with itself", combine(nothing, nothing), nothing
    ones = [_single(monoid, items, shared, at) for at in range(count)]
    yield (
        "a fold of one item is its lift",
        tuple(torch.stack(parts) for parts in zip(*ones, strict=True)),
        lifted,
    )
    yield "associativity", combine(combine(one, two), three), combine(one, combine(two, three))
    if monoid.commutative:
        yield "commutativity", combine(one, two), combine(two, one)
    if monoid.broadcasts:
        pairs = tuple(part[:2] for part in lifted), tuple(part[1:3] for part in lifted)
        yield (
            "combine takes axes in front",
            monoid.combine(*pairs),
            torch.vmap(monoid.combine)(*pairs),
        )
    whole = reduce_lifted(monoid, lifted)
    for chunk in (1, 2, count):
        yield (
            f"chunks of any size (found with {chunk})",
            fold(monoid, items, shared, chunk=chunk, depth=monoid.depths[0]),
            whole,
        )
    padding = monoid.unit(tuple(part[:2] for part in lifted))
    padded = tuple(torch.cat(parts) for parts in zip(lifted, padding, strict=True))
    yield "padding with the identity", reduce_lifted(monoid, padded), whole
    for depth in monoid.depths:
        yield (
            f"depth {depth} has the same total",
            fold(monoid, items, shared, chunk=2, depth=depth),
            whole,
        )
    parts = (
        Fold(monoid, shared)
        .add(tuple(x[: count // 2] for x in items))
        .add(tuple(x[count // 2 :] for x in items))
    )
    assert parts.total is not None
    yield "a fold of all is that of its parts", parts.total, whole
    nobody = fold(monoid, tuple(x[:0] for x in items), shared)
    yield "a fold of nothing is the identity", nobody, monoid.unit(nobody)
    yield from _gradient_laws(monoid, items, shared, whole)
    if monoid.local_gradient is not None:
        yield from _partial_laws(monoid, lifted)


def _gradient_laws(monoid: Monoid, items: Total, shared: Total, whole: Total) -> Iterator[Equal]:
    """Yield the laws of the gradient of the total, for random gradients of it."""
    grads = _random(whole)

    def slopes(total: Total, leaves: Total) -> Total:
        pairs = [(x, g) for x, g in zip(total, grads, strict=True) if x.requires_grad]
        return _slopes(tuple(x for x, _ in pairs), leaves, tuple(g for _, g in pairs))

    def leaves_of() -> tuple[Total, Total]:
        made = tuple(x.clone().requires_grad_(x.is_floating_point()) for x in (*items, *shared))
        return made[: len(items)], made[len(items) :]

    own_items, own_shared = leaves_of()
    definition = fold_literal if monoid.lift is not None else fold
    literal = definition(monoid, own_items, own_shared)
    expected = slopes(literal, (*own_items, *own_shared))
    for depth in monoid.depths:
        own_items, own_shared = leaves_of()
        total = fold(monoid, own_items, own_shared, chunk=2, depth=depth)
        gradients = slopes(total, (*own_items, *own_shared))
        yield f"the gradient at depth {depth} is that of the definition", gradients, expected


def _partial_laws(monoid: Monoid, lifted: Total) -> Iterator[Equal]:
    assert monoid.local_gradient is not None
    cut = len(lifted[0]) // 2
    halves = (tuple(part[:cut] for part in lifted), tuple(part[cut:] for part in lifted))
    partials = [
        tuple(x.detach().requires_grad_() for x in reduce_lifted(monoid, half)) for half in halves
    ]
    total = monoid.combine(*partials)
    grads = _random(total)
    graded = [(x, g) for x, g in zip(total, grads, strict=True) if x.requires_grad]
    for partial in partials:
        expected = _slopes(tuple(x for x, _ in graded), partial, tuple(g for _, g in graded))
        detached = tuple(x.detach() for x in partial)
        gradients = monoid.local_gradient(tuple(x.detach() for x in total), detached, grads)
        yield "D holds for partial totals", gradients, expected


def lifted_items(monoid: Monoid, items: Total, shared: Total) -> Total:
    """Return the totals of single items, [n, ...], by the lift itself where there is one: no
    identity enters them.
    """
    if monoid.lift is None:
        ones = [_single(monoid, items, shared, at) for at in range(len(items[0]))]
        return tuple(torch.stack(parts) for parts in zip(*ones, strict=True))
    shared, items = numbered(monoid, shared, items)
    return Slices(monoid, depth=1, batched=False).lift(shared, items)


def _single(monoid: Monoid, items: Total, shared: Total, at: int) -> Total:
    alone = Fold(monoid, shared)
    alone.items = at
    total = alone.add(tuple(x[at : at + 1] for x in items)).total
    assert total is not None
    return total


def _slopes(outputs: Total, leaves: Total, grads: Total) -> Total:
    wanted = [x for x in leaves if x.requires_grad]
    if not outputs or not any(x.requires_grad for x in outputs):
        return tuple(torch.zeros_like(x) for x in wanted)
    return torch.autograd.grad(
        outputs, wanted, grads, retain_graph=True, allow_unused=True, materialize_grads=True
    )


def _random(like: Total) -> Total:
    random = torch.Generator().manual_seed(0)
    return tuple(torch.randn(x.shape, generator=random, dtype=torch.float64).to(x) for x in like)


def _difference(x: Tensor, y: Tensor) -> float:
    """Return the largest difference, relative to the largest finite number (or 1).

    Infinite for NaN and other infinities.
    """
    if x.shape != y.shape:
        return math.inf
    if not x.numel():
        return 0.0
    same = x == y
    x, y = torch.where(same, 0.0, x.double()), torch.where(same, 0.0, y.double())
    if not (x.isfinite() & y.isfinite()).all():
        return math.inf
    return float((x - y).abs().max() / torch.maximum(x.abs().max(), y.abs().max()).clamp(min=1.0))
