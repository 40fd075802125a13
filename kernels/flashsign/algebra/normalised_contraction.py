"""Attention by any normaliser whose two sums stream: o = sum_j a1(s_j) v_j / b(sum_j a2(s_j)).

Letters: N queries, M keys (items), E width. Source: spherical attention, arXiv 2505.09326, theorem 1.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from flashsign.algebra.monoid import Monoid, Total, add, constants, pass_on

Map = Callable[[Tensor], Tensor]


def normalised_contraction(name: str, a1: Map, a2: Map, b: Map) -> Monoid:
    """The monoid of the two sums. Items (k [M, E], v [M, E], multiplicity [M]), shared (q [N, E],) -> [N, E].

    Scores are s = m q . k. Multiplicity 0 is absence where a1(0) = a2(0) = 0. b is never zero.
    """

    def lift(items: Total, shared: Total) -> Total:
        (k, v, m), (q,) = items, shared
        s = (m[:, None] * k) @ q.mT
        return a1(s)[..., None] * v[:, None], a2(s)

    def finish(total: Total, shared: Total) -> Tensor:
        u, z = total
        return u / b(z)[..., None]

    return Monoid(name, constants(0.0, 0.0), lift, add, finish, pass_on)
