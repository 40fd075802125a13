"""Products of matrices whose sums are float32 at least: on a GPU 16-bit numbers stay what tensor
cores multiply.

Upcast to float32 first, as on a CPU, they would be multiplied a tenth as fast.
"""

from __future__ import annotations

import torch
from torch import Tensor

from flashsign.eager.transforms import transformed


def wide_product(a: Tensor, b: Tensor) -> Tensor:
    """Return a [N, n] @ b [n, M] in float32 at least.

    On a GPU a float32 factor beside a 16-bit one is rounded to it; in float16 in units of its
    largest number, so that small ones do not vanish. Differentiable; where that is wanted, or in a
    transform, both are upcast.
    """
    narrow = next((x.dtype for x in (a, b) if x.dtype.itemsize == 2), None)
    if narrow is None or not a.is_cuda or torch.is_grad_enabled() or transformed():
        dtype = torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32)
        return a.to(dtype) @ b.to(dtype)
    a, of_a = _rounded(a, narrow)
    b, of_b = _rounded(b, narrow)
    product = torch.mm(a, b, out_dtype=torch.float32)
    for unit in (of_a, of_b):
        if unit is not None:
            product.mul_(unit)
    return product


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a @ b to the total in place, outside of autograd; total float32, a and b of one dtype."""
    if a.is_cuda and a.dtype != torch.float32:
        torch.ops.aten.addmm.dtype_out(total, a, b, torch.float32, out=total)
    else:
        total.addmm_(a.float(), b.float())


def unit_of(*numbers: Tensor) -> Tensor:
    """Return a 256th of the largest of these numbers, 1 where all are 0; a tensor, so that nobody
    waits for the device.

    In these units weights of 60 000 classes are normal numbers in float16, and a weight of one is
    far from its largest.
    """
    largest = torch.stack([x.abs().max() for x in numbers]).max()
    return torch.where((largest > 0) & largest.isfinite(), largest / 256, 1.0)


def _rounded(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Return x in a 16-bit dtype, and the unit that it is in, if any: bfloat16 has the range of
    float32.
    """
    if x.dtype == dtype or dtype == torch.bfloat16 or not x.numel():
        return x.to(dtype), None
    unit = unit_of(x)
    return (x / unit).to(dtype), unit
