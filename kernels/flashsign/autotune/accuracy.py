"""Whether a kernel is right: its results beside float64's, and beside those of plain torch in the kernel's own dtype.

A kernel may be off by 1.5 times what torch is, and a slack: half a unit in the last place of 16 bits, four of float32.
Materialised torch runs over in float16 from some hundred genes on; what it is off by counts up to OFF alone.
Compilers have been wrong at single tile sizes: benchmarks/tiles.py and autotune.py look at every tile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from flashsign.reference import reference_spherical_attention

SIZES = (1, 7, 113, 1000, 1025)
"""Genes of the bags that every tile is checked on."""
OFF = 8
"""Units in the last place: the most that torch's own relative error allows a kernel."""
TENSORS = ("o", "dq", "dk", "dv", "dm")


class Verdict(NamedTuple):
    """Relative errors, and whether ours is within the bound."""

    error: float
    torchs: float
    good: bool


class Bag:
    """Two cells of some genes, four query heads over two key heads, every tenth gene absent; and what is true of them.

    q, grad [2, 4, N, E], k, v [2, 2, N, E] in dtype, m [2, N] float32; the same for the same genes.
    """

    def __init__(self, genes: int, width: int, dtype: torch.dtype, device: torch.device | str):
        random = torch.Generator().manual_seed(genes)
        self.genes, self.dtype = genes, dtype
        self.q, self.grad = (torch.randn(2, 4, genes, width, generator=random).to(device, dtype) for _ in range(2))
        self.k, self.v = (torch.randn(2, 2, genes, width, generator=random).to(device, dtype) for _ in range(2))
        self.m = torch.rand(2, genes, generator=random).to(device) * 2 + 0.1
        self.m[:, 3::10] = 0

    @cached_property
    def true(self) -> dict[str, Tensor]:
        return self.computed_in(torch.float64)

    @cached_property
    def torchs(self) -> dict[str, Tensor]:
        return self.computed_in(self.dtype)

    def computed_in(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Output and gradients of attention whose weights are stored, by the names of TENSORS."""
        leaves = [x.to(dtype).requires_grad_() for x in (self.q, self.k, self.v, self.m)]
        q, k, v, m = leaves
        output = reference_spherical_attention(q, k, v, m)
        gradients = torch.autograd.grad(output, leaves, self.grad.to(dtype))
        return dict(zip(TENSORS, (output.detach(), *gradients), strict=True))

    def judge(self, found: Mapping[str, Tensor]) -> dict[str, Verdict]:
        return {name: self._judge(name, result) for name, result in found.items()}

    def _judge(self, name: str, found: Tensor) -> Verdict:
        # One key: the weight is a sign, and its gradients are differences of equal numbers, zero but for eps.
        if self.genes == 1 and name in ("dq", "dk", "dm"):
            return Verdict(0.0, 0.0, bool(found.isfinite().all()))
        ours, torchs = error(found, self.true[name]), error(self.torchs[name], self.true[name])
        torchs = math.inf if math.isnan(torchs) else torchs
        allowed = min(torchs, OFF * torch.finfo(self.dtype).eps)
        return Verdict(ours, torchs, ours <= 1.5 * allowed + slack(self.dtype))  # NaN is not


def error(found: Tensor, true: Tensor) -> float:
    return float((found.double() - true).norm() / true.norm().clamp_min(1e-30))


def slack(dtype: torch.dtype) -> float:
    eps = torch.finfo(dtype).eps
    return 4 * eps if dtype == torch.float32 else eps / 2
