"""Cross entropies behind a linear layer by the kernels of triton.folds, with their first derivatives.

plain: the same losses by flashsign.monoid_reduce, from the same tensors; second derivatives are its.
Letters: N rows, V classes, D and D' widths, L listed classes of a row.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from flashsign.eager.transforms import differentiable_gradients
from flashsign.operators.fold_gradients import around_kernels, beyond_kernels, contiguous

Plain = Callable[..., Tensor]


def _kernels() -> ModuleType:
    return importlib.import_module("flashsign.triton.folds.entropies")


def class_losses(
    plain: Plain, h: Tensor, c: Tensor, bias: Tensor | None, target: Tensor, label_smoothing: float
) -> Tensor:
    """h [N, D], c [V, D], bias [V], target int64 [N], below 0 where a row has none -> losses [N] float32."""
    tensors = contiguous(h), contiguous(c), contiguous(bias), contiguous(target)
    found: Tensor = _ClassLosses.apply(plain, *tensors, label_smoothing)  # type: ignore[no-untyped-call]
    return found


def weighted_losses(
    plain: Plain, h: Tensor, c: Tensor, bias: Tensor | None, classes: Tensor, weights: Tensor
) -> Tensor:
    """h [N, D], c [V, D], bias [V], classes int64 [N, L] (others are padding), weights [N, L] -> losses [N] float32."""
    tensors = contiguous(h), contiguous(c), contiguous(bias), contiguous(classes)
    found: Tensor = _WeightedLosses.apply(plain, *tensors, weights)  # type: ignore[no-untyped-call]
    return found


def distribution_losses(plain: Plain, s: Tensor, s_layer: Tensor, t: Tensor, t_layer: Tensor) -> Tensor:
    """s [N, D], s_layer [V, D], t [N, D'], t_layer [V, D'] -> losses [N] float32."""
    tensors = map(contiguous, (s, s_layer, t, t_layer))
    found: Tensor = _DistributionLosses.apply(plain, *tensors)  # type: ignore[no-untyped-call]
    return found


class _ClassLosses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, plain: Plain, h: Tensor, c: Tensor, bias: Tensor | None, target: Tensor, smoothing: float
    ) -> Tensor:
        shares = 1 - smoothing, smoothing / len(c)
        with around_kernels(h):
            p, picked = _kernels().class_totals(h, c, bias, target, shares)
        ctx.save_for_backward(h, c, bias, target, p)
        ctx.plain, ctx.shares = plain, shares
        return torch.where(target < 0, 0.0, p - picked)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        h, c, bias, target, p = ctx.saved_tensors
        if beyond_kernels(grad):
            inputs = (h, c) if bias is None else (h, c, bias)
            found = differentiable_gradients(ctx.plain, inputs, (grad,))
            return None, *found, *(None,) * (3 - len(inputs)), None, None
        g = torch.where(target < 0, 0.0, grad)
        on_target, on_all = ctx.shares
        slopes = g, g * on_target, g * on_all if on_all else None
        with around_kernels(h):
            found = _kernels().class_gradients(h, c, bias, target, p, slopes, ctx.needs_input_grad[1:4])
        return None, *found, None, None


class _WeightedLosses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, plain: Plain, h: Tensor, c: Tensor, bias: Tensor | None, classes: Tensor, weights: Tensor
    ) -> Tensor:
        with around_kernels(h):
            p, _ = _kernels().class_totals(h, c, bias, None)
            x = _kernels().listed_logits(h, c, bias, classes)
        ctx.save_for_backward(h, c, bias, classes, weights, p, x)
        ctx.plain = plain
        listed = torch.where(_there(classes, c), weights.float(), 0.0)
        losses: Tensor = listed.sum(-1) * p - (listed * x).sum(-1)
        return losses

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        h, c, bias, classes, weights, p, x = ctx.saved_tensors
        if beyond_kernels(grad):
            inputs = (h, c, weights) if bias is None else (h, c, weights, bias)
            d_h, d_c, d_weights, *d_bias = differentiable_gradients(ctx.plain, inputs, (grad,))
            return None, d_h, d_c, d_bias[0] if d_bias else None, None, d_weights
        there = _there(classes, c)
        d_weights = None
        if ctx.needs_input_grad[5]:
            d_weights = torch.where(there, grad[:, None] * (p[:, None] - x), 0.0).to(weights.dtype)
        if not any(ctx.needs_input_grad[1:4]):
            return None, None, None, None, None, d_weights
        listed = torch.where(there, weights.float(), 0.0)
        a = grad * listed.sum(-1)
        # In one piece: where a row's weights are learned, the two parts are nearly equal.
        d_x = a[:, None] * (x - p[:, None]).exp() - grad[:, None] * weights_of_class(classes, listed)
        slopes, pairs = (a, None, None), (torch.where(there, classes, -1), d_x)
        with around_kernels(h):
            found = _kernels().class_gradients(h, c, bias, None, p, slopes, ctx.needs_input_grad[1:4], pairs)
        return None, *found, None, d_weights


class _DistributionLosses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plain: Plain, s: Tensor, s_layer: Tensor, t: Tensor, t_layer: Tensor) -> Tensor:
        tensors = s, s_layer, t, t_layer
        with around_kernels(s):
            q, p, mean = _kernels().distribution_totals(*tensors)
        ctx.save_for_backward(*tensors, q, p, mean)
        ctx.plain = plain
        loss: Tensor = q - mean
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, q, p, mean = ctx.saved_tensors
        if beyond_kernels(grad):
            return None, *differentiable_gradients(ctx.plain, tuple(tensors), (grad,))
        wanted = ctx.needs_input_grad[1:]
        with around_kernels(grad):
            return None, *_kernels().distribution_gradients(*tensors, (q, p, mean), grad.contiguous(), wanted)


def weights_of_class(classes: Tensor, weights: Tensor) -> Tensor:
    """For every entry of lists [N, L]: the sum of the row's weights on the entry's class."""
    ordered, order = classes.sort(1)
    new = torch.nn.functional.pad(ordered[:, 1:] != ordered[:, :-1], (1, 0), value=False)
    group = new.cumsum(1)
    sums = torch.zeros_like(weights).scatter_add_(1, group, weights.gather(1, order)).gather(1, group)
    return torch.empty_like(sums).scatter_(1, order, sums)


def _there(classes: Tensor, c: Tensor) -> Tensor:
    return (classes >= 0) & (classes < len(c))
