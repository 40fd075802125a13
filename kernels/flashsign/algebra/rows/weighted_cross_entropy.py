"""Cross entropy with given weights of a few classes, whose sum W need not be one: a cell's multiplicities over genes.

The loss of a row is W log sum_j e^x_j - sum_j w_j x_j, so dx_j = W softmax(x)_j - w_j. (Leaving out W is right only
where the weights add up to one.)

Letters: N rows, V classes (items), n of them in a slice, L listed classes of a row, D width. Source: kernels/README.md,
"Folds".
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from flashsign.algebra.monoid import Gradients, Monoid, Total, constants, wide
from flashsign.algebra.rows.class_cross_entropy import combine, local, logits, of_logits, within


def _lift(items: Total, shared: Total) -> Total:
    (*layer, positions), (h, classes, weights, _) = items, shared
    x = logits(h, tuple(layer)).mT
    w = ((classes == positions[:, None, None]) * wide(weights)).sum(-1)
    return x, w, w * x


def _finish(total: Total, shared: Total) -> Tensor:
    p, w, n = total
    return w * p - n


def _proj_fold(a: Total, b: Total) -> Total:
    (h, classes, weights, _), (*layer, positions) = a, b
    x = logits(h, tuple(layer))
    at, inside = within(classes, positions)
    listed = torch.where(inside, wide(weights), 0.0)
    return torch.logsumexp(x, -1), listed.sum(-1), (listed * x.gather(1, at)).sum(-1)


def _proj_fold_bwd(a: Total, b: Total, p: Total, gp: Total) -> tuple[Gradients, Gradients]:
    (h, classes, weights, _), (*layer, positions), (d_p, d_w, d_n) = a, b, gp
    x = logits(h, tuple(layer))
    at, inside = within(classes, positions)
    d_weights = torch.where(inside, d_w[:, None] + d_n[:, None] * x.gather(1, at), 0.0)
    d_x = x.sub_(p[0][:, None]).exp_().mul_(d_p[:, None])
    d_x = d_x.scatter_add(1, at, torch.where(inside, wide(weights) * d_n[:, None], 0.0))
    d_h, *d_layer = of_logits(d_x, h, tuple(layer))
    return (d_h, None, d_weights, None), (*d_layer, None)


WEIGHTED_CROSS_ENTROPY = Monoid(
    "cross entropy with weights",
    constants(-math.inf, 0.0, 0.0),
    _lift,
    combine,
    _finish,
    local,
    proj_fold=_proj_fold,
    proj_fold_bwd=_proj_fold_bwd,
    numbered=True,
    needs_items=True,
    forms=tuple(f"(C [V, D]{bias}), shared (h [N, D], classes [N, L], weights [N, L])" for bias in ("", ", bias [V]")),
)
"""Items (C [V, D],) or (C, bias [V]), shared (h [N, D], classes int64 [N, L], weights [N, L]) -> loss of each row [N].

Row i has weights[i, l] on class classes[i, l]; classes below 0 are padding, a class listed twice has both weights.
Gradients go to h, C, bias and weights. Logits and sums are float32 at least.
"""
