"""MonoidReduce: a layer that folds all rows of B for every row of A, in slices.

Letters: N rows of A, M rows of B (items). Source: MonoidReduce, A. Cuba Gyllensten, 2025;
kernels/README.md, "Folds".
"""

from __future__ import annotations

import torch
from torch import Tensor

from flashsign.errors import ShapeMismatch
from flashsign.folds.algebra.checks import check_items
from flashsign.folds.algebra.fold import chosen_depth, numbered
from flashsign.folds.algebra.in_slices.plan import Plan
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
    depth: int | None = None,
) -> Tensor:
    """Fold every row of A with all rows of B, and finish: attention, a cross entropy, an MLP.

    A: tensors [..., N, *]; B: tensors [..., M, *], the items; `...` are batch_dims axes of bags,
        sizes equal or 1. Integers (targets) have no gradient. A may be empty, then all items make
        one total. Totals have the rows of A first. Memory, forward and backward: inputs, outputs
        and one slice of a_chunk x b_chunk, however many slices there are (defaults: CHUNK, and as
        many more items as A has fewer rows). depth: 1, 2 or 3, by default the deepest that the
        monoid has; all give the same result.

    Differentiable: once in slices; second derivatives, forward mode and torch.func in plain
        operations, with every slice in memory.
    Raises ShapeMismatch for tensors that do not fit, ValueError for a monoid whose combine does not
    commute, an unknown depth, and functions of it that return no tensors.
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
    check_items(monoid.name, B, A, batch_dims)
    bags = _bags(A, B, batch_dims)
    refuse_no_items(monoid, B[0].shape[batch_dims])
    depth = chosen_depth(monoid, depth)
    a_chunk = CHUNK[depth] if a_chunk is None else a_chunk
    if b_chunk is None:
        b_chunk = CHUNK[depth]
        b_chunk *= max(1, a_chunk // max(1, A[0].shape[batch_dims])) if A else 1
    given, items = (tuple(_one_bag_axis(x, bags) for x in tensors) for tensors in (A, B))
    a, b = numbered(monoid, given, items, axis=int(batch_dims > 0))
    plan = Plan(
        monoid,
        depth,
        count=len(a),
        a_chunk=a_chunk,
        b_chunk=b_chunk,
        rows=bool(A),
        batched=batch_dims > 0,
    )
    total = differentiable_total(plan, *a, *b)
    if not batch_dims:
        return monoid.finish(total, given)
    output: Tensor = torch.vmap(monoid.finish, in_dims=(0, 0 if given else None))(total, given)
    return output.reshape(*bags, *output.shape[1:])


def _one_bag_axis(x: Tensor, bags: tuple[int, ...]) -> Tensor:
    """Return x [..., rows, *] with all axes of bags as one."""
    return x.expand(*bags, *x.shape[len(bags) :]).flatten(0, len(bags) - 1) if bags else x


def _bags(A: Total, B: Total, batch_dims: int) -> tuple[int, ...]:
    """Return the axes of bags, to which those of all tensors broadcast."""
    if any(x.ndim <= batch_dims for x in A) or len({x.shape[batch_dims] for x in A}) > 1:
        raise ShapeMismatch(
            f"Tensors of A must have {batch_dims} batch axes and an axis of the same number of "
            f"rows; found {[list(x.shape) for x in A]}."
        )
    try:
        return tuple(torch.broadcast_shapes(*(x.shape[:batch_dims] for x in (*A, *B))))
    except RuntimeError:
        found = [list(x.shape) for x in (*A, *B)]
        raise ShapeMismatch(f"Batch axes of A and B must be equal or 1; found {found}.") from None
