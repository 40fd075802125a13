"""Cross entropies with a linear layer before them: logits x_j = h . C_j + b_j of all classes, never
stored.

With classes: the total of a row is p = log sum_j e^x_j and n, what the target has: x_t, or with
label smoothing a mean of logits. Of two distributions: the student's logits are q_j = s . S_j, the
teacher's p_j = t . T_j; the total is the log-sum-exp of each and n, the mean of the student's
logits under the teacher, whose gradient also has what the teacher has to learn. With given weights
of a few classes, whose sum W need not be one (a cell's multiplicities over genes): the loss is W
log sum_j e^x_j - sum_j w_j x_j, so dx_j = W softmax(x)_j - w_j; leaving out W is right only where
the weights add up to one.

Letters: N rows, V classes (items), n of them in a slice, L listed classes of a row, D and D'
widths. Sources:
MonoidReduce, A. Cuba Gyllensten, 2025; kernels/README.md, "Folds"; cut cross-entropy, arXiv
2411.09009.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from flashsign.attention.validation import is_plain
from flashsign.eager.products import wide_product
from flashsign.folds.algebra.monoid import Gradients, Monoid, Total, constants, wide
from flashsign.folds.algebra.monoids.exponentials import (
    combine_logs,
    local_logs,
    log_add,
    relative_weight,
)


def class_cross_entropy(
    classes: int, *, label_smoothing: float = 0.0, ignore_index: int = -100
) -> Monoid:
    """Return the monoid of items (C [V, D],) or (C, bias [V]), shared (h [N, D], target int64 [N])
    -> the loss of each row [N].

    classes: V; label_smoothing: weight that is spread evenly over all classes; rows with target
        ignore_index have loss and gradient 0. Logits and sums are float32 at least. finish raises
        ValueError for a target that is no class (on a CPU, outside of transforms and of bags).

    Example:
        >>> import torch
        >>> from flashsign import class_cross_entropy, monoid_reduce
        >>> h, weight, target = torch.randn(6, 8), torch.randn(50, 8), torch.randint(0, 50, (6,))
        >>> losses = monoid_reduce(class_cross_entropy(50), (h, target), (weight,))
        >>> plain = torch.nn.functional.cross_entropy(h @ weight.T, target, reduction="none")
        >>> torch.allclose(losses, plain, atol=1e-5)
        True
    """
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing must be at least 0 and below 1, not {label_smoothing}.")
    on_target, on_all = 1 - label_smoothing, label_smoothing / max(1, classes)

    def lift(items: Total, shared: Total) -> Total:
        (*layer, positions), (h, target, _) = items, shared
        x = logits(h, tuple(layer)).mT
        return x, torch.where(positions[:, None] == target, (on_target + on_all) * x, on_all * x)

    def finish(total: Total, shared: Total) -> Tensor:
        (p, n), (_, target) = total, shared
        _refuse_no_class(target, classes, ignore_index)
        return torch.where(target == ignore_index, 0.0, p - n)

    def proj_fold(a: Total, b: Total) -> Total:
        (h, target, _), (*layer, positions) = a, b
        x = logits(h, tuple(layer))
        at, inside = within(target[:, None], positions)
        n = torch.where(inside, x.gather(1, at), 0.0)[:, 0] * on_target
        return torch.logsumexp(x, -1), n + on_all * x.sum(-1) if on_all else n

    def proj_fold_bwd(a: Total, b: Total, p: Total, gp: Total) -> tuple[Gradients, Gradients]:
        (h, target, _), (*layer, positions), (d_p, d_n) = a, b, gp
        d_x = logits(h, tuple(layer)).sub_(p[0][:, None]).exp_().mul_(d_p[:, None])
        if on_all:
            d_x += on_all * d_n[:, None]
        at, inside = within(target[:, None], positions)
        d_x = d_x.scatter_add(1, at, torch.where(inside, on_target * d_n[:, None], 0.0))
        d_h, *d_layer = of_logits(d_x, h, tuple(layer))
        return (d_h, None, None), (*d_layer, None)

    return Monoid(
        "cross entropy with classes",
        constants(-math.inf, 0.0),
        lift,
        combine_logs,
        finish,
        local_logs,
        proj_fold=proj_fold,
        proj_fold_bwd=proj_fold_bwd,
        numbered=True,
        needs_items=True,
        broadcasts=True,
    )


def _refuse_no_class(target: Tensor, classes: int, ignore_index: int) -> None:
    """Raise ValueError for a target that is no class, where its values are data on a CPU; on a GPU
    none is read.
    """
    if torch.compiler.is_compiling() or target.device.type != "cpu" or not is_plain(target):
        return
    wrong = (target != ignore_index) & ((target < 0) | (target >= classes))
    if bool(wrong.any()):
        raise ValueError(
            f"target has {int(target[wrong][0])}, which is none of the {classes} classes."
        )


def logits(h: Tensor, layer: Total) -> Tensor:
    """Return the logits [N, n] of h [N, D] and a layer (C [n, D],) or (C, bias [n]), float32 at
    least.
    """
    c, *bias = layer
    x = wide_product(h, c.mT)
    return x + wide(bias[0]) if bias else x


def of_logits(d_x: Tensor, h: Tensor, layer: Total) -> Total:
    """Return gradients for h, C and the bias, if there is one, from those of the logits [N, n]."""
    bias = (d_x.sum(0),) if len(layer) > 1 else ()
    return wide_product(d_x, layer[0]), wide_product(d_x.mT, h), *bias


def within(classes: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return where classes [N, L] are among the consecutive positions [n] (0 where they are not),
    and whether they are.
    """
    at = classes - positions[:1]
    inside = (at >= 0) & (at < len(positions))
    return torch.where(inside, at, 0), inside


def _lift_distributions(items: Total, shared: Total) -> Total:
    q, p = (wide(c) @ wide(h).mT for c, h in zip(items, shared, strict=True))
    return q, p, q


def _combine_distributions(a: Total, b: Total) -> Total:
    (a_q, a_p, a_n), (b_q, b_p, b_n) = a, b
    p = log_add(a_p, b_p)
    return log_add(a_q, b_q), p, a_n * relative_weight(a_p, p) + b_n * relative_weight(b_p, p)


def _local_distributions(combined: Total, item: Total, grad: Total) -> Total:
    (q, p, n), (item_q, item_p, item_n), (d_q, d_p, d_n) = combined, item, grad
    weight = relative_weight(item_p, p)
    return d_q * relative_weight(item_q, q), (d_p + d_n * (item_n - n)) * weight, d_n * weight


def _proj_fold_distributions(a: Total, b: Total) -> Total:
    q, p = (wide_product(h, c.mT) for h, c in zip(a, b, strict=True))
    log_p = torch.logsumexp(p, -1)
    return torch.logsumexp(q, -1), log_p, ((p - log_p[:, None]).exp_() * q).sum(-1)


def _proj_fold_bwd_distributions(
    a: Total, b: Total, total: Total, grad: Total
) -> tuple[Total, Total]:
    (s, t), (c_s, c_t), (log_q, log_p, n), (g_q, g_p, g_n) = a, b, total, grad
    q, teacher = wide_product(s, c_s.mT), wide_product(t, c_t.mT).sub_(log_p[:, None]).exp_()
    d_p = (q - n[:, None]).mul_(g_n[:, None]).add_(g_p[:, None]).mul_(teacher)
    d_q = q.sub_(log_q[:, None]).exp_().mul_(g_q[:, None]).add_(teacher.mul_(g_n[:, None]))
    return (wide_product(d_q, c_s), wide_product(d_p, c_t)), (
        wide_product(d_q.mT, s),
        wide_product(d_p.mT, t),
    )


DISTRIBUTION_CROSS_ENTROPY = Monoid(
    "cross entropy of two distributions",
    constants(-math.inf, -math.inf, 0.0),
    _lift_distributions,
    _combine_distributions,
    lambda total, _: total[0] - total[2],
    _local_distributions,
    proj_fold=_proj_fold_distributions,
    proj_fold_bwd=_proj_fold_bwd_distributions,
    needs_items=True,
    broadcasts=True,
)
"""Items (S [V, D], T [V, D']), shared (s [N, D], t [N, D']) -> -sum_j softmax(t T^T)_j log
softmax(s S^T)_j, [N].

Gradients go to all four. Logits and sums are float32 at least.
"""


def _lift_weighted(items: Total, shared: Total) -> Total:
    (*layer, positions), (h, classes, weights, _) = items, shared
    x = logits(h, tuple(layer)).mT
    w = ((classes == positions[:, None, None]) * wide(weights)).sum(-1)
    return x, w, w * x


def _proj_fold_weighted(a: Total, b: Total) -> Total:
    (h, classes, weights, _), (*layer, positions) = a, b
    x = logits(h, tuple(layer))
    at, inside = within(classes, positions)
    listed = torch.where(inside, wide(weights), 0.0)
    return torch.logsumexp(x, -1), listed.sum(-1), (listed * x.gather(1, at)).sum(-1)


def _proj_fold_bwd_weighted(a: Total, b: Total, p: Total, gp: Total) -> tuple[Gradients, Gradients]:
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
    _lift_weighted,
    combine_logs,
    lambda total, _: total[1] * total[0] - total[2],
    local_logs,
    proj_fold=_proj_fold_weighted,
    proj_fold_bwd=_proj_fold_bwd_weighted,
    numbered=True,
    needs_items=True,
    broadcasts=True,
)
"""Items (C [V, D],) or (C, bias [V]), shared (h [N, D], classes int64 [N, L], weights [N, L]) ->
loss of each row [N].

Row i has weights[i, l] on class classes[i, l]; classes below 0 are padding, a class listed twice
has both weights. Gradients go to h, C, bias and weights. Logits and sums are float32 at least.
"""
