"""Layers that are folds, by the kernels of folds.kernels, with their first derivatives.

plain: the same layer by flashsign.monoid_reduce, from the same tensors; second derivatives are its.
Letters: N rows, V classes, K hidden units, D and D' widths, L listed classes of a row; of attention
as in folds.kernels.attention_template.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from flashsign.eager.transforms import differentiable_gradients, in_batches, without_autocast

Plain = Callable[..., Tensor]


def contiguous(x: Any) -> Any:
    """Return x with adjacent rows that begin at a multiple of 16 bytes, as descriptors read them;
    None as it is.
    """
    if x is None:
        return None
    x = x.contiguous()
    return x if x.data_ptr() % 16 == 0 else x.clone()


def beyond_kernels(grad: Tensor) -> bool:
    """Return whether a backward is differentiated itself, or over batched gradients: then it takes
    plain operations.
    """
    return torch.is_grad_enabled() or in_batches(grad)


@contextmanager
def around_kernels(x: Tensor) -> Iterator[None]:
    """Make x's device the current one, on which kernels start, and keep autocast from rounding
    products beside them.
    """
    with without_autocast(x):
        if x.is_cuda and x.get_device() != torch.cuda.current_device():
            with torch.cuda.device(x.device):
                yield
        else:
            yield


def hidden_layer(
    plain: Plain,
    x: Tensor,
    up: Tensor,
    down: Tensor,
    bias: Tensor | None,
    down_bias: Tensor | None,
    gate: Tensor | None,
    activation: str,
) -> Tensor:
    """Compute an MLP.

    x [N, D], up and gate [K, D], down [D', K], bias [K], down_bias [D'] -> [N, D'], x's dtype.
    """
    tensors = map(contiguous, (x, up, down, bias, down_bias, gate))
    output: Tensor = _HiddenLayer.apply(plain, activation, *tensors)  # type: ignore[no-untyped-call]
    return output


class _HiddenLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plain: Plain, activation: str, *tensors: Tensor | None) -> Tensor:
        kernels = importlib.import_module("flashsign.folds.kernels.hidden_layer")
        ctx.save_for_backward(*tensors)
        ctx.plain, ctx.activation, ctx.kernels = plain, activation, kernels
        (x, *_) = tensors
        assert x is not None
        with around_kernels(x):
            output: Tensor = kernels.forward(*tensors, activation)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        if beyond_kernels(grad):
            there = [number for number, x in enumerate(tensors) if x is not None]

            def plain(*present: Tensor) -> Tensor:
                arguments: list[Tensor | None] = [None] * len(tensors)
                for number, x in zip(there, present, strict=True):
                    arguments[number] = x
                output: Tensor = ctx.plain(*arguments)
                return output

            slopes = iter(
                differentiable_gradients(plain, tuple(tensors[number] for number in there), (grad,))
            )
            return None, None, *(None if x is None else next(slopes) for x in tensors)
        x, up, down, bias, down_bias, gate = tensors
        d_down_bias = None
        if down_bias is not None and ctx.needs_input_grad[6]:
            d_down_bias = grad.sum(0, dtype=torch.float32).to(down_bias.dtype)
        if not any(wanted for number, wanted in enumerate(ctx.needs_input_grad) if number != 6):
            return *(None,) * 6, d_down_bias, None
        with around_kernels(grad):
            grads = ctx.kernels.backward(contiguous(grad), x, up, down, bias, gate, ctx.activation)
        d_x, d_up, d_down, d_bias, d_gate = grads
        return None, None, d_x, d_up, d_down, d_bias, d_down_bias, d_gate


def attention(
    plain: Plain,
    name: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    multiplicity: Tensor | None,
    eps: float,
) -> Tensor:
    """Return attention by the row `name` of folds.kernels.attention_rows.

    q [C, H, N, E], k and v [C, K, M, E], multiplicity [C, 1 or K, M] or None -> like q.
    """
    tensors = contiguous(q), contiguous(k), contiguous(v)
    output: Tensor = _Attention.apply(plain, name, *tensors, multiplicity, eps)  # type: ignore[no-untyped-call]
    return output


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        plain: Plain,
        name: str,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        m: Tensor | None,
        eps: float,
    ) -> Tensor:
        ctx.kernels = importlib.import_module("flashsign.folds.kernels.attention_template")
        ctx.row = importlib.import_module("flashsign.folds.kernels.attention_rows").ROWS[name]
        wide = None if m is None else m.float().contiguous()
        with around_kernels(q):
            o, totals = ctx.kernels.forward(ctx.row, q, k, v, wide, eps)
        ctx.save_for_backward(q, k, v, m, o, *totals)
        ctx.plain, ctx.eps = plain, eps
        output: Tensor = o
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, m, o, *totals = ctx.saved_tensors
        if beyond_kernels(grad):
            inputs = (q, k, v) if m is None else (q, k, v, m)
            gradients = differentiable_gradients(ctx.plain, inputs, (grad,))
            return None, None, *gradients, *(None,) * (4 - len(inputs)), None
        wide = None if m is None else m.float().contiguous()
        with around_kernels(grad):
            d_q, d_k, d_v, d_m = ctx.kernels.backward(
                ctx.row, contiguous(grad), q, k, v, wide, o, ctx.kernels.Totals(*totals), ctx.eps
            )
        if m is not None:
            d_m = d_m.sum(1, keepdim=True) if m.shape[1] < d_m.shape[1] else d_m
            d_m = d_m.to(m.dtype)
        return None, None, d_q, d_k, d_v, d_m, None


def _kernels() -> ModuleType:
    return importlib.import_module("flashsign.folds.kernels.entropies")


def class_losses(
    plain: Plain, h: Tensor, c: Tensor, bias: Tensor | None, target: Tensor, label_smoothing: float
) -> Tensor:
    """Return the cross entropy of every row, [N] float32.

    h [N, D], c [V, D], bias [V], target int64 [N], below 0 where a row has none.
    """
    tensors = contiguous(h), contiguous(c), contiguous(bias), contiguous(target)
    losses: Tensor = _ClassLosses.apply(plain, *tensors, label_smoothing)  # type: ignore[no-untyped-call]
    return losses


def weighted_losses(
    plain: Plain, h: Tensor, c: Tensor, bias: Tensor | None, classes: Tensor, weights: Tensor
) -> Tensor:
    """Return the cross entropy of every row with listed classes, [N] float32.

    h [N, D], c [V, D], bias [V], classes int64 [N, L] (others are padding), weights [N, L].
    """
    tensors = contiguous(h), contiguous(c), contiguous(bias), contiguous(classes)
    losses: Tensor = _WeightedLosses.apply(plain, *tensors, weights)  # type: ignore[no-untyped-call]
    return losses


def distribution_losses(
    plain: Plain, s: Tensor, s_layer: Tensor, t: Tensor, t_layer: Tensor
) -> Tensor:
    """Return the cross entropy of every row between two distributions, [N] float32.

    s [N, D], s_layer [V, D], t [N, D'], t_layer [V, D'].
    """
    tensors = map(contiguous, (s, s_layer, t, t_layer))
    losses: Tensor = _DistributionLosses.apply(plain, *tensors)  # type: ignore[no-untyped-call]
    return losses


class _ClassLosses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        plain: Plain,
        h: Tensor,
        c: Tensor,
        bias: Tensor | None,
        target: Tensor,
        smoothing: float,
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
            gradients = differentiable_gradients(ctx.plain, inputs, (grad,))
            return None, *gradients, *(None,) * (3 - len(inputs)), None, None
        g = torch.where(target < 0, 0.0, grad)
        on_target, on_all = ctx.shares
        slopes = g, g * on_target, g * on_all if on_all else None
        with around_kernels(h):
            gradients = _kernels().class_gradients(
                h, c, bias, target, p, slopes, ctx.needs_input_grad[1:4]
            )
        return None, *gradients, None, None


class _WeightedLosses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        plain: Plain,
        h: Tensor,
        c: Tensor,
        bias: Tensor | None,
        classes: Tensor,
        weights: Tensor,
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
        d_x = a[:, None] * (x - p[:, None]).exp() - grad[:, None] * weights_of_class(
            classes, listed
        )
        slopes, pairs = (a, None, None), (torch.where(there, classes, -1), d_x)
        with around_kernels(h):
            gradients = _kernels().class_gradients(
                h, c, bias, None, p, slopes, ctx.needs_input_grad[1:4], pairs
            )
        return None, *gradients, None, d_weights


class _DistributionLosses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, plain: Plain, s: Tensor, s_layer: Tensor, t: Tensor, t_layer: Tensor
    ) -> Tensor:
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
            return None, *_kernels().distribution_gradients(
                *tensors, (q, p, mean), grad.contiguous(), wanted
            )


def weights_of_class(classes: Tensor, weights: Tensor) -> Tensor:
    """Return, for every entry of lists [N, L],
    the sum of the row's weights on the entry's class.
    """
    ordered, order = classes.sort(1)
    new = torch.nn.functional.pad(ordered[:, 1:] != ordered[:, :-1], (1, 0), value=False)
    group = new.cumsum(1)
    sums = (
        torch.zeros_like(weights).scatter_add_(1, group, weights.gather(1, order)).gather(1, group)
    )
    return torch.empty_like(sums).scatter_(1, order, sums)


def _there(classes: Tensor, c: Tensor) -> Tensor:
    return (classes >= 0) & (classes < len(c))
