"""Modes of differentiation that a custom autograd function does not know, and gradients in operations that do."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import forward_ad


def transformed() -> bool:
    """True inside forward-mode differentiation or a `torch.func` transform (jvp, vmap, jacrev, ...).

    A custom autograd.Function has no tangent of its own, and one that is forgotten is a silent zero. Here the
    callers take plain torch operations instead, which every transform knows.
    """
    # torch has no public function for either; tests check both (jvp against finite differences).
    forward_mode: int = forward_ad._current_level
    return forward_mode >= 0 or torch._C._functorch.peek_interpreter_stack() is not None


def in_batches(grad: Tensor) -> bool:
    """True where autograd gives a backward many gradients at once (is_grads_batched), which no kernel can read.

    An older kind of vmap, which `transformed` does not see.
    """
    batched: bool = torch._C._functorch.is_legacy_batchedtensor(grad)
    return batched


def differentiable_gradients(
    plain: Callable[..., Tensor | tuple[Tensor, ...]], inputs: tuple[Tensor, ...], grads: tuple[Tensor, ...]
) -> tuple[Tensor | None, ...]:
    """Gradients of plain(*inputs) in plain operations: for a backward under create_graph=True, or over batches.

    inputs: saved tensors of any shapes; grads: shaped like the outputs. None for inputs that need no gradient.
    torch's once_differentiable would not do: it lets a second derivative pass, wrong, when `grads` are constants.
    """
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad(), torch.autocast(grads[0].device.type, enabled=False):
        # Of views: where one input is made of another, or is another, its own path alone counts.
        inputs = tuple(tensor.view_as(tensor) if tensor.requires_grad else tensor for tensor in inputs)
        outputs = plain(*inputs)
        pairs = zip([outputs] if isinstance(outputs, Tensor) else outputs, grads, strict=True)
        graded = [(output, grad) for output, grad in pairs if output.requires_grad]
        found = iter(
            torch.autograd.grad(
                [output for output, _ in graded],
                [tensor for tensor in inputs if tensor.requires_grad],
                [grad for _, grad in graded],
                create_graph=create_graph,
                allow_unused=True,
            )
        )
    return tuple(next(found) if tensor.requires_grad else None for tensor in inputs)
