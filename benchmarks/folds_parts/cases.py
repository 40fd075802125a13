"""Cases: a layer at one size, its inputs, the methods that compute it, and what they are compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Layer = Callable[..., Tensor]


@dataclass(frozen=True)
class Method:
    """A way to compute a layer. products: matrix products of full size, forward and backward; shifted: its output is
    another number with the same gradients."""

    run: Layer
    products: float = 0.0
    shifted: bool = False


@dataclass(frozen=True)
class Case:
    """layer: what is computed; sizes: by name; inputs: tensors of the methods, of which
    those that require a gradient get one; truth: the layer in float64, from wide inputs; product: operations of one
    matrix product; stored: bytes that the plain layer keeps and a fold does not."""

    layer: str
    sizes: dict[str, int]
    inputs: tuple[Tensor, ...]
    methods: dict[str, Method]
    truth: Layer | None
    product: float
    stored: float

    @property
    def leaves(self) -> list[Tensor]:
        return [x for x in self.inputs if x.requires_grad]


@dataclass(frozen=True)
class Scale:
    """How large the cases are: a tenth of everything where only the benchmark itself is tried."""

    rows: int = 16_384
    classes: int = 60_000
    width: int = 512
    narrow: int = 128
    hidden: tuple[int, ...] = (128, 256, 512, 1024, 2048, 4096, 8192, 16_384)
    genes: int = 16_384
    heads: int = 8
    listed: int = 100

    @classmethod
    def tiny(cls) -> Scale:
        return cls(64, 96, 32, 16, (32, 64), 64, 2, 5)


def drawn(device: torch.device, dtype: torch.dtype, *shape: int, scale: float = 1.0, learns: bool = True) -> Tensor:
    """Normal numbers, drawn on the device."""
    return (torch.randn(shape, device=device) * scale).to(dtype).requires_grad_(learns)


def chunked(losses: Layer, rows: int) -> Layer:
    """The sum of losses(*tensors) over slices of `rows` rows of the first tensors, computed again in the backward."""
    from torch.utils.checkpoint import checkpoint

    def run(*tensors: Tensor, count: int) -> Tensor:
        whole = len(tensors[0])
        parts = []
        for start in range(0, whole, rows):
            own = [x[start : start + rows] for x in tensors[:count]]
            parts.append(checkpoint(losses, *own, *tensors[count:], use_reentrant=False))
        return torch.stack(parts).sum() / whole

    return run
