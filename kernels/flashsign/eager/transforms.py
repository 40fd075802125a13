"""Modes of differentiation that custom autograd functions do not support, and gradients that
support all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad


def transformed() -> bool:
    """Return True inside forward-mode differentiation or a `torch.func` transform (jvp, vmap,
    jacrev, ...).

    The custom autograd functions of flashsign define no tangent, and a missing tangent is silently
    zero. Where this is True, their callers take plain torch operations instead, which support every
    transform.
    """
    # torch has no public function for either question; tests check both (jvp against finite
    # differences).
    forward_mode: int = forward_ad._current_level
    return forward_mode >= 0 or torch._C._functorch.peek_interpreter_stack() is not None


def in_batches(grad: Tensor) -> bool:
    """Return True where autograd passes many gradients to a backward at once (is_grads_batched).

    No kernel can read them. That is an older kind of vmap, which `transformed` does not see.
    """
    batched: bool = torch._C._functorch.is_legacy_batchedtensor(grad)
    return batched


# Asked once: torch.export of torch 2.11 cannot trace the question.
AUTOCAST = frozenset(
    kind for kind in ("cpu", "cuda", "mps", "xpu") if torch.amp.is_autocast_available(kind)
)
"""Kinds of devices that have autocast."""


def without_autocast(like: Tensor) -> AbstractContextManager[None]:
    """Return a context in which products are not rounded by autocast.

    Devices that have no autocast (meta) need none.
    """
    kind = like.device.type
    return torch.autocast(kind, enabled=False) if kind in AUTOCAST else nullcontext()


def as_autocast(*tensors: Tensor | None) -> Any:
    """Return the tensors in autocast's dtype where it is enabled, as torch's linear layers take
    them.

    Else as they are.
    """
    kind = next(x.device.type for x in tensors if x is not None)
    if kind not in AUTOCAST or not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    narrow = (x is not None and x.is_floating_point() and x.dtype != torch.float64 for x in tensors)
    return tuple(
        x.to(dtype) if x is not None and cast else x
        for x, cast in zip(tensors, narrow, strict=True)
    )


def differentiable_gradients(
    plain: Callable[..., Tensor | tuple[Tensor, ...]],
    inputs: tuple[Tensor, ...],
    grads: tuple[Tensor, ...],
) -> tuple[Tensor | None, ...]:
    """Return gradients of plain(*inputs) by autograd.

    For a backward under create_graph=True, or over batched gradients.

    inputs: saved tensors of any shapes; grads: shaped like the outputs. Returns None for inputs
        that need no gradient. torch's once_differentiable is not enough: where `grads` are
        constants it lets a second derivative pass, wrong.
    """
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad(), without_autocast(grads[0]):
        # Views: an input that was computed from another one, or is the same tensor, must be
        # differentiated on its own.
        inputs = tuple(
            tensor.view_as(tensor) if tensor.requires_grad else tensor for tensor in inputs
        )
        outputs = plain(*inputs)
        pairs = zip([outputs] if isinstance(outputs, Tensor) else outputs, grads, strict=True)
        graded = [(output, grad) for output, grad in pairs if output.requires_grad]
        gradients = iter(
            torch.autograd.grad(
                [output for output, _ in graded],
                [tensor for tensor in inputs if tensor.requires_grad],
                [grad for _, grad in graded],
                create_graph=create_graph,
                allow_unused=True,
            )
        )
    return tuple(next(gradients) if tensor.requires_grad else None for tensor in inputs)
