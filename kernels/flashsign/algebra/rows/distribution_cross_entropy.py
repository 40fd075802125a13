"""Cross entropy of two distributions over the same classes, each given by a product of matrices that is never stored.

The student's logits are q_j = s . S_j, the teacher's p_j = t . T_j. The total of a row is the log-sum-exp of each and
n, the mean of the student's logits under the teacher. Its gradient also has what the teacher has to learn.

Letters: N rows, V classes (items), D and D' widths. Source: MonoidReduce, A. Cuba Gyllensten, 2025; kernels/README.md,
"Folds".
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from flashsign.algebra.monoid import Monoid, Total, constants, wide
from flashsign.algebra.rows.exponentials import log_add, relative_weight
from flashsign.eager.products import wide_product


def _lift(items: Total, shared: Total) -> Total:
    q, p = (wide(c) @ wide(h).mT for c, h in zip(items, shared, strict=True))
    return q, p, q


def _combine(a: Total, b: Total) -> Total:
    (a_q, a_p, a_n), (b_q, b_p, b_n) = a, b
    p = log_add(a_p, b_p)
    return log_add(a_q, b_q), p, a_n * relative_weight(a_p, p) + b_n * relative_weight(b_p, p)


def _local(combined: Total, item: Total, grad: Total) -> Total:
    (q, p, n), (item_q, item_p, item_n), (d_q, d_p, d_n) = combined, item, grad
    weight = relative_weight(item_p, p)
    return d_q * relative_weight(item_q, q), (d_p + d_n * (item_n - n)) * weight, d_n * weight


def _finish(total: Total, shared: Total) -> Tensor:
    q, _, n = total
    return q - n


def _proj_fold(a: Total, b: Total) -> Total:
    q, p = (wide_product(h, c.mT) for h, c in zip(a, b, strict=True))
    log_p = torch.logsumexp(p, -1)
    return torch.logsumexp(q, -1), log_p, ((p - log_p[:, None]).exp_() * q).sum(-1)


def _proj_fold_bwd(a: Total, b: Total, total: Total, grad: Total) -> tuple[Total, Total]:
    (s, t), (c_s, c_t), (log_q, log_p, n), (g_q, g_p, g_n) = a, b, total, grad
    q, teacher = wide_product(s, c_s.mT), wide_product(t, c_t.mT).sub_(log_p[:, None]).exp_()
    d_p = (q - n[:, None]).mul_(g_n[:, None]).add_(g_p[:, None]).mul_(teacher)
    d_q = q.sub_(log_q[:, None]).exp_().mul_(g_q[:, None]).add_(teacher.mul_(g_n[:, None]))
    return (wide_product(d_q, c_s), wide_product(d_p, c_t)), (wide_product(d_q.mT, s), wide_product(d_p.mT, t))


DISTRIBUTION_CROSS_ENTROPY = Monoid(
    "cross entropy of two distributions",
    constants(-math.inf, -math.inf, 0.0),
    _lift,
    _combine,
    _finish,
    _local,
    proj_fold=_proj_fold,
    proj_fold_bwd=_proj_fold_bwd,
    needs_items=True,
    forms=("(S [V, D], T [V, D']), shared (s [N, D], t [N, D'])",),
)
"""Items (S [V, D], T [V, D']), shared (s [N, D], t [N, D']) -> -sum_j softmax(t T^T)_j log softmax(s S^T)_j, [N].

Gradients go to all four. Logits and sums are float32 at least.
"""
