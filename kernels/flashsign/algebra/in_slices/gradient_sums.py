"""The gradients of all tensors of a fold, filled slice by slice."""

from __future__ import annotations

import torch
from torch import Tensor

from flashsign.algebra.in_slices.plan import Part
from flashsign.algebra.monoid import Gradients, Total


class GradientSums:
    """The gradients of all tensors, filled slice by slice; sums of 16-bit numbers are float32 until the end."""

    def __init__(self, tensors: Total, wanted: tuple[bool, ...], axis: int):
        self.tensors, self.wanted, self.axis = tensors, wanted, axis
        self.found: Gradients | list[Tensor | None] = [None] * len(tensors)
        self.numbers = range(len(tensors))

    def add(self, number: int, part: Part | None, grad: Tensor) -> None:
        """Adds a part of the gradient of a tensor; part: its rows, None: all of them."""
        self._view(number, part, wide=True).add_(grad)

    def put(self, number: int, part: Part | None, grad: Tensor) -> None:
        """Writes the whole gradient of some rows."""
        self._view(number, part, wide=False).copy_(grad)

    def _view(self, number: int, part: Part | None, wide: bool) -> Tensor:
        assert isinstance(self.found, list)
        whole = self.found[number]
        if whole is None:
            x = self.tensors[number]
            dtype = torch.promote_types(x.dtype, torch.float32) if wide else x.dtype
            # Plain strides: the tensor may be expanded, and several of its elements one place in memory.
            whole = self.found[number] = torch.zeros(x.shape, dtype=dtype, device=x.device)
        return whole if part is None else whole.narrow(self.axis, part.start, part.stop - part.start)

    def result(self) -> Gradients:
        for number, x in enumerate(self.tensors):
            if self.wanted[number] and self.found[number] is None:
                self._view(number, None, wide=False)
            grad = self.found[number]
            if grad is not None:
                assert isinstance(self.found, list)
                self.found[number] = grad.to(x.dtype)
        return tuple(self.found)
