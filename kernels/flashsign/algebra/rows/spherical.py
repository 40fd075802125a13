"""Spherical attention as a monoid.

Letters: N queries, M keys (items), E width. Equations: kernels/README.md, "Spherical attention".
Source: spherical attention, arXiv 2505.09326.
"""

from __future__ import annotations

from torch import Tensor

from flashsign.algebra.monoid import Monoid, Total, add, constants, pass_on, wide
from flashsign.arguments import checked
from flashsign.eager.streaming import inverse_norm


@checked
def spherical_monoid(eps: float = 1e-6) -> Monoid:
    """Items (k [M, E], v [M, E], multiplicity [M]), shared (q [N, E],) -> attention [N, E].

    The total is three plain sums, u [N, E], z [N] and t [N], so the local gradient of each item is that of the total.

    Example:
        >>> import torch
        >>> from flashsign import monoid_reduce, spherical_attention, spherical_monoid
        >>> q, k, v, m = torch.randn(20, 8), torch.randn(50, 8), torch.randn(50, 8), torch.rand(50)
        >>> output = monoid_reduce(spherical_monoid(), (q,), (k, v, m))
        >>> one_bag = spherical_attention(q[None, None], k[None, None], v[None, None], m[None])
        >>> torch.allclose(output, one_bag[0, 0], atol=1e-5)
        True
    """

    def lift(items: Total, shared: Total) -> Total:
        (k, v, m), (q,) = (map(wide, x) for x in (items, shared))
        scaled = m[:, None] * k
        s = scaled @ q.mT
        return s[..., None] * v[:, None], s.square(), scaled.square().sum(-1)[:, None].expand_as(s)

    def finish(total: Total, shared: Total) -> Tensor:
        (u, z, t), (q,) = total, shared
        return u * inverse_norm(z, eps * wide(q).square().sum(-1) * t)[..., None]

    def proj_fold(a: Total, b: Total) -> Total:
        (q,), (k, v, m) = (map(wide, x) for x in (a, b))
        scaled = m[:, None] * k
        s = q @ scaled.mT
        return s @ v, s.square().sum(-1), scaled.square().sum().expand(len(q))

    def proj_fold_bwd(a: Total, b: Total, p: Total, gp: Total) -> tuple[Total, Total]:
        (q,), (k, v, m), (d_u, d_z, d_t) = (*(map(wide, x) for x in (a, b)), gp)
        scaled = m[:, None] * k
        s = q @ scaled.mT
        d_v = s.mT @ d_u
        d_s = d_u @ v.mT + 2 * d_z[:, None] * s
        d_scaled = d_s.mT @ q + 2 * d_t.sum() * scaled
        return (d_s @ scaled,), (m[:, None] * d_scaled, d_v, (d_scaled * k).sum(-1))

    return Monoid(
        "spherical attention",
        constants(0.0, 0.0, 0.0),
        lift,
        add,
        finish,
        pass_on,
        proj_fold=proj_fold,
        proj_fold_bwd=proj_fold_bwd,
        forms=("(k [M, E], v [M, V], multiplicity [M]), shared (q [N, E])",),
    )
