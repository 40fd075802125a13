"""The plainest monoids: a sum, sums and means with weights, a largest number, a product, the
squares of RMSNorm.

Letters: n items; "..." an item's own shape, equal for all items.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from flashsign.folds.algebra.monoid import (
    Monoid,
    Total,
    add,
    as_they_are,
    constants,
    first,
    pass_on,
    wide,
)


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
    """Return part / whole, and 0 where the whole is 0: there two identities are combined."""
    empty = whole == 0
    return torch.where(empty, 0.0, part / torch.where(empty, 1.0, whole))


def _lift_largest(items: Total, shared: Total) -> Total:
    (x,) = items
    return x, torch.ones_like(x)


def _combine_largest(a: Total, b: Total) -> Total:
    (a_x, a_times), (b_x, b_times) = a, b
    x = torch.where(a_x >= b_x, a_x, b_x)
    # Minus infinity is the identity, which no item attains.
    return x, (a_times * (a_x == x) + b_times * (b_x == x)).detach()


def _local_largest(combined: Total, item: Total, grad: Total) -> Total:
    (x, times), (item_x, item_times), (d_x, d_times) = combined, item, grad
    attains = (item_x == x) & (times > 0)
    return torch.where(
        attains, d_x * item_times / torch.where(times > 0, times, 1.0), 0.0
    ), torch.zeros_like(d_times)


SUM = Monoid(
    "sum",
    constants(0.0),
    as_they_are,
    add,
    first,
    pass_on,
    broadcasts=True,
)
"""Items (x [n, ...],) -> sum of x."""

WEIGHTED_MEAN = Monoid(
    "weighted mean",
    constants(0.0, 0.0),
    as_they_are,
    _combine_weighted,
    first,
    _local_weighted,
    broadcasts=True,
)
"""Items (x [n, ..., E], w [n, ...] >= 0) -> sum w x / sum w [..., E], and the total weight; no
weight gives 0.
"""

WEIGHTED_SUM = replace(
    WEIGHTED_MEAN, name="weighted sum", finish=lambda total, _: total[0] * total[1][..., None]
)
"""Items (x [n, ..., E], w [n, ...] >= 0) -> sum w x [..., E], as the mean times the total weight.
"""

MAX = Monoid(
    "largest",
    constants(-math.inf, 0.0),
    _lift_largest,
    _combine_largest,
    first,
    _local_largest,
    needs_items=True,
    broadcasts=True,
)
"""Items (x [n, ...],) -> the largest x, and how many items attain it; these share its gradient
evenly, as in amax.
"""

PRODUCT = Monoid(
    "product",
    constants(1.0),
    as_they_are,
    lambda a, b: (a[0] * b[0],),
    first,
    broadcasts=True,
)
"""Items (x [n, ...],) -> product of x. It has no D: where one x is 0, a total and an item do not
tell the others.
"""


def rms_norm_monoid(eps: float = 1e-6) -> Monoid:
    """Return the monoid of items (x [D, ...],) with shared (x,), the same tensor -> x / sqrt(mean
    over D of x^2 + eps), [D, ...].

    The finish reads x too: dx = g / r + 2 x g_z with r = sqrt(z / D + eps), g_z = -<g, x> / (2 D
    r^3). Source: RMSNorm, arXiv 1910.07467.

    Example:
        >>> import torch
        >>> from flashsign import fold, rms_norm_monoid
        >>> x, monoid = torch.randn(8, 5), rms_norm_monoid(1e-6)  # 8 features of 5 rows
        >>> output = monoid.finish(fold(monoid, (x,), (x,)), (x,))
        >>> torch.allclose(output.T, torch.nn.functional.rms_norm(x.T, (8,), eps=1e-6), atol=1e-5)
        True
    """

    def lift(items: Total, shared: Total) -> Total:
        return (wide(items[0]).square(),)

    def finish(total: Total, shared: Total) -> Tensor:
        (z,), (x,) = total, shared
        return wide(x) / (z / max(1, len(x)) + eps).sqrt()

    return Monoid(
        "RMSNorm",
        constants(0.0),
        lift,
        add,
        finish,
        pass_on,
        broadcasts=True,
    )
