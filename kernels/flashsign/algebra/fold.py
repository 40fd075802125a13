"""Folds over items in chunks, and the gradient of a fold from its total, without the totals in between.

Local Gradient Theorem: if d(a.b)/da is a function D(a.b, a), the gradient of a fold for one of its items is
D(total, item). So a fold stores its inputs and its total; items are lifted again in the backward, chunk by chunk.

Letters: n items. Source: MonoidReduce, A. Cuba Gyllensten, 2025; kernels/README.md, "Folds".
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any, Literal

import torch
from torch import Tensor

from flashsign.algebra.monoid import Monoid, Total
from flashsign.eager.transforms import differentiable_gradients, transformed

Order = Literal["parallel", "sequence"]


def fold(monoid: Monoid, items: Total, shared: Total = (), *, chunk: int = 256, order: Order = "parallel") -> Total:
    """The total of all items: tensors as monoid.lift returns them, without [n]. monoid.finish(total, shared) ends it.

    items: tensors [n, ...]; shared: tensors of any shape. Memory holds `chunk` lifted items at a time. order:
    "parallel" combines the two halves of a chunk until one total is left, "sequence" takes one item after the other.
    Differentiable once by the local gradient; second derivatives, forward mode and torch.func take plain operations.
    Raises ValueError for a parallel fold of a monoid that is not commutative, for items that are empty or differ in
    length, for an unknown order, and for a chunk below 1.
    Source: MonoidReduce, A. Cuba Gyllensten, 2025.

    Example:
        >>> import torch
        >>> from flashsign import SOFTMAX, fold
        >>> q, k, v = torch.randn(20, 8), torch.randn(1000, 8), torch.randn(1000, 8)
        >>> total = fold(SOFTMAX, (k, v, torch.ones(1000)), (q,), chunk=100)
        >>> torch.allclose(SOFTMAX.finish(total, (q,)), torch.softmax(q @ k.T, -1) @ v, atol=1e-5)
        True
    """
    if order not in ("parallel", "sequence") or chunk < 1:
        raise ValueError(f"order must be parallel or sequence and chunk at least 1, not {order!r} and {chunk}.")
    lengths = {len(part) for part in items}
    if len(lengths) != 1:
        raise ValueError(f"A fold needs item tensors of one length; found lengths {sorted(lengths)}.")
    if order == "parallel" and not monoid.commutative:
        raise ValueError(f'{monoid.name} is not commutative: fold it with order="sequence".')
    if transformed():
        return _fold_chunks(monoid, items, shared, chunk, order)
    total: Total = _Fold.apply(monoid, chunk, order, len(items), *items, *shared)  # type: ignore[no-untyped-call]
    return total


def fold_literal(monoid: Monoid, items: Total, shared: Total = ()) -> Total:
    """The definition of fold, for tests: one item after the other, differentiated by autograd.

    items: tensors [n, ...]; shared: tensors of any shape; returns the total's tensors, as fold does.

    Example:
        >>> import torch
        >>> from flashsign import SUM, fold, fold_literal
        >>> x = torch.arange(6.0).reshape(3, 2)
        >>> fold_literal(SUM, (x,)), fold(SUM, (x,))
        ((tensor([6., 9.]),), (tensor([6., 9.]),))
    """
    return _in_sequence(monoid, monoid.lift(items, shared))


def reduce_lifted(monoid: Monoid, lifted: Total, order: Order) -> Total:
    """Lifted items [n, ...] combined into one total [...]."""
    return _in_halves(monoid, lifted) if order == "parallel" else _in_sequence(monoid, lifted)


def _in_sequence(monoid: Monoid, lifted: Total) -> Total:
    one_by_one = zip(*(part.unbind(0) for part in lifted), strict=True)
    return reduce(monoid.combine, one_by_one, _nothing(monoid, lifted))


def _in_halves(monoid: Monoid, lifted: Total) -> Total:
    total = _nothing(monoid, lifted)
    while (count := len(lifted[0])) > 1:
        half = count // 2
        if count % 2:
            total = monoid.combine(total, tuple(part[-1] for part in lifted))
        lifted = monoid.combine(tuple(part[:half] for part in lifted), tuple(part[half : 2 * half] for part in lifted))
    return monoid.combine(total, tuple(part[0] for part in lifted)) if count else total


def _nothing(monoid: Monoid, lifted: Total) -> Total:
    return monoid.identity(tuple(part.new_empty(part.shape[1:]) for part in lifted))


def _chunks(items: Total, chunk: int) -> Iterator[Total]:
    """Slices of the items, at least one, so that a fold of no items still has the shape of a total."""
    count = len(items[0])
    return (tuple(part[start : start + chunk] for part in items) for start in range(0, max(count, 1), chunk))


def _fold_chunks(monoid: Monoid, items: Total, shared: Total, chunk: int, order: Order) -> Total:
    totals = (reduce_lifted(monoid, monoid.lift(part, shared), order) for part in _chunks(items, chunk))
    return reduce(monoid.combine, totals)


class _Fold(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, monoid: Monoid, chunk: int, order: Order, count: int, *tensors: Tensor) -> Total:
        total = _fold_chunks(monoid, tensors[:count], tensors[count:], chunk, order)
        # The total may be an input itself (a sum of one item), and autograd forbids to return a view of an input.
        total = tuple(part.clone() for part in total)
        ctx.save_for_backward(*tensors, *total)
        ctx.how = monoid, chunk, order, count, len(tensors)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        monoid, chunk, order, count, inputs = ctx.how
        tensors, total = ctx.saved_tensors[:inputs], ctx.saved_tensors[inputs:]
        if torch.is_grad_enabled():

            def plain(*tensors: Tensor) -> Total:
                return _fold_chunks(monoid, tensors[:count], tensors[count:], chunk, order)

            return None, None, None, None, *differentiable_gradients(plain, tensors, grads)
        wanted = ctx.needs_input_grad[4:]
        tensors = tuple(x.detach().requires_grad_(want) for x, want in zip(tensors, wanted, strict=True))
        items, shared = tensors[:count], tensors[count:]
        if monoid.local_gradient is None:
            found = list(_chain_gradients(monoid, items, shared, grads, chunk, order))
        else:
            found = list(_local_gradients(monoid, items, shared, total, grads, chunk))
        of_chunks = list(zip(*found, strict=True))
        of_items = (torch.cat(x) if want else None for x, want in zip(of_chunks[:count], wanted[:count], strict=True))
        of_shared = (sum(x) if want else None for x, want in zip(of_chunks[count:], wanted[count:], strict=True))
        return None, None, None, None, *of_items, *of_shared


def _local_gradients(
    monoid: Monoid, items: Total, shared: Total, total: Total, grads: Total, chunk: int
) -> Iterator[Total]:
    """For each chunk, the gradients for its items and for shared: D(total, item), then autograd through lift alone."""
    assert monoid.local_gradient is not None
    for part in _chunks(items, chunk):
        part = _leaves(part, items)
        with torch.enable_grad():
            lifted = monoid.lift(part, shared)
        detached = tuple(x.detach() for x in lifted)
        adjoint = monoid.local_gradient(total, detached, grads)
        yield _pull(lifted, adjoint, (*part, *shared))


def _chain_gradients(
    monoid: Monoid, items: Total, shared: Total, grads: Total, chunk: int, order: Order
) -> Iterator[Total]:
    """The same without D: autograd through prefix . chunk . suffix, with the totals on both sides held constant."""
    parts = list(_chunks(items, chunk))
    with torch.no_grad():
        totals = [reduce_lifted(monoid, monoid.lift(part, shared), order) for part in parts]
        nothing = monoid.identity(totals[0])
        prefixes, suffixes = [nothing], [nothing]
        for ahead, behind in zip(totals[:-1], totals[:0:-1], strict=True):
            prefixes.append(monoid.combine(prefixes[-1], ahead))
            suffixes.append(monoid.combine(behind, suffixes[-1]))
    for part, prefix, suffix in zip(parts, prefixes, reversed(suffixes), strict=True):
        part = _leaves(part, items)
        with torch.enable_grad():
            own = reduce_lifted(monoid, monoid.lift(part, shared), order)
            whole = monoid.combine(monoid.combine(prefix, own), suffix)
        yield _pull(whole, grads, (*part, *shared))


def _leaves(part: Total, items: Total) -> Total:
    return tuple(x.detach().requires_grad_(item.requires_grad) for x, item in zip(part, items, strict=True))


def _pull(outputs: Total, grads: Total, inputs: Total) -> Total:
    """Gradients for inputs (zeros where none is wanted or none arrives), grads broadcast to the outputs' shapes."""
    graded = [(out, grad.expand_as(out)) for out, grad in zip(outputs, grads, strict=True) if out.requires_grad]
    wanted = [x for x in inputs if x.requires_grad]
    found = iter(
        torch.autograd.grad(
            [out for out, _ in graded],
            wanted,
            [grad for _, grad in graded],
            allow_unused=True,
            materialize_grads=True,
        )
    )
    return tuple(next(found) if x.requires_grad else x.new_zeros(()) for x in inputs)
