"""The two plainest monoids: a sum, and a mean with weights.

Letters: n items; "..." an item's own shape, equal for all items.
"""

from __future__ import annotations

import torch
from torch import Tensor

from flashsign.algebra.monoid import Monoid, Total, add, constants, first, pass_on


def _combine_weighted(a: Total, b: Total) -> Total:
    (a_mean, a_weight), (b_mean, b_weight) = a, b
    weight = a_weight + b_weight
    a_part, b_part = _ratio(a_weight, weight)[..., None], _ratio(b_weight, weight)[..., None]
    return a_part * a_mean + b_part * b_mean, weight


def _local_weighted(combined: Total, item: Total, grad: Total) -> Total:
    (mean, weight), (item_mean, item_weight), (d_mean, d_weight) = combined, item, grad
    one = torch.ones_like(weight)
    d_item_weight = d_weight + (d_mean * (item_mean - mean)).sum(-1) * _ratio(one, weight)
    return d_mean * _ratio(item_weight, weight)[..., None], d_item_weight


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    """part / whole, and 0 where the whole is 0: there two identities are combined."""
    empty = whole == 0
    return torch.where(empty, 0.0, part / torch.where(empty, 1.0, whole))


def _items(items: Total, shared: Total) -> Total:
    return items


SUM = Monoid("sum", constants(0.0), _items, add, first, pass_on)
"""Items (x [n, ...],) -> sum of x."""

WEIGHTED_MEAN = Monoid("weighted mean", constants(0.0, 0.0), _items, _combine_weighted, first, _local_weighted)
"""Items (x [n, ..., E], w [n, ...] >= 0) -> sum w x / sum w [..., E], and the total weight; no weight gives 0."""
