"""Softmax attention as a log-weighted sum: totals (z, v), z the log of all weights and v the mean under them.

Letters: N queries, M keys (items), E width. Sources: FlashAttention, arXiv 2205.14135; kernels/README.md, "Folds".
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from flashsign.algebra.monoid import Monoid, Total, constants


def log_add(a: Tensor, b: Tensor) -> Tensor:
    """log(e^a + e^b), element by element. For two -inf it is -inf with gradient 0, where torch.logaddexp's is NaN."""
    top = torch.maximum(a, b).detach()
    nothing = top == -math.inf
    top = torch.where(nothing, 0.0, top)
    total = (a - top).exp() + (b - top).exp()
    return torch.where(nothing, -math.inf, top + torch.where(nothing, 1.0, total).log())


def relative_weight(part: Tensor, whole: Tensor) -> Tensor:
    """e^(part - whole), and 0 where the whole is -inf: there two identities are combined."""
    nothing = whole == -math.inf
    return torch.where(nothing, 0.0, (part - torch.where(nothing, 0.0, whole)).exp())


def _lift(items: Total, shared: Total) -> Total:
    (k, v, m), (q,) = items, shared
    absent = (m == 0)[:, None]
    z = torch.where(absent, -math.inf, k @ q.mT + torch.where(absent, 1.0, m[:, None]).log())
    # The lift of an absent item must be the identity, whose value is 0.
    v = torch.where(absent, 0.0, v)
    return z, v[:, None].expand(*z.shape, v.shape[-1])


def _combine(a: Total, b: Total) -> Total:
    (a_z, a_v), (b_z, b_v) = a, b
    z = log_add(a_z, b_z)
    return z, a_v * relative_weight(a_z, z)[..., None] + b_v * relative_weight(b_z, z)[..., None]


def _local(combined: Total, item: Total, grad: Total) -> Total:
    (z, v), (item_z, item_v), (d_z, d_v) = combined, item, grad
    weight = relative_weight(item_z, z)
    return (d_z + (d_v * (item_v - v)).sum(-1)) * weight, d_v * weight[..., None]


def _finish(total: Total, shared: Total) -> Tensor:
    return total[1]


SOFTMAX = Monoid("softmax attention", constants(-math.inf, 0.0), _lift, _combine, _finish, _local)
"""Items (k [M, E], v [M, E], multiplicity [M]), shared (q [N, E],), q scaled already -> attention [N, E].

A multiplicity is a repetition here: the score is q . k + log m, and m = 0 is absent, with gradient 0 for that m.
No keys give zeros.
"""
