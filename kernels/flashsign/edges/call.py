"""The checked arguments of EdgeSums.add: dense or packed bags, and which targets and regulators they list.

Letters: C bags, H query heads, K key heads, E head width, n queries and m keys of a bag; packed: T queries and S keys.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from flashsign.errors import ShapeMismatch
from flashsign.validation import check_packing, check_tensors, check_values, is_whole


class Call(NamedTuple):
    """The arguments of a call.

    Dense: q [C, H, n, E], k [C, K, m, E], multiplicity [C, m] or [C, K, m], targets [n], regulators [m],
    inverse [C, H, n]: 1 / n_i.
    Packed: q [T, H, E], k [S, K, E], multiplicity [S] or [S, K], targets [T], regulators [S], inverse [T, H].
    head_weights [H] float64: the weight of each head in the mean, their sum 1; dtype: that of the products.
    """

    q: Tensor
    k: Tensor
    multiplicity: Tensor
    offsets: Tensor | None
    query_offsets: Tensor | None
    targets: Tensor | None
    regulators: Tensor | None
    inverse: Tensor | None
    head_weights: Tensor
    eps: float
    dtype: torch.dtype

    @classmethod
    def of(
        cls,
        q: Tensor,
        k: Tensor,
        multiplicity: Tensor | None,
        offsets: Tensor | None,
        query_offsets: Tensor | None,
        targets: Tensor | None,
        regulators: Tensor | None,
        inverse: Tensor | None,
        heads: Tensor | None,
        eps: float,
        dtype: torch.dtype,
    ) -> Call:
        """Raises ShapeMismatch unless all tensors fit together, ValueError for head weights that are negative, not
        finite or all zero."""
        packed = offsets is not None
        check_tensors(q, k, k, multiplicity, packed)
        offsets, query_offsets = check_packing(q, k, offsets, query_offsets)
        if packed and (targets is None or regulators is None):
            raise ShapeMismatch("Each packed bag lists its own genes: pass targets [T] and regulators [S].")
        queries, keys = (len(q), len(k)) if packed else (q.shape[2], k.shape[2])
        for name, numbers, count in (("targets", targets, queries), ("regulators", regulators, keys)):
            if numbers is None:
                continue
            if numbers.shape != (count,) or not is_whole(numbers):
                raise ShapeMismatch(
                    f"{name} must be integers of shape [{count}]; found {numbers.dtype} {list(numbers.shape)}."
                )
            if numbers.device != q.device:
                raise ShapeMismatch(f"{name} must be on q's device {q.device}; found {numbers.device}.")
        if inverse is not None and inverse.shape != q.shape[:-1]:
            raise ShapeMismatch(f"inverse must have shape {list(q.shape[:-1])}; found {list(inverse.shape)}.")
        if inverse is not None:
            check_values("inverse", inverse)
        if multiplicity is None:
            multiplicity = k.new_ones(k.shape[:1] if packed else (k.shape[0], k.shape[2]))
        return cls(
            q,
            k,
            multiplicity,
            offsets,
            query_offsets,
            targets,
            regulators,
            inverse,
            _head_weights(heads, q),
            eps,
            dtype,
        )


def _head_weights(heads: Tensor | None, q: Tensor) -> Tensor:
    """The weight of each head in the mean, [H] float64, their sum 1; heads [H]: any weights, None for equal ones."""
    count = q.shape[1]
    if heads is None:
        return torch.full((count,), 1 / max(1, count), dtype=torch.float64, device=q.device)
    if heads.shape != (count,):
        raise ShapeMismatch(f"heads must have shape [{count}]; found {list(heads.shape)}.")
    wide = heads.to(q.device, torch.float64)
    if not bool((wide >= 0).all() & (wide.sum() > 0) & wide.isfinite().all()):
        raise ValueError(f"heads must be finite, not negative and not all 0; found {heads.tolist()}.")
    return wide / wide.sum()
