"""The two-layer MLP and the template of attention by the kernels of triton.folds, with their first derivatives.

plain: the same layer by flashsign.monoid_reduce, from the same tensors; second derivatives are its.
Letters: N rows, K hidden units, D and D' widths; of attention as in triton.folds.attention.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from flashsign.eager.transforms import differentiable_gradients
from flashsign.operators.fold_gradients import around_kernels, beyond_kernels, contiguous

Plain = Callable[..., Tensor]


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
    """x [N, D], up and gate [K, D], down [D', K], bias [K], down_bias [D'] -> [N, D'], x's dtype."""
    tensors = map(contiguous, (x, up, down, bias, down_bias, gate))
    found: Tensor = _HiddenLayer.apply(plain, activation, *tensors)  # type: ignore[no-untyped-call]
    return found


class _HiddenLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plain: Plain, activation: str, *tensors: Tensor | None) -> Tensor:
        kernels = importlib.import_module("flashsign.triton.folds.hidden_layer")
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

            def plain(*found: Tensor) -> Tensor:
                arguments: list[Tensor | None] = [None] * len(tensors)
                for number, x in zip(there, found, strict=True):
                    arguments[number] = x
                output: Tensor = ctx.plain(*arguments)
                return output

            slopes = iter(differentiable_gradients(plain, tuple(tensors[number] for number in there), (grad,)))
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
    plain: Plain, name: str, q: Tensor, k: Tensor, v: Tensor, multiplicity: Tensor | None, eps: float
) -> Tensor:
    """Attention by the row `name` of triton.folds.attention_rows: q [C, H, N, E], k and v [C, K, M, E], multiplicity
    [C, 1 or K, M] or None -> like q."""
    tensors = contiguous(q), contiguous(k), contiguous(v)
    found: Tensor = _Attention.apply(plain, name, *tensors, multiplicity, eps)  # type: ignore[no-untyped-call]
    return found


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, plain: Plain, name: str, q: Tensor, k: Tensor, v: Tensor, m: Tensor | None, eps: float
    ) -> Tensor:
        ctx.kernels = importlib.import_module("flashsign.triton.folds.attention")
        ctx.row = importlib.import_module("flashsign.triton.folds.attention_rows").ROWS[name]
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
            found = differentiable_gradients(ctx.plain, inputs, (grad,))
            return None, None, *found, *(None,) * (4 - len(inputs)), None
        wide = None if m is None else m.float().contiguous()
        with around_kernels(grad):
            d_q, d_k, d_v, d_m = ctx.kernels.backward(
                ctx.row, contiguous(grad), q, k, v, wide, o, ctx.kernels.Totals(*totals), ctx.eps
            )
        if m is not None:
            d_m = d_m.sum(1, keepdim=True) if m.shape[1] < d_m.shape[1] else d_m
            d_m = d_m.to(m.dtype)
        return None, None, d_q, d_k, d_v, d_m, None
