"""Layers that are folds, by the kernels of folds.kernels, with their first derivatives.

plain: the same layer by flashsign.monoid_reduce, from the same tensors; second derivatives are its.
Letters: N rows, V classes, K hidden units, D and D' widths, L listed classes of a row; of attention
as in folds.kernels.attention_template.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from flashsign.eager.own_backward import Gradients, OwnBackward

Plain = Callable[..., Tensor]


def _kernels(name: str) -> ModuleType:
    return importlib.import_module(f"flashsign.folds.kernels.{name}")


def contiguous(x: Any) -> Any:
    """Return x with adjacent rows that begin at a multiple of 16 bytes, as descriptors read them;
    None as it is.
    """
    if x is None:
        return None
    x = x.contiguous()
    return x if x.data_ptr() % 16 == 0 else x.clone()


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
    kernels = _kernels("hidden_layer")

    def forward(*tensors: Tensor | None) -> tuple[Tensor, Gradients]:
        return kernels.forward(*tensors, activation), ()

    def backward(grad: Tensor, tensors: Any, kept: Any, wanted: tuple[bool, ...]) -> Gradients:
        x, up, down, bias, down_bias, gate = tensors
        d_x, d_up, d_down, d_bias, d_gate = kernels.backward(
            contiguous(grad), x, up, down, bias, gate, activation
        )
        d_down_bias = None
        if wanted[4]:
            d_down_bias = grad.sum(0, dtype=torch.float32).to(down_bias.dtype)
        return d_x, d_up, d_down, d_bias, d_down_bias, d_gate

    tensors = map(contiguous, (x, up, down, bias, down_bias, gate))
    return OwnBackward(plain, forward, backward)(*tensors)


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
    kernels, row = _kernels("attention_template"), _kernels("attention_rows").ROWS[name]

    def forward(q: Tensor, k: Tensor, v: Tensor, m: Tensor | None) -> tuple[Tensor, Gradients]:
        o, totals = kernels.forward(row, q, k, v, None if m is None else m.float(), eps)
        return o, (o, *totals)

    def backward(grad: Tensor, tensors: Any, kept: Any, wanted: tuple[bool, ...]) -> Gradients:
        (q, k, v, m), (o, *totals) = tensors, kept
        d_q, d_k, d_v, d_m = kernels.backward(
            row,
            contiguous(grad),
            q,
            k,
            v,
            None if m is None else m.float(),
            o,
            kernels.Totals(*totals),
            eps,
        )
        if m is not None:
            d_m = d_m.sum(1, keepdim=True) if m.shape[1] < d_m.shape[1] else d_m
            d_m = d_m.to(m.dtype)
        return d_q, d_k, d_v, d_m

    tensors = map(contiguous, (q, k, v, multiplicity))
    return OwnBackward(plain, forward, backward)(*tensors)


def class_losses(
    plain: Plain, h: Tensor, c: Tensor, bias: Tensor | None, target: Tensor, label_smoothing: float
) -> Tensor:
    """Return the cross entropy of every row, [N] float32.

    h [N, D], c [V, D], bias [V], target int64 [N], below 0 where a row has none.
    """
    kernels = _kernels("entropies")
    on_target, on_all = 1 - label_smoothing, label_smoothing / len(c)

    def forward(
        h: Tensor, c: Tensor, bias: Tensor | None, target: Tensor
    ) -> tuple[Tensor, Gradients]:
        p, picked = kernels.class_totals(h, c, bias, target, (on_target, on_all))
        return torch.where(target < 0, 0.0, p - picked), (p,)

    def backward(grad: Tensor, tensors: Any, kept: Any, wanted: tuple[bool, ...]) -> Gradients:
        (h, c, bias, target), (p,) = tensors, kept
        g = torch.where(target < 0, 0.0, grad)
        slopes = g, g * on_target, g * on_all if on_all else None
        return *kernels.class_gradients(h, c, bias, target, p, slopes, wanted[:3]), None

    tensors = map(contiguous, (h, c, bias, target))
    return OwnBackward(plain, forward, backward)(*tensors)


def weighted_losses(
    plain: Plain, h: Tensor, c: Tensor, bias: Tensor | None, classes: Tensor, weights: Tensor
) -> Tensor:
    """Return the cross entropy of every row with listed classes, [N] float32.

    h [N, D], c [V, D], bias [V], classes int64 [N, L] (others are padding), weights [N, L].
    """
    kernels = _kernels("entropies")
    there = (classes >= 0) & (classes < len(c))

    def forward(
        h: Tensor, c: Tensor, bias: Tensor | None, classes: Tensor, weights: Tensor
    ) -> tuple[Tensor, Gradients]:
        p, _ = kernels.class_totals(h, c, bias, None)
        x = kernels.listed_logits(h, c, bias, classes)
        listed = torch.where(there, weights.float(), 0.0)
        return listed.sum(-1) * p - (listed * x).sum(-1), (p, x)

    def backward(grad: Tensor, tensors: Any, kept: Any, wanted: tuple[bool, ...]) -> Gradients:
        (h, c, bias, classes, weights), (p, x) = tensors, kept
        d_weights = torch.where(there, grad[:, None] * (p[:, None] - x), 0.0).to(weights.dtype)
        listed = torch.where(there, weights.float(), 0.0)
        a = grad * listed.sum(-1)
        # In one piece: where a row's weights are learned, the two parts are nearly equal.
        d_x = a[:, None] * (x - p[:, None]).exp() - grad[:, None] * weights_of_class(
            classes, listed
        )
        slopes, pairs = (a, None, None), (torch.where(there, classes, -1), d_x)
        gradients = kernels.class_gradients(h, c, bias, None, p, slopes, wanted[:3], pairs)
        return *gradients, None, d_weights

    tensors = map(contiguous, (h, c, bias, classes))
    return OwnBackward(plain, forward, backward)(*tensors, weights)


def distribution_losses(
    plain: Plain, s: Tensor, s_layer: Tensor, t: Tensor, t_layer: Tensor
) -> Tensor:
    """Return the cross entropy of every row between two distributions, [N] float32.

    s [N, D], s_layer [V, D], t [N, D'], t_layer [V, D'].
    """
    kernels = _kernels("entropies")

    def forward(*tensors: Tensor) -> tuple[Tensor, Gradients]:
        q, p, mean = kernels.distribution_totals(*tensors)
        return q - mean, (q, p, mean)

    def backward(grad: Tensor, tensors: Any, kept: Any, wanted: tuple[bool, ...]) -> Gradients:
        found: Gradients = kernels.distribution_gradients(*tensors, kept, grad.contiguous(), wanted)
        return found

    tensors = map(contiguous, (s, s_layer, t, t_layer))
    return OwnBackward(plain, forward, backward)(*tensors)


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
