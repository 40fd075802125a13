"""Cross entropies behind a linear layer, without its logits in memory: with classes, distributions,
or given weights.

Each is a fold over classes (folds.algebra.monoids), in torch or by a GPU's kernels (folds.kernels);
here are shapes, dtypes, reductions and mistakes.
Letters: N rows, V classes, D and D' widths, L listed classes of a row, T listed classes of all
rows.
Sources: cut cross-entropy, arXiv 2411.09009; Liger kernels, arXiv 2410.10989; MonoidReduce, A. Cuba
Gyllensten, 2025.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from flashsign.attention.dispatch import Backend
from flashsign.attention.validation import (
    check_cut,
    check_layer,
    check_offsets,
    is_whole,
    largest_bag_size,
)
from flashsign.eager.transforms import as_autocast
from flashsign.errors import ShapeMismatch
from flashsign.folds.algebra.monoids.cross_entropies import (
    DISTRIBUTION_CROSS_ENTROPY,
    WEIGHTED_CROSS_ENTROPY,
    class_cross_entropy,
)
from flashsign.folds.algebra.reduce import monoid_reduce
from flashsign.folds.layers.backend import choose_fold
from flashsign.folds.layers.by_kernels import class_losses, distribution_losses, weighted_losses

Reduction = Literal["none", "sum", "mean"]
CHUNK = 1024
"""Rows and classes of a slice in torch: 4 MiB of float32 logits."""


def linear_cross_entropy(
    h: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    *,
    row_weights: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
    row_chunk: int = CHUNK,
    class_chunk: int = CHUNK,
    backend: Backend = "auto",
) -> Tensor:
    """Return cross_entropy(h @ weight.T + bias, target), whose logits [N, V] exist one slice at a
    time.

    h [..., D], weight [V, D], target int [...], bias [V] or None, one floating dtype -> float32 at
    least: [...] for reduction "none", else a number. float16 and bfloat16 have float32 logits and
    sums, and on a CPU float32 gradients until their last rounding; on a GPU the gradients of logits
    are rounded before they are multiplied. Their bias may be float32. "mean" is over the rows whose
    target is not ignore_index; without such rows it is NaN, as in torch.
    row_weights [...]: what the losses are multiplied with, in float32 at least; "mean" then divides
        by their sum.
    Memory: inputs, gradients and, in torch, a slice of row_chunk x class_chunk logits, by kernels
        the gradients of 128 MiB of logits. backend: "auto" takes kernels on CUDA where they can
        run. Differentiable in h, weight, bias and row_weights.
    Raises ShapeMismatch, and ValueError for a target that is no class (on a GPU, where looking
    would synchronise, and in compiled code its loss is NaN), an unknown reduction or backend.

    Example:
        >>> import torch
        >>> from flashsign import linear_cross_entropy
        >>> h, weight, target = torch.randn(6, 8), torch.randn(50, 8), torch.randint(0, 50, (6,))
        >>> loss = linear_cross_entropy(h, weight, target, label_smoothing=0.1)
        >>> expected = torch.nn.functional.cross_entropy(h @ weight.T, target, label_smoothing=0.1)
        >>> torch.allclose(loss, expected, atol=1e-5)
        True
    """
    h, weight = as_autocast(h, weight)
    kernels = choose_fold(backend, "logits", h, h.shape[-1:])
    check_layer(h, weight, bias)
    if target.shape != h.shape[:-1] or not is_whole(target) or target.device != h.device:
        raise ShapeMismatch(
            f"target must be integers {list(h.shape[:-1])} on {h.device}; found {target.dtype} "
            f"{list(target.shape)} on {target.device}."
        )
    if row_weights is not None and (
        row_weights.shape != target.shape or row_weights.device != h.device
    ):
        found = f"{list(row_weights.shape)} on {row_weights.device}"
        raise ShapeMismatch(
            f"row_weights must be {list(target.shape)} on {h.device}; found {found}."
        )
    rows, target = h.flatten(0, -2), target.flatten().long()
    classes = len(weight)
    ignored = target == ignore_index
    target = torch.where(ignored, -100, target)  # below 0, so that it is no class
    wrong = ~ignored & ((target < 0) | (target >= classes))
    monoid = class_cross_entropy(classes, label_smoothing=label_smoothing)

    def plain(h: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor) -> Tensor:
        layer = (weight,) if bias is None else (weight, bias)
        return monoid_reduce(monoid, (h, target), layer, a_chunk=row_chunk, b_chunk=class_chunk)

    if kernels == "triton" and classes:
        losses = class_losses(plain, rows, weight, bias, target, label_smoothing)
    else:
        losses = plain(rows, weight, bias, target)
    losses = torch.where(wrong, torch.nan, losses)
    if row_weights is None:
        return _reduced(losses, h.shape[:-1], reduction, (~ignored).sum())
    shares = torch.where(ignored, 0.0, row_weights.flatten().to(losses.dtype))
    return _reduced(shares * losses, h.shape[:-1], reduction, shares.sum())


def distribution_cross_entropy(
    student: Tensor,
    student_weight: Tensor,
    teacher: Tensor,
    teacher_weight: Tensor,
    *,
    reduction: Reduction = "mean",
    row_chunk: int = CHUNK,
    class_chunk: int = CHUNK,
    backend: Backend = "auto",
) -> Tensor:
    """Return -sum_j p_j log q_j of two distributions.

    q = softmax(student @ student_weight.T), p = softmax(teacher @ teacher_weight.T).

    student [..., D], student_weight [V, D], teacher [..., D'], teacher_weight [V, D'], one floating
    dtype -> float32 at least: [...] for reduction "none", else a number. Neither table of logits
    [N, V] exists. Gradients go to all four.
    Raises ShapeMismatch, ValueError for an unknown reduction or backend.

    Example:
        >>> import torch
        >>> from flashsign import distribution_cross_entropy
        >>> s, s_weight = torch.randn(6, 8), torch.randn(50, 8)
        >>> t, t_weight = torch.randn(6, 4), torch.randn(50, 4)
        >>> loss = distribution_cross_entropy(s, s_weight, t, t_weight)
        >>> p = (t @ t_weight.T).softmax(-1)
        >>> torch.allclose(loss, torch.nn.functional.cross_entropy(s @ s_weight.T, p), atol=1e-5)
        True
    """
    student, student_weight, teacher, teacher_weight = as_autocast(
        student, student_weight, teacher, teacher_weight
    )
    check_layer(student, student_weight, None, "student", "student_weight")
    check_layer(teacher, teacher_weight, None, "teacher", "teacher_weight")
    if student.shape[:-1] != teacher.shape[:-1] or len(student_weight) != len(teacher_weight):
        found = ", ".join(
            str(list(x.shape)) for x in (student, student_weight, teacher, teacher_weight)
        )
        raise ShapeMismatch(
            f"Student and teacher must have the same rows and the same classes; found {found}."
        )

    def plain(s: Tensor, s_layer: Tensor, t: Tensor, t_layer: Tensor) -> Tensor:
        rows, layers = (s, t), (s_layer, t_layer)
        return monoid_reduce(
            DISTRIBUTION_CROSS_ENTROPY,
            rows,
            layers,
            a_chunk=row_chunk,
            b_chunk=class_chunk,
        )

    tensors = student.flatten(0, -2), student_weight, teacher.flatten(0, -2), teacher_weight
    same = student.dtype == teacher.dtype and student.device == teacher.device
    kernels = choose_fold(backend, "logits", student, (student.shape[-1], teacher.shape[-1]))
    fast = kernels == "triton" and same and len(student_weight) > 0
    losses = distribution_losses(plain, *tensors) if fast else plain(*tensors)
    return _reduced(losses, student.shape[:-1], reduction)


def weighted_cross_entropy(
    h: Tensor,
    weight: Tensor,
    classes: Tensor,
    weights: Tensor,
    bias: Tensor | None = None,
    *,
    offsets: Tensor | None = None,
    reduction: Reduction = "mean",
    row_chunk: int = CHUNK,
    class_chunk: int = CHUNK,
    backend: Backend = "auto",
) -> Tensor:
    """Return -sum_j w_ij log softmax(h @ weight.T + bias)_ij.

    The weights are of a few classes of every row, such as a cell's counts.

    h [N, D], weight [V, D], bias [V] or None. Dense: classes int [N, L], or [L] where all rows list
    the same, weights [N, L]; classes below 0 are padding. Packed: classes and weights [T], offsets
    [N + 1]; row i has the slice offsets[i]:offsets[i + 1]. -> float32 at least: [N] for reduction
    "none", else a number; "mean" is over rows. The weights of a row need not add up to one: a row
    without any has loss 0. Gradients go to h, weight, bias and weights.
    Raises ShapeMismatch, and ValueError for numbers above the classes (on a GPU the loss of their
    row is NaN), an unknown reduction or backend.

    Example:
        >>> import torch
        >>> from flashsign import weighted_cross_entropy
        >>> h, weight = torch.randn(3, 8), torch.randn(50, 8)
        >>> counts = torch.tensor([[2.0, 1.0], [0.0, 4.0], [1.0, 1.0]])  # of classes 7 and 9
        >>> classes = torch.tensor([7, 9])
        >>> losses = weighted_cross_entropy(h, weight, classes, counts, reduction="none")
        >>> log_softmax = (h @ weight.T).log_softmax(-1)
        >>> torch.allclose(losses, -(counts * log_softmax[:, classes]).sum(-1), atol=1e-4)
        True
    """
    h, weight = as_autocast(h, weight)
    kernels = choose_fold(backend, "logits", h, h.shape[-1:])
    check_layer(h, weight, bias)
    if h.ndim != 2:
        raise ShapeMismatch(f"h must be [N, D]; found {list(h.shape)}.")
    if len({x.device for x in (h, classes, weights)}) > 1:
        raise ShapeMismatch(
            f"classes and weights must be on h's device {h.device}; found {classes.device}, "
            f"{weights.device}."
        )
    if not is_whole(classes) or not weights.is_floating_point():
        raise ShapeMismatch(
            f"classes must be integers and weights of a floating dtype; found {classes.dtype} and "
            f"{weights.dtype}."
        )
    if offsets is not None:
        check_offsets("offsets", offsets, h)
        if offsets.shape != (len(h) + 1,) or classes.ndim != 1 or classes.shape != weights.shape:
            found = f"{list(offsets.shape)}, {list(classes.shape)}, {list(weights.shape)}"
            raise ShapeMismatch(
                f"Packed: offsets [{len(h) + 1}], classes and weights [T]; found {found}."
            )
        check_cut("offsets", offsets, len(classes))
        classes, weights = _padded(classes.long(), weights, offsets)
    given = list(classes.shape)
    if offsets is None and classes.ndim == 1:
        classes = classes.expand(len(h), -1)
    if classes.shape != weights.shape or len(classes) != len(h):
        hint = "; for packed rows, pass offsets" if weights.ndim == 1 else ""
        raise ShapeMismatch(
            f"classes and weights must be [{len(h)}, L], a row of h each; found classes {given} "
            f"and weights {list(weights.shape)}{hint}."
        )
    wrong = (classes >= len(weight)).any(-1)
    if h.device.type == "cpu" and bool(wrong.any()):
        raise ValueError(
            f"classes has {int(classes.max())}, and weight has only {len(weight)} classes."
        )
    classes = classes.long()

    def plain(
        h: Tensor, weight: Tensor, bias: Tensor | None, classes: Tensor, weights: Tensor
    ) -> Tensor:
        rows, layer = (h, classes, weights), (weight,) if bias is None else (weight, bias)
        return monoid_reduce(
            WEIGHTED_CROSS_ENTROPY,
            rows,
            layer,
            a_chunk=row_chunk,
            b_chunk=class_chunk,
        )

    if kernels == "triton" and len(weight):
        losses = weighted_losses(plain, h, weight, bias, classes, weights)
    else:
        losses = plain(h, weight, bias, classes, weights)
    return _reduced(torch.where(wrong, torch.nan, losses), h.shape[:1], reduction)


def _padded(classes: Tensor, weights: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Return packed lists [T] as [N, L], padded with class -1 and weight 0."""
    sizes = offsets.diff()
    longest = largest_bag_size(offsets)
    column = torch.arange(longest, device=classes.device)
    there = column < sizes[:, None]
    at = torch.where(there, offsets[:-1, None] + column, 0)
    if not len(classes):
        return classes.new_empty(len(sizes), 0), weights.new_empty(len(sizes), 0)
    return torch.where(there, classes[at], -1), torch.where(there, weights[at], 0)


def _reduced(
    losses: Tensor, shape: torch.Size, reduction: Reduction, count: Tensor | None = None
) -> Tensor:
    """Return losses [N] as [*shape], their sum, or their mean over `count` rows (None: all)."""
    if reduction == "none":
        return losses.reshape(shape)
    if reduction == "sum":
        return losses.sum()
    if reduction == "mean":
        return losses.mean() if count is None else losses.sum() / count
    raise ValueError(f"reduction must be none, sum or mean, not {reduction!r}.")
