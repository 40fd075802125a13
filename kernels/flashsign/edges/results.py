"""Results of edge sums: the means of every pair, and the strongest regulators of every target.

Letters: N targets, R regulators.
"""

from __future__ import annotations

from typing import NamedTuple, overload

import torch
from torch import Tensor


class EdgeMeans(NamedTuple):
    """Means over bags and heads, [N, R] each: signed, of w; absolute, of |w| (None where only signed sums are kept).

    A change of sign of q or of k leaves the absolute mean as it is and changes the sign of the signed one.

    Example:
        >>> import torch
        >>> from flashsign import EdgeSums
        >>> q, k = torch.randn(4, 2, 3, 8), torch.randn(4, 2, 5, 8)
        >>> means = EdgeSums(3, 5).add(q, k).mean()
        >>> bool((means.signed.abs() <= means.absolute + 1e-6).all())
        True
    """

    signed: Tensor
    absolute: Tensor | None


class TopEdges(NamedTuple):
    """The strongest regulators of every target, strongest first, [N, k] each, with their means.

    Where a target has fewer than k, the rest has regulator -1 and means 0. absolute: None where it was not kept.

    Example:
        >>> import torch
        >>> from flashsign import EdgeSums
        >>> q, k = torch.randn(4, 2, 3, 8), torch.randn(4, 2, 5, 8)
        >>> EdgeSums(3, 5).add(q, k).top(2).regulator.shape
        torch.Size([3, 2])
    """

    regulator: Tensor
    signed: Tensor
    absolute: Tensor | None


def stacked(found: list[TopEdges], k: int, absolute: bool, like: Tensor) -> TopEdges:
    """The edges of all targets from those of consecutive tiles, [rows, k] each; like: dtype and device of the means."""
    empty = like.new_zeros(0, k)
    found = [TopEdges(empty.long(), empty, empty if absolute else None), *found]
    sizes = [edges.absolute for edges in found if edges.absolute is not None]
    regulator, signed = torch.cat([edges.regulator for edges in found]), torch.cat([edges.signed for edges in found])
    return TopEdges(regulator, signed, torch.cat(sizes) if absolute else None)


@overload
def taken(table: Tensor, at: Tensor) -> Tensor: ...
@overload
def taken(table: Tensor | None, at: Tensor) -> Tensor | None: ...
def taken(table: Tensor | None, at: Tensor) -> Tensor | None:
    """table[i, at[i, r]] for at [N, k], 0 where at is -1; None for no table."""
    return None if table is None else torch.where(at >= 0, table.gather(1, at.clamp_min(0)), 0)
