"""A two-layer MLP as a sum over hidden units: sum_j act(x . P_j + b_j) Q_j, plain or gated, no
hidden layer stored.

Forward and backward take 14 N K D operations where the plain MLP takes 12, as the hidden units are
computed twice.

Letters: N rows, K hidden units (items), D width of the input, D' of the output. Source:
MonoidReduce, A. Cuba Gyllensten, 2025; kernels/README.md, "Folds".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from flashsign.eager.products import wide_product
from flashsign.folds.algebra.monoid import Monoid, Total, add, constants, first, pass_on, wide

Activation = Literal["gelu", "silu", "relu"]

ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "gelu": (F.gelu, lambda grad, h: torch.ops.aten.gelu_backward(grad, h)),
    "silu": (F.silu, lambda grad, h: torch.ops.aten.silu_backward(grad, h)),
    "relu": (F.relu, lambda grad, h: torch.where(h > 0, grad, 0.0)),
}
"""Each activation, and the gradient for its input from that for its output."""


def mlp_monoid(
    activation: Activation = "gelu", *, gated: bool = False, bias: bool = False
) -> Monoid:
    """Return the monoid of items (P [K, D], Q [K, D']), shared (x [N, D],) -> sum_j act(x . P_j)
    Q_j, [N, D'].

    gated: items (G [K, D], P, Q) -> sum_j act(x . G_j) (x . P_j) Q_j, with silu a SwiGLU. bias: one
        item tensor more before Q, b [K], which is added to x . P_j.

    Example:
        >>> import torch
        >>> from flashsign import mlp_monoid, monoid_reduce
        >>> x, p, q = torch.randn(5, 8), torch.randn(64, 8), torch.randn(64, 8)
        >>> output = monoid_reduce(mlp_monoid("relu"), (x,), (p, q))
        >>> torch.allclose(output, torch.relu(x @ p.T) @ q, atol=1e-4)
        True
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation must be gelu, silu or relu, not {activation!r}.")
    act, act_back = ACTIVATIONS[activation]

    def hidden(x: Tensor, layer: Total) -> tuple[Tensor, Tensor | None]:
        """Return the argument of the activation, and what its value is multiplied with: [N, n]
        each.
        """
        h = wide_product(x, layer[int(gated)].mT)
        if bias:
            h = h + wide(layer[-1])
        return (wide_product(x, layer[0].mT), h) if gated else (h, None)

    def value(h: Tensor, factor: Tensor | None) -> Tensor:
        return act(h) if factor is None else act(h) * factor

    def lift(items: Total, shared: Total) -> Total:
        (*layer, q), (x,) = (tuple(map(wide, each)) for each in (items, shared))
        return (value(*hidden(x, tuple(layer))).mT[..., None] * q[:, None],)

    def proj_fold(a: Total, b: Total) -> Total:
        (x,), (*layer, q) = a, b
        return (wide_product(value(*hidden(x, tuple(layer))), q),)

    def proj_fold_bwd(a: Total, b: Total, p: Total, gp: Total) -> tuple[Total, Total]:
        (x,), (*layer, q), (grad,) = a, b, gp
        h, factor = hidden(x, tuple(layer))
        activated = act(h)
        # The gradient of the sums is float32; what it is multiplied with is 16 bits wide where the
        # layer is.
        d_q = wide_product(
            (activated if factor is None else activated * factor).mT, grad.to(q.dtype)
        )
        d_value = wide_product(grad.to(q.dtype), q.mT)
        d_up = act_back(d_value, h) if factor is None else d_value * activated
        d_bias = (d_up.sum(0),) if bias else ()
        up = layer[int(gated)]
        if factor is None:
            return (wide_product(d_up, up),), (wide_product(d_up.mT, x), *d_bias, d_q)
        d_gate = act_back(d_value * factor, h)
        d_x = wide_product(d_up, up) + wide_product(d_gate, layer[0])
        return (d_x,), (wide_product(d_gate.mT, x), wide_product(d_up.mT, x), *d_bias, d_q)

    return Monoid(
        f"{'gated ' if gated else ''}MLP with {activation}",
        constants(0.0),
        lift,
        add,
        first,
        pass_on,
        proj_fold=proj_fold,
        proj_fold_bwd=proj_fold_bwd,
        broadcasts=True,
    )
