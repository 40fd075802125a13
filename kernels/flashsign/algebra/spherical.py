"""Spherical attention as a monoid.

Letters: N queries, M keys (items), E width. Equations: kernels/README.md, "Spherical attention".
Source: spherical attention, arXiv 2505.09326.
"""

from __future__ import annotations

from torch import Tensor

from flashsign.algebra.monoid import Monoid, Total, add, constants, pass_on
from flashsign.eager.streaming import inverse_norm


def spherical_monoid(eps: float = 1e-6) -> Monoid:
    """Items (k [M, E], v [M, E], multiplicity [M]), shared (q [N, E],) -> attention [N, E].

    The total is three plain sums, u [N, E], z [N] and t, so the local gradient of each item is that of the total.

    Example:
        >>> import torch
        >>> from flashsign import fold, spherical_attention, spherical_monoid
        >>> q, k, v, m = torch.randn(20, 8), torch.randn(50, 8), torch.randn(50, 8), torch.rand(50)
        >>> monoid = spherical_monoid()
        >>> output = monoid.finish(fold(monoid, (k, v, m), (q,)), (q,))
        >>> one_bag = spherical_attention(q[None, None], k[None, None], v[None, None], m[None])
        >>> torch.allclose(output, one_bag[0, 0], atol=1e-5)
        True
    """

    def lift(items: Total, shared: Total) -> Total:
        (k, v, m), (q,) = items, shared
        scaled = m[:, None] * k
        s = scaled @ q.mT
        return s[..., None] * v[:, None], s.square(), scaled.square().sum(-1)

    def finish(total: Total, shared: Total) -> Tensor:
        (u, z, t), (q,) = total, shared
        return u * inverse_norm(z, eps * q.square().sum(-1) * t)[..., None]

    return Monoid("spherical attention", constants(0.0, 0.0, 0.0), lift, add, finish, pass_on)
