"""Sums of exponentials that neither overflow nor vanish: by their logarithm, or beside the largest
exponent.

Letters: n items, E width; "..." an item's own shape. Sources: FlashAttention, arXiv 2205.14135;
safe exponential sums, heidemann.me/blog/2026-03-06-attention-monoid; kernels/README.md, "Folds".
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from flashsign.folds.algebra.monoid import Monoid, Total, as_they_are, constants, first


def log_add(a: Tensor, b: Tensor) -> Tensor:
    """Return log(e^a + e^b), element by element.

    For two -inf it is -inf with gradient 0, where torch.logaddexp's is NaN.
    """
    top = torch.maximum(a, b).detach()
    nothing = top == -math.inf
    top = torch.where(nothing, 0.0, top)
    total = (a - top).exp() + (b - top).exp()
    return torch.where(nothing, -math.inf, top + torch.where(nothing, 1.0, total).log())


def relative_weight(part: Tensor, whole: Tensor) -> Tensor:
    """Return e^(part - whole), and 0 where the whole is -inf: there two identities are combined."""
    nothing = whole == -math.inf
    return torch.where(nothing, 0.0, (part - torch.where(nothing, 0.0, whole)).exp())


def combine_logs(a: Total, b: Total) -> Total:
    """Combine totals whose first number is a log-sum-exp, and whose others, if any, are sums."""
    return log_add(a[0], b[0]), *(x + y for x, y in zip(a[1:], b[1:], strict=True))


def local_logs(combined: Total, item: Total, grad: Total) -> Total:
    """Return the gradients of combine_logs; p: g_p e^(a_p - c_p); sums: g."""
    return grad[0] * relative_weight(item[0], combined[0]), *grad[1:]


def combine_means(a: Total, b: Total) -> Total:
    """Combine totals (z [...], v [..., E]): z the log of all weights, v the mean under them."""
    (a_z, a_v), (b_z, b_v) = a, b
    z = log_add(a_z, b_z)
    return z, a_v * relative_weight(a_z, z)[..., None] + b_v * relative_weight(b_z, z)[..., None]


def local_means(combined: Total, item: Total, grad: Total) -> Total:
    """Return the gradients of combine_means; z: (g_z + <g_v, a_v - c_v>) e^(a_z - c_z); v: g_v
    e^(a_z - c_z).
    """
    (z, v), (item_z, item_v), (d_z, d_v) = combined, item, grad
    weight = relative_weight(item_z, z)
    return (d_z + (d_v * (item_v - v)).sum(-1)) * weight, d_v * weight[..., None]


def _combine_safe(a: Total, b: Total) -> Total:
    (a_v, a_x), (b_v, b_x) = a, b
    top = torch.maximum(a_x, b_x).detach()
    return a_v * relative_weight(a_x, top)[..., None] + b_v * relative_weight(b_x, top)[
        ..., None
    ], top


def _local_safe(combined: Total, item: Total, grad: Total) -> Total:
    (_, top), (item_v, item_x), (d_v, _) = combined, item, grad
    weight = relative_weight(item_x, top)
    return d_v * weight[..., None], (d_v * item_v).sum(-1) * weight


LOG_SUM_EXP = Monoid(
    "log-sum-exp",
    constants(-math.inf),
    as_they_are,
    combine_logs,
    first,
    local_logs,
    needs_items=True,
    broadcasts=True,
)
"""Items (x [n, ...],) -> log sum e^x."""

LOG_WEIGHTED_MEAN = Monoid(
    "log-weighted mean",
    constants(-math.inf, 0.0),
    as_they_are,
    combine_means,
    lambda total, _: total[1],
    local_means,
    broadcasts=True,
)
"""Items (z [n, ...], v [n, ..., E]) -> the mean of v under the weights e^z, [..., E]."""

LOG_WEIGHTED_SUM = replace(
    LOG_WEIGHTED_MEAN,
    name="log-weighted sum",
    finish=lambda total, _: total[0].exp()[..., None] * total[1],
)
"""Items (z [n, ...], v [n, ..., E]) -> sum e^z v [..., E]."""

SAFE_EXPONENTIAL_SUM = Monoid(
    "safe exponential sum",
    constants(0.0, -math.inf),
    as_they_are,
    _combine_safe,
    lambda total, _: total[1].exp()[..., None] * total[0],
    _local_safe,
    broadcasts=True,
)
"""Items (v [n, ..., E], x [n, ...]) -> sum e^x v [..., E]; the total is (e^-top sum e^x v, top),
top the largest x.

top is held constant in derivatives, which is exact for every finish that depends on e^top v alone,
such as a quotient of two of these.
"""
