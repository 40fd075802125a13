"""Attention by any normaliser whose two sums stream: o = sum_j a1(s_j) v_j / b(sum_j a2(s_j)).

Letters: N queries, M keys (items), E width. Source: spherical attention, arXiv 2505.09326, theorem 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from flashsign.algebra.forms import returning_a_tensor
from flashsign.algebra.monoid import Monoid, Total, add, constants, pass_on, wide
from flashsign.arguments import checked


@checked
def normalised_contraction(
    name: str, a1: Callable[[Tensor], Tensor], a2: Callable[[Tensor], Tensor], b: Callable[[Tensor], Tensor]
) -> Monoid:
    """The monoid of both sums. Items (k [M, E], v [M, E], multiplicity [M]), shared (q [N, E],) -> output [N, E].

    Scores are s = m q . k. a1, a2, b: functions of a tensor, element by element, that torch can differentiate; b must
    not be zero. A key of multiplicity 0 is absent if a1(0) = a2(0) = 0.
    Source: spherical attention, arXiv 2505.09326, theorem 1.

    Example: weights divided by the sum of their sizes.
        >>> import torch
        >>> from flashsign import monoid_reduce, normalised_contraction
        >>> monoid = normalised_contraction("L1 attention", lambda s: s, torch.abs, lambda z: z + 1e-6)
        >>> q, k, v = torch.randn(20, 8), torch.randn(50, 8), torch.randn(50, 8)
        >>> monoid_reduce(monoid, (q,), (k, v, torch.ones(50))).shape
        torch.Size([20, 8])
    """

    a1, a2, b = (returning_a_tensor(each, f"{own} of {name}") for own, each in (("a1", a1), ("a2", a2), ("b", b)))

    def both(s: Tensor) -> tuple[Tensor, Tensor]:
        weights = a1(s), a2(s)
        for own, each in zip(("a1", "a2"), weights, strict=True):
            if each.shape != s.shape:
                raise ValueError(
                    f"{own} of {name} must work element by element; found {list(each.shape)} for {list(s.shape)}."
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
        forms=("(k [M, E], v [M, V], multiplicity [M]), shared (q [N, E])",),
    )
