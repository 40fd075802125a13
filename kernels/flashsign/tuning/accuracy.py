"""The acceptance rule for kernels: their errors against float64 are within an a-priori bound.

The bound follows from the inputs, the dtype and the lengths of the sums. It is computed in float64,
so it is the same on every machine, and it does not depend on what torch loses in the same dtype (in
float16 torch overflows). The check before a kernel's first use, benchmarks and tests share it.

Unit roundoffs: u of the kernel's dtype, s of its sums (float32). With q~_i = q_i / n_i,
k'_j = m_j k_j and the rest as in kernels/README.md, a row's condition number is
kappa_i = |q~_i| sqrt(t) = 1 / sqrt(rho_i). Where queries and keys cancel, a weight has an absolute
error of s |q~_i| |k'_j|, to which 16-bit numbers may add u |w_ij| only.

To first order, independent errors added as squares, N queries, M keys, E wide:

    weight      a_ij = (u^2 + s^2 L) w_ij^2 + s^2 |q~_i|^2 |k'_j|^2
    norm        b_i = s^2 (kappa_i^2 + (0.13 min(kappa_i^2, 1 / LEAST_RHO))^2)
    o           |err o_i|^2 = sum_j a_ij |v_j|^2 + (b_i + u^2) |o_i|^2
    pair        p_ij = <do_i, v_j> - w_ij delta_i, which is ds_ij n_i
    its factor  c_ij = u^2 p_ij^2 + w_ij^2 ((b_i + u^2) delta_i^2 + |do_i|^2 |err o_i|^2)
    its sums    f_ij = s^2 (|do_i|^2 |v_j|^2 + delta_i^2 |q~_i|^2 |k'_j|^2 + L p_ij^2)
    dq          |err dq_i|^2 = sum_j (c_ij + f_ij) |k'_j|^2 / n_i^2
    dk          |err dk_j|^2 = m_j^2 sum_i (c_ij + f_ij) |q~_i|^2
    dv          |err dv_j|^2 = sum_i (a_ij + b_i w_ij^2) |do_i|^2
    dm          (err dm_j)^2 = sum_i c_ij (q~_i . k_j)^2 + f_ij |q~_i|^2 |k_j|^2 / E

L = M (o) or N (dv) is the number of terms of the sum. The norm's error b_i is relative, and that of
all weights of a row. Last, dq, dk and dv are rounded to u, and dm to the roundoff of m. An error
c_ij multiplies q~_i or k'_j exactly, so in dm it multiplies the true q~_i . k_j. An error f_ij has
any direction: 1 / sqrt(E) of it remains in a product with k_j.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from flashsign.attention.call import AttentionCall
from flashsign.attention.reference import reference_spherical_attention

TENSORS = ("o", "dq", "dk", "dv", "dm")
"""Names of a call's results, in the order of this module's tuples."""
MARGIN = 2.0
"""The bound in units of the first-order error. Right kernels reach at most half of it, sabotaged
ones exceed it.
"""
SUMS = 2.0**-24
"""s, the unit roundoff of float32, which three TF32 products keep."""
SQUARES = 0.13
"""Error of a norm that comes from moments, in units of s kappa^2 (kernels/README.md, Moments,
Accuracy).
"""
LEAST_RHO = {2: 1e-4, 4: 1e-3}
"""By bytes of a number: rows whose rho is smaller are streamed, so their norms do not come from
moments.
"""


class Verdict(NamedTuple):
    """The relative error of one result, ||found - true|| / ||true||, and its bound."""

    error: float
    bound: float

    @property
    def good(self) -> bool:
        return self.error <= self.bound

    @property
    def of_bound(self) -> float:
        return math.inf if math.isnan(self.error) else self.error / self.bound


class Case:
    """The inputs of one call, its true results, and the bounds of a kernel's errors.

    q, grad [C, H, N, E], k, v [C, K, M, E] in the kernel's dtype, m [C, M] or [C, K, M]; grad: do,
    of the output.
    """

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor, m: Tensor, grad: Tensor, eps: float = 1e-6
    ) -> None:
        self.q, self.k, self.v, self.m, self.grad = (x.detach() for x in (q, k, v, m, grad))
        self.eps = eps

    @cached_property
    def true(self) -> dict[str, Tensor]:
        """Results in float64, by the names of TENSORS."""
        return self.computed_in(torch.float64)

    def computed_in(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return results of attention with all weights in memory, computed in a dtype, by the names
        of TENSORS.
        """
        leaves = [x.to(dtype, copy=True).requires_grad_() for x in (self.q, self.k, self.v, self.m)]
        q, k, v, m = leaves
        output = reference_spherical_attention(q, k, v, m, self.eps)
        gradients = torch.autograd.grad(output, leaves, self.grad.to(dtype))
        return dict(zip(TENSORS, (output.detach(), *gradients), strict=True))

    @cached_property
    def bounds(self) -> dict[str, float]:
        """The bounds of the results' relative errors. Variables are squares of quantities in the
        module's docstring.
        """
        u, s = (torch.finfo(self.q.dtype).eps / 2) ** 2, SUMS**2
        q, grad, o = self.q.double(), self.grad.double(), self.true["o"]
        group = q.shape[1] // self.k.shape[1]
        m = (self.m if self.m.ndim == 3 else self.m[:, None].expand(self.k.shape[:3])).double()
        present = [
            torch.where((m[..., None] == 0) & ~x.isfinite(), 0, x.double())
            for x in (self.k, self.v)
        ]
        k, v = (x.repeat_interleave(group, 1) for x in present)
        m = m.repeat_interleave(group, 1)[:, :, None]
        queries, (keys, width) = q.shape[2], k.shape[2:]

        def squares(x: Tensor) -> Tensor:
            return x.square().sum(-1, keepdim=True)

        def of_key(x: Tensor) -> Tensor:
            """Return sums over the queries that share a key head, [C, H, N, M] -> [C, K, M]."""
            return x.sum(2).reshape(len(q), -1, group, keys).sum(2)

        k_size, v_size, grad_size = squares(k).mT, squares(v).mT, squares(grad)
        scaled_size = m.square() * k_size
        t = scaled_size.sum(-1, keepdim=True)
        scores = q @ k.mT
        n = squares(m * scores) + self.eps * squares(q) * t + torch.finfo(torch.float64).tiny
        along = scores.square() / n  # (q~ . k)^2
        weight = m.square() * along
        length = squares(q) / n  # |q~|^2
        kappa = length * t
        delta = (grad * o).sum(-1, keepdim=True)
        pair = (grad @ v.mT - m * scores / n.sqrt() * delta).square()
        cancelled = s * length * scaled_size
        norm = s * (
            kappa + (SQUARES * kappa.clamp(max=1 / LEAST_RHO[self.q.element_size()])).square()
        )
        error_o = ((u + s * keys) * weight + cancelled) @ v_size.mT + (norm + u) * squares(o)
        factor = u * pair + weight * ((norm + u) * delta.square() + grad_size * error_o)
        sums = s * grad_size * v_size + delta.square() * cancelled
        by_query, by_key = sums + s * keys * pair, sums + s * queries * pair
        dk_scaled = of_key((factor + by_key) * length)
        last_of_m = (torch.finfo(self.m.dtype).eps / 2) ** 2
        own_m = self.m.double() if self.m.ndim == 3 else self.m.double()[:, None]
        errors = {
            "o": (error_o.sum(), 0.0),
            "dq": (((factor + by_query) * scaled_size / n).sum(), u),
            "dk": ((own_m.square() * dk_scaled).sum(), u),
            "dv": (of_key(((u + s * queries + norm) * weight + cancelled) * grad_size).sum(), u),
            "dm": (of_key(factor * along + by_key * length * k_size / width).sum(), last_of_m),
        }
        return {
            name: MARGIN
            * math.sqrt(float(error / self.true[name].square().sum().clamp_min(1e-300)) + last)
            for name, (error, last) in errors.items()
        }

    def judge(self, found: Mapping[str, Tensor]) -> dict[str, Verdict]:
        """Return the verdict on each of a kernel's results, by the names of TENSORS."""
        return {
            name: Verdict(error(result, self.true[name]), self.bounds[name])
            for name, result in found.items()
        }


class Bag(Case):
    """Two cells with `genes` genes, four query heads, two key heads, and every tenth gene absent;
    seeded by `genes`.

    values: width of v, by default that of heads.
    """

    def __init__(
        self,
        genes: int,
        width: int,
        dtype: torch.dtype,
        device: torch.device | str,
        values: int | None = None,
    ) -> None:
        random = torch.Generator().manual_seed(genes)
        self.genes, self.dtype = genes, dtype
        values = width if values is None else values
        q, grad = (
            torch.randn(2, 4, genes, n, generator=random).to(device, dtype) for n in (width, values)
        )
        k, v = (
            torch.randn(2, 2, genes, n, generator=random).to(device, dtype) for n in (width, values)
        )
        m = torch.rand(2, genes, generator=random).to(device) * 2 + 0.1
        m[:, 3::10] = 0
        super().__init__(q, k, v, m, grad)

    def call(self, packed: bool) -> tuple[AttentionCall, Tensor]:
        """Return the call and the output's gradient in the kernels' layout; packed: the two cells
        as packed bags.
        """
        rows, offsets = [self.q, self.k, self.v, self.m[:, None], self.grad], None
        if packed:
            rows = [x.transpose(0, 1).flatten(1, 2)[None] for x in rows]
            offsets = torch.arange(3, device=self.q.device) * self.genes
        q, k, v, m, grad = rows
        return AttentionCall(q, k, v, m, offsets, offsets, self.eps), grad

    def judge_call(self, found: Mapping[str, Tensor], packed: bool) -> dict[str, Verdict]:
        if packed:
            cut = {
                name: x[0].reshape(x.shape[1], 2, self.genes, *x.shape[3:])
                for name, x in found.items()
            }
            found = {name: x.transpose(0, 1) for name, x in cut.items()}
        return self.judge({name: x.sum(1) if name == "dm" else x for name, x in found.items()})


def error(found: Tensor, true: Tensor) -> float:
    """Return ||found - true|| / ||true||, Frobenius norms over tensors of one shape; true is
    float64.
    """
    found, true = found.detach().double(), true.detach()
    return float((found - true).norm() / true.norm().clamp_min(1e-30))


def table(verdicts: Mapping[str, Verdict]) -> str:
    return ", ".join(
        f"{name} is off by {x.error:.2e} ({x.of_bound:.2f} of its bound)"
        for name, x in verdicts.items()
    )
