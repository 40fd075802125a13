"""Softmax attention as a log-weighted mean: totals (z, v), z the log of all weights and v the mean under them.

Letters: N queries, M keys (items), n of them in a slice, E width. Sources: FlashAttention, arXiv 2205.14135;
kernels/README.md, "Folds".
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from flashsign.algebra.monoid import Monoid, Total, constants, wide
from flashsign.algebra.rows.exponentials import combine_means, local_means, relative_weight


def _scores(q: Tensor, k: Tensor, m: Tensor) -> Tensor:
    """q . k + log m, and -inf for absent keys: [N, n]."""
    absent = m == 0
    return torch.where(absent, -math.inf, q @ k.mT + torch.where(absent, 1.0, m).log())


def _lift(items: Total, shared: Total) -> Total:
    (k, v, m), (q,) = (map(wide, x) for x in (items, shared))
    # The lift of an absent item must be the identity, whose value is 0.
    v = torch.where((m == 0)[:, None], 0.0, v)
    z = _scores(q, k, m).mT
    return z, v[:, None].expand(*z.shape, v.shape[-1])


def _finish(total: Total, shared: Total) -> Tensor:
    return total[1]


def _proj_fold(a: Total, b: Total) -> Total:
    (q,), (k, v, m) = (map(wide, x) for x in (a, b))
    scores = _scores(q, k, m)
    z = torch.logsumexp(scores, -1)
    return z, relative_weight(scores, z[:, None]) @ v


def _proj_fold_bwd(a: Total, b: Total, p: Total, gp: Total) -> tuple[Total, Total]:
    (q,), (k, v, m), (z, mean), (d_z, d_mean) = (*(map(wide, x) for x in (a, b)), p, gp)
    weight = relative_weight(_scores(q, k, m), z[:, None])
    d_scores = d_mean @ v.mT
    d_scores += (d_z - (d_mean * mean).sum(-1))[:, None]
    d_scores *= weight
    d_m = torch.where(m == 0, 0.0, d_scores.sum(0) / torch.where(m == 0, 1.0, m))
    return (d_scores @ k,), (d_scores.mT @ q, weight.mT @ d_mean, d_m)


SOFTMAX = Monoid(
    "softmax attention",
    constants(-math.inf, 0.0),
    _lift,
    combine_means,
    _finish,
    local_means,
    proj_fold=_proj_fold,
    proj_fold_bwd=_proj_fold_bwd,
    forms=("(k [M, E], v [M, V], multiplicity [M]), shared (q [N, E])",),
)
"""Items (k [M, E], v [M, E], multiplicity [M]), shared (q [N, E],), q scaled already -> attention [N, E].

A multiplicity is a repetition here: the score is q . k + log m, and m = 0 is absent, with gradient 0 for that m.
No keys give zeros.
"""
