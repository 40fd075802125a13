"""RMSNorm that keeps its input and one number a row: the fold of squares over features, finished
with the row itself.

Letters: D features. Source: RMSNorm, arXiv 1910.07467; the row `rms_norm` of the table of monoids.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from flashsign.attention.dispatch import Backend
from flashsign.eager.own_backward import Gradients, OwnBackward
from flashsign.eager.transforms import transformed
from flashsign.errors import ShapeMismatch
from flashsign.folds.layers.backend import choose_fold


def rms_norm(
    x: Tensor, weight: Tensor | None = None, eps: float = 1e-6, *, backend: Backend = "auto"
) -> Tensor:
    """Return x / sqrt(mean of x^2 over D + eps), times weight.

    x [..., D], weight [D] or None -> [..., D], x's dtype.

    Sums are float32 at least. For the backward it keeps x and one number a row, nothing normalised.
    backend: "auto" takes a kernel on CUDA. Differentiable in x and weight.
    Raises ShapeMismatch, ValueError for an unknown backend.

    Example:
        >>> import torch
        >>> from flashsign import rms_norm
        >>> x, weight = torch.randn(5, 8), torch.rand(8)
        >>> plain = torch.nn.functional.rms_norm(x, (8,), weight, 1e-6)
        >>> torch.allclose(rms_norm(x, weight), plain, atol=1e-6)
        True
    """
    kernels = choose_fold(backend, "rms_norm", x, (), x.shape[-1:]) == "triton"
    if (
        not x.ndim
        or not x.is_floating_point()
        or (weight is not None and weight.shape != x.shape[-1:])
    ):
        found = f"x {list(x.shape)} {x.dtype}" + (
            "" if weight is None else f", weight {list(weight.shape)}"
        )
        raise ShapeMismatch(
            f"x must be [..., D] of a floating dtype and weight [D]; found {found}."
        )
    if weight is not None and (weight.is_complex() or weight.device != x.device):
        raise ShapeMismatch(
            f"weight must be real on {x.device}; found {weight.dtype} on {weight.device}."
        )
    if weight is None:
        weight = x.new_ones(x.shape[-1:])
    plain = partial(plain_rms_norm, eps=eps)
    if transformed():
        return plain(x, weight)
    return (_by_kernels(plain, eps) if kernels else _in_torch(plain, eps))(x, weight)


def plain_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Compute rms_norm in plain operations, differentiable in any mode and order."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt() * weight).to(x.dtype)


def _in_torch(plain: Callable[..., Tensor], eps: float) -> OwnBackward:
    def forward(x: Tensor, weight: Tensor) -> tuple[Tensor, Gradients]:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        inverse = (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
        return (wide * inverse).mul_(weight).to(x.dtype), (inverse,)

    def backward(grad: Tensor, tensors: Any, kept: Any, wanted: tuple[bool, ...]) -> Gradients:
        (x, weight), (inverse,) = tensors, kept
        normal = x * inverse  # float32 at least, as inverse is
        d_weight = None
        if wanted[1]:
            d_weight = (grad * normal).reshape(-1, len(weight)).sum(0).to(weight.dtype)
        g = grad.to(inverse.dtype) * weight
        # g / r + 2 x g_z with g_z = -<g, x> / (2 D r^3), r = 1 / inverse.
        d_x = (g - normal * (g * normal).mean(-1, keepdim=True)).mul_(inverse).to(x.dtype)
        return d_x, d_weight

    return OwnBackward(plain, forward, backward)


def _by_kernels(plain: Callable[..., Tensor], eps: float) -> OwnBackward:
    kernels = importlib.import_module("flashsign.folds.kernels.row_norm")

    def forward(x: Tensor, weight: Tensor) -> tuple[Tensor, Gradients]:
        output, inverse = kernels.forward(_rows(x), weight.contiguous(), eps)
        return output.reshape(x.shape), (inverse,)

    def backward(grad: Tensor, tensors: Any, kept: Any, wanted: tuple[bool, ...]) -> Gradients:
        (x, weight), (inverse,) = tensors, kept
        d_x, d_weight = kernels.backward(_rows(grad), _rows(x), weight.contiguous(), inverse)
        return d_x.reshape(x.shape), d_weight.to(weight.dtype)

    return OwnBackward(plain, forward, backward)


def _rows(x: Tensor) -> Tensor:
    """Return x [..., D] as rows [N, D] whose numbers are adjacent."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(1) == 1 else rows.contiguous()
