"""Spherical attention in linear time: the keys of a bag enter through two E x E moments only.

Letters: B bags (cells x key heads), N queries of a bag (those of all query heads of the key head,
one head after the other), M keys, E width, V width of the values. Keys are already scaled by their
multiplicity: k stands for m k. Equations: kernels/README.md, "Moments". Source: spherical
attention, arXiv 2505.09326.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flashsign.attention.validation import has_values
from flashsign.eager.own_backward import Gradients, OwnBackward
from flashsign.eager.streaming import inverse_norm, row_floor, stream_backward, stream_forward
from flashsign.eager.transforms import transformed

ILL_CONDITIONED = 1e-4
"""Rows with rho = z / (|q|^2 tr G) below this are ill-conditioned: float32 moments cancel, and z
has a relative error of 0.13 u / rho, u the unit roundoff.
"""


class Moments(NamedTuple):
    """All that queries need of a bag's keys: a = A = sum_j k_j^T v_j [B, E, V] and g = G = sum_j
    k_j^T k_j [B, E, E].

    Moments of chunks of keys add up to those of the whole bag.
    """

    a: Tensor
    g: Tensor

    @classmethod
    def of(cls, k: Tensor, v: Tensor) -> Moments:
        """Return the moments of keys (scaled by multiplicity) [B, M, E] and values [B, M, V]."""
        return cls(k.mT @ v, k.mT @ k)

    @property
    def trace(self) -> Tensor:
        """t = tr G = sum_j |k_j|^2, [B]."""
        return self.g.diagonal(dim1=-2, dim2=-1).sum(-1)

    def attend(self, q: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return outputs o [B, N, V], 1 / n [B, N, 1], and which rows are ill-conditioned, bool
        [B, N, 1].

        q [B, N, E].
        """
        width = self.a.shape[-1]
        both = q @ torch.cat((self.a, self.g), -1)
        u, q_g = both[..., :width], both[..., width:]
        z = (q_g * q).sum(-1, keepdim=True).clamp_min(0)
        scale = row_floor(q, self.trace, 1.0)
        inverse = inverse_norm(z, eps * scale)
        # The bound on rho is proportional to the roundoff, so it is far smaller in float64.
        ill_conditioned = (
            z < ILL_CONDITIONED * torch.finfo(q.dtype).eps / torch.finfo(torch.float32).eps * scale
        )
        return u * inverse, inverse, ill_conditioned


def moment_attention(q: Tensor, k: Tensor, v: Tensor, eps: float) -> Tensor:
    """Compute spherical attention from moments; ill-conditioned rows are streamed, forward and
    backward.

    q [B, N, E], k (scaled by multiplicity) [B, M, E] and v [B, M, V], one dtype, float32 or float64
    -> o [B, N, V]. 4 N E (E + V) operations forward, and nothing of size N x M in memory. Forward
    mode, torch.func transforms and tensors without values cannot single out ill-conditioned rows
    and use float64 moments for all rows instead. Source:
    arXiv 2505.09326.
    """
    plain = partial(plain_moment_attention, eps=eps)
    if transformed() or not has_values(q):
        return plain(q, k, v)
    return OwnBackward(plain, partial(_forward, eps=eps), partial(_backward, eps=eps))(q, k, v)


def plain_moment_attention(q: Tensor, k: Tensor, v: Tensor, eps: float) -> Tensor:
    """Compute moment_attention in plain torch operations, with float64 moments for all rows.

    Differentiable in any mode and order.
    """
    return Moments.of(k.double(), v.double()).attend(q.double(), eps)[0].to(q.dtype)


def _forward(q: Tensor, k: Tensor, v: Tensor, *, eps: float) -> tuple[Tensor, Gradients]:
    moments = Moments.of(k, v)
    o, inverse, ill_conditioned = moments.attend(q, eps)
    for bag, rows in bags_with_rows(ill_conditioned):
        o[bag, rows], inverse[bag, rows] = (
            part[0] for part in stream_forward(q[bag, rows][None], k[bag, None], v[bag, None], eps)
        )
    return o, (o, inverse, ill_conditioned, *moments)


def _backward(
    grad: Tensor, tensors: Any, kept: Any, wanted: tuple[bool, ...], *, eps: float
) -> Gradients:
    (q, k, v), (o, inverse, ill_conditioned, a, g) = tensors, kept
    well_conditioned = torch.where(ill_conditioned, 0, inverse)
    dq, dk, dv = _moments_backward(grad, q, k, v, o, well_conditioned, Moments(a, g), eps)
    for bag, rows in bags_with_rows(ill_conditioned):
        totals = (o[bag, rows][None], inverse[bag, rows][None])
        dq_rows, dk_bag, dv_bag = stream_backward(
            grad[bag, rows][None], q[bag, rows][None], k[bag, None], v[bag, None], *totals, eps
        )
        dq[bag, rows] = dq_rows[0]
        dk[bag] += dk_bag[0]
        dv[bag] += dv_bag[0]
    return dq, dk, dv


def _moments_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    inverse: Tensor,
    moments: Moments,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dq, dk, dv from dA = sum_i q_i^T g_i and dG = -1/2 sum_i c_i (q_i^T q_i + eps |q_i|^2
    I), c = delta / n^2.

    dq_i = g_i A^T - c_i q_i (G + eps t I),  dk = v dA^T + 2 k dG,  dv = k dA.
    """
    width = v.shape[-1]
    eye = torch.eye(q.shape[-1], dtype=q.dtype, device=q.device)
    g = grad * inverse
    c = (g * o).sum(-1, keepdim=True) * inverse
    rows = torch.cat((g, -c * q), -1)
    both = q.mT @ rows
    d_a, twice_d_g = both[..., :width], both[..., width:]
    # -sum_i c_i |q_i|^2, which is 2 dt / eps: the trace of 2 dG before its eps term is added.
    trace = twice_d_g.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None]
    dq = rows @ torch.cat((moments.a.mT, moments.g + eps * moments.trace[:, None, None] * eye), -2)
    dk = v @ d_a.mT + k @ (twice_d_g + eps * trace * eye)
    return dq, dk, k @ d_a


def bags_with_rows(marked: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yield each bag that has marked rows, and which of its rows they are;
    marked [B, N, 1] bool.
    """
    bag_of_row, row, _ = marked.nonzero(as_tuple=True)
    bags, counts = torch.unique_consecutive(bag_of_row, return_counts=True)
    yield from zip(bags.tolist(), torch.split(row, counts.tolist()), strict=True)
