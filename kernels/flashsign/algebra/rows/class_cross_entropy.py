"""Cross entropy with a linear layer before it: logits x_j = h . C_j + b_j of all classes, never stored.

The total of a row is p = log sum_j e^x_j and n, what the target has: x_t, or with label smoothing a mean of logits.

Letters: N rows, V classes (items), n of them in a slice, D width. Source: kernels/README.md, "Folds"; cut
cross-entropy, arXiv 2411.09009.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from flashsign.algebra.monoid import Gradients, Monoid, Total, constants, wide
from flashsign.algebra.rows.exponentials import log_add, relative_weight
from flashsign.arguments import checked
from flashsign.eager.products import wide_product
from flashsign.validation import is_plain


@checked
def class_cross_entropy(classes: int, *, label_smoothing: float = 0.0, ignore_index: int = -100) -> Monoid:
    """Items (C [V, D],) or (C, bias [V]), shared (h [N, D], target int64 [N]) -> the loss of each row [N].

    classes: V; label_smoothing: weight that is spread evenly over all classes; rows with target ignore_index have loss
    and gradient 0. Logits and sums are float32 at least. finish raises ValueError for a target that is no class (on a
    CPU, outside of transforms and of bags).

    Example:
        >>> import torch
        >>> from flashsign import class_cross_entropy, monoid_reduce
        >>> h, weight, target = torch.randn(6, 8), torch.randn(50, 8), torch.randint(0, 50, (6,))
        >>> losses = monoid_reduce(class_cross_entropy(50), (h, target), (weight,))
        >>> torch.allclose(losses, torch.nn.functional.cross_entropy(h @ weight.T, target, reduction="none"), atol=1e-5)
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
        combine,
        finish,
        local,
        proj_fold=proj_fold,
        proj_fold_bwd=proj_fold_bwd,
        numbered=True,
        needs_items=True,
        forms=tuple(f"(C [V, D]{bias}), shared (h [N, D], target [N])" for bias in ("", ", bias [V]")),
    )


def _refuse_no_class(target: Tensor, classes: int, ignore_index: int) -> None:
    """Raises ValueError for a target that is no class, where its values are data on a CPU; on a GPU none is read."""
    if torch.compiler.is_compiling() or target.device.type != "cpu" or not is_plain(target):
        return
    wrong = (target != ignore_index) & ((target < 0) | (target >= classes))
    if bool(wrong.any()):
        raise ValueError(f"target has {int(target[wrong][0])}, which is none of the {classes} classes.")


def combine(a: Total, b: Total) -> Total:
    """The first number of a total is a log-sum-exp, the others are sums."""
    return log_add(a[0], b[0]), *(x + y for x, y in zip(a[1:], b[1:], strict=True))


def local(combined: Total, item: Total, grad: Total) -> Total:
    """p: g_p e^(a_p - c_p); sums: g."""
    return grad[0] * relative_weight(item[0], combined[0]), *grad[1:]


def logits(h: Tensor, layer: Total) -> Tensor:
    """h [N, D], layer (C [n, D],) or (C, bias [n]) -> [N, n], float32 at least."""
    c, *bias = layer
    x = wide_product(h, c.mT)
    return x + wide(bias[0]) if bias else x


def of_logits(d_x: Tensor, h: Tensor, layer: Total) -> Total:
    """Gradients for h, C and the bias, if there is one, from those of the logits [N, n]."""
    bias = (d_x.sum(0),) if len(layer) > 1 else ()
    return wide_product(d_x, layer[0]), wide_product(d_x.mT, h), *bias


def within(classes: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Where classes [N, L] are among the consecutive positions [n] (0 where they are not), and whether they are."""
    at = classes - positions[:1]
    inside = (at >= 0) & (at < len(positions))
    return torch.where(inside, at, 0), inside
