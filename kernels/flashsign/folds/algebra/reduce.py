"""MonoidReduce: a layer that folds all rows of B for every row of A, in slices.

Letters: N rows of A, M rows of B (items). Source: MonoidReduce, A. Cuba Gyllensten, 2025;
kernels/README.md, "Folds".
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from flashsign.errors import ShapeMismatch
from flashsign.folds.algebra.fold import chosen_depth
from flashsign.folds.algebra.forms import check_items
from flashsign.folds.algebra.in_slices.plan import Order, Plan
from flashsign.folds.algebra.in_slices.total import differentiable_total
from flashsign.folds.algebra.monoid import Monoid, Total, refuse_no_items

CHUNK = {1: 128, 2: 128, 3: 2048}
"""Rows of a slice by depth: at depths 1 and 2 a slice has rows x items x width numbers, at depth 3
rows x items.
"""


def monoid_reduce(
    monoid: Monoid,
    A: Total,
    B: Total,
    *,
    a_chunk: int | None = None,
    b_chunk: int | None = None,
    batch_dims: int = 0,
    where: Tensor | None = None,
    depth: int | None = None,
    order: Literal["auto"] | Order = "auto",
) -> Tensor:
    """Fold every row of A with all rows of B, and finish: attention, a cross entropy, an MLP.

    A: tensors [..., N, *]; B: tensors [..., M, *], the items; `...` are batch_dims axes of bags,
        sizes equal or 1. Integers (targets) have no gradient. A may be empty, then all items make
        one total. Totals have the rows of A first. Memory, forward and backward: inputs, outputs
        and one slice of a_chunk x b_chunk, however many slices there are (defaults: CHUNK). depth:
        1, 2 or 3, by default the deepest that the monoid has; all give the same result.
    order: "rows" takes all items of some rows, then the next rows; "items" all rows of some items;
        "tree" as many slices of items side by side as rows are missing in a slice, combined as a
        tree; "auto" takes the tree where N is at most half of a_chunk. where [..., M] or
        [..., N, M], bool: the identity stands for pairs where it is False, which must be finite all
        the same (depth 1 or 2).

    Differentiable: once in slices; second derivatives, forward mode and torch.func in plain
        operations, with every slice in memory. Where B needs no gradient and a row's total is a few
        numbers, A's gradient is collected during the forward.
    Raises ShapeMismatch for tensors that do not fit, ValueError for a monoid whose combine does not
    commute, an unknown order or depth, and functions of it that return no tensors.
    Source: MonoidReduce, A. Cuba Gyllensten, 2025.

    Example: softmax attention of two bags.
        >>> import torch
        >>> from flashsign import SOFTMAX, monoid_reduce
        >>> q, k, v = torch.randn(2, 20, 8), torch.randn(2, 500, 8), torch.randn(2, 500, 8)
        >>> keys = k, v, torch.ones(2, 500)
        >>> output = monoid_reduce(SOFTMAX, (q,), keys, b_chunk=100, batch_dims=1)
        >>> torch.allclose(output, torch.softmax(q @ k.mT, -1) @ v, atol=1e-5)
        True
    """
    if not monoid.commutative:
        raise ValueError(
            f"{monoid.name} does not commute, and monoid_reduce combines in any order: use fold, "
            "which keeps the order."
        )
    if order not in ("auto", "rows", "items", "tree"):
        raise ValueError(f"order must be auto, rows, items or tree, not {order!r}.")
    bags = _check_shapes(A, B, batch_dims)
    check_items(monoid.name, monoid.forms, B, A, batch_dims)
    items = B[0].shape[batch_dims]
    refuse_no_items(monoid, items)
    mask = None if where is None else _checked_mask(where, A, items, bags)
    depth = chosen_depth(monoid, depth, mask is not None)
    a_chunk, b_chunk = (CHUNK[depth] if chunk is None else chunk for chunk in (a_chunk, b_chunk))
    if order == "auto":
        order = "tree" if A and 2 * A[0].shape[batch_dims] <= a_chunk else "rows"
    plan = Plan(
        monoid,
        depth,
        count=len(A),
        a_chunk=a_chunk,
        b_chunk=b_chunk,
        rows=bool(A),
        order=order if A else "rows",
        batched=batch_dims > 0,
        mask=mask,
    )
    a, b = (tuple(_one_bag_axis(x, bags) for x in tensors) for tensors in (A, B))
    total = differentiable_total(plan, *a, *b)
    if not batch_dims:
        return monoid.finish(total, a)
    output: Tensor = torch.vmap(monoid.finish, in_dims=(0, 0 if a else None))(total, a)
    return output.reshape(*bags, *output.shape[1:])


def _one_bag_axis(x: Tensor, bags: tuple[int, ...]) -> Tensor:
    """Return x [..., rows, *] with all axes of bags as one."""
    return x.expand(*bags, *x.shape[len(bags) :]).flatten(0, len(bags) - 1) if bags else x


def _check_shapes(A: Total, B: Total, batch_dims: int) -> tuple[int, ...]:
    if not B:
        raise ShapeMismatch("B must have at least one tensor, whose rows are the items.")
    found = ", ".join(
        f"{name} {[list(x.shape) for x in tensors]}" for name, tensors in (("A", A), ("B", B))
    )
    if batch_dims < 0:
        raise ShapeMismatch(f"batch_dims must be at least 0, not {batch_dims}.")
    if any(x.ndim <= batch_dims for x in (*A, *B)):
        raise ShapeMismatch(
            f"Tensors of A and B have {batch_dims} batch axes and an axis of rows; found {found}."
        )
    for name, tensors in (("A", A), ("B", B)):
        if len({x.shape[batch_dims] for x in tensors}) > 1:
            raise ShapeMismatch(
                f"Tensors of {name} must have the same number of rows; found {found}."
            )
    try:
        return tuple(torch.broadcast_shapes(*(x.shape[:batch_dims] for x in (*A, *B))))
    except RuntimeError:
        raise ShapeMismatch(f"Batch axes of A and B must be equal or 1; found {found}.") from None


def _checked_mask(where: Tensor, A: Total, items: int, bags: tuple[int, ...]) -> Tensor:
    """Return `where` as [(bags), N or 1, M], without rows [(bags), M]. Raises ShapeMismatch."""
    rows = A[0].shape[len(bags)] if A else 1
    of_pairs = where.ndim == len(bags) + 2 and bool(A)
    expected = (*bags, rows, items) if of_pairs else (*bags, items)
    if where.dtype != torch.bool or where.shape != expected or (A and where.device != A[0].device):
        forms = f"{[*bags, items]}" + (f" or {[*bags, rows, items]}" if A else "")
        raise ShapeMismatch(
            f"where must be bool {forms} on the items' device; found {where.dtype} "
            f"{list(where.shape)} on {where.device}."
        )
    if A and not of_pairs:
        where = where.unsqueeze(-2)
    return where.reshape(math.prod(bags), *where.shape[len(bags) :]) if bags else where
