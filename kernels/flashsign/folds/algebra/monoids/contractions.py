"""Attention as a monoid: spherical, softmax, and by any normaliser whose two sums stream.

Softmax is a log-weighted mean: totals (z, v), z the log of all weights and v the mean under them.
Letters: N queries, M keys (items), n of them in a slice, E width. Equations: kernels/README.md.
Sources: spherical attention, arXiv 2505.09326, theorem 1; FlashAttention, arXiv 2205.14135.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from flashsign.eager.streaming import inverse_norm
from flashsign.folds.algebra.monoid import Monoid, Total, add, constants, pass_on, wide
from flashsign.folds.algebra.monoids.exponentials import combine_means, local_means, relative_weight


def spherical_monoid(eps: float = 1e-6) -> Monoid:
    """Return the monoid of items (k [M, E], v [M, E], multiplicity [M]), shared (q [N, E],) ->
    attention [N, E].

    The total is three plain sums, u [N, E], z [N] and t [N], so the local gradient of each item is
    that of the total.

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
        broadcasts=True,
    )


def _scores_softmax(q: Tensor, k: Tensor, m: Tensor) -> Tensor:
    """Return q . k + log m, and -inf for absent keys: [N, n]."""
    absent = m == 0
    return torch.where(absent, -math.inf, q @ k.mT + torch.where(absent, 1.0, m).log())


def _lift_softmax(items: Total, shared: Total) -> Total:
    (k, v, m), (q,) = (map(wide, x) for x in (items, shared))
    # The lift of an absent item must be the identity, whose value is 0.
    v = torch.where((m == 0)[:, None], 0.0, v)
    z = _scores_softmax(q, k, m).mT
    return z, v[:, None].expand(*z.shape, v.shape[-1])


def _proj_fold_softmax(a: Total, b: Total) -> Total:
    (q,), (k, v, m) = (map(wide, x) for x in (a, b))
    scores = _scores_softmax(q, k, m)
    z = torch.logsumexp(scores, -1)
    return z, relative_weight(scores, z[:, None]) @ v


def _proj_fold_bwd_softmax(a: Total, b: Total, p: Total, gp: Total) -> tuple[Total, Total]:
    (q,), (k, v, m), (z, mean), (d_z, d_mean) = (*(map(wide, x) for x in (a, b)), p, gp)
    weight = relative_weight(_scores_softmax(q, k, m), z[:, None])
    d_scores = d_mean @ v.mT
    d_scores += (d_z - (d_mean * mean).sum(-1))[:, None]
    d_scores *= weight
    d_m = torch.where(m == 0, 0.0, d_scores.sum(0) / torch.where(m == 0, 1.0, m))
    return (d_scores @ k,), (d_scores.mT @ q, weight.mT @ d_mean, d_m)


SOFTMAX = Monoid(
    "softmax attention",
    constants(-math.inf, 0.0),
    _lift_softmax,
    combine_means,
    lambda total, _: total[1],
    local_means,
    proj_fold=_proj_fold_softmax,
    proj_fold_bwd=_proj_fold_bwd_softmax,
    broadcasts=True,
)
"""Items (k [M, E], v [M, E], multiplicity [M]), shared (q [N, E],), q scaled already -> attention
[N, E].

A multiplicity is a repetition here: the score is q . k + log m, and m = 0 is absent, with gradient
0 for that m.
No keys give zeros.
"""


def normalised_contraction(
    name: str,
    a1: Callable[[Tensor], Tensor],
    a2: Callable[[Tensor], Tensor],
    b: Callable[[Tensor], Tensor],
) -> Monoid:
    """Return the monoid of both sums.

    Items (k [M, E], v [M, E], multiplicity [M]), shared (q [N, E],) -> output [N, E].

    Scores are s = m q . k. a1, a2, b: functions of a tensor, element by element, that torch can
    differentiate; b must not be zero. A key of multiplicity 0 is absent if a1(0) = a2(0) = 0.
    Source: spherical attention, arXiv 2505.09326, theorem 1.

    Example: weights divided by the sum of their sizes.
        >>> import torch
        >>> from flashsign import monoid_reduce, normalised_contraction
        >>> monoid = normalised_contraction("L1", lambda s: s, torch.abs, lambda z: z + 1e-6)
        >>> q, k, v = torch.randn(20, 8), torch.randn(50, 8), torch.randn(50, 8)
        >>> monoid_reduce(monoid, (q,), (k, v, torch.ones(50))).shape
        torch.Size([20, 8])
    """

    def both(s: Tensor) -> tuple[Tensor, Tensor]:
        weights = a1(s), a2(s)
        for own, each in zip(("a1", "a2"), weights, strict=True):
            if each.shape != s.shape:
                raise ValueError(
                    f"{own} of {name} must work element by element; found {list(each.shape)} for "
                    f"{list(s.shape)}."
                )
        return weights

    def lift(items: Total, shared: Total) -> Total:
        (k, v, m), (q,) = (map(wide, x) for x in (items, shared))
        s = (m[:, None] * k) @ q.mT
        w, y = both(s)
        return w[..., None] * v[:, None], y

    def finish(total: Total, shared: Total) -> Tensor:
        u, z = total
        return u / b(z)[..., None]

    def proj_fold(a: Total, items: Total) -> Total:
        (q,), (k, v, m) = (map(wide, x) for x in (a, items))
        w, y = both(q @ (m[:, None] * k).mT)
        return w @ v, y.sum(-1)

    def proj_fold_bwd(a: Total, items: Total, p: Total, gp: Total) -> tuple[Total, Total]:
        (q,), (k, v, m), (d_u, d_z) = (*(map(wide, x) for x in (a, items)), gp)
        scaled = m[:, None] * k
        found: tuple[Any, ...] = torch.func.vjp(both, q @ scaled.mT)
        (w, y), back = found
        (d_s,) = back((d_u @ v.mT, d_z[:, None].expand_as(y)))
        d_scaled = d_s.mT @ q
        return (d_s @ scaled,), (m[:, None] * d_scaled, w.mT @ d_u, (d_scaled * k).sum(-1))

    return Monoid(
        name,
        constants(0.0, 0.0),
        lift,
        add,
        finish,
        pass_on,
        proj_fold=proj_fold,
        proj_fold_bwd=proj_fold_bwd,
        broadcasts=True,
    )
