"""The definitions, written out with every weight in memory, for tests and figures.

Letters: C cells, H query heads, K key heads, N queries, M keys, E head width.
Source: spherical attention, arXiv 2505.09326; kernels/README.md.
"""

from __future__ import annotations

import torch
from torch import Tensor

from flashsign.attention.validation import check_tensors, require_tensors
from flashsign.errors import ShapeMismatch


def edge_weights(q: Tensor, k: Tensor, multiplicity: Tensor, eps: float = 1e-6) -> Tensor:
    """Return the normalised weight of every key on every query, per cell and head.

    Training does not identify its sign.

    w_ij = s_ij / sqrt(sum_j s_ij^2 + eps |q_i|^2 sum_j m_j^2 |k_j|^2 + tiny), s_ij = m_j q_i . k_j,
    so that a row's norm is at most 1. q [C, H, N, E], k [C, K, M, E], multiplicity [C, M] or [C, K,
    M] -> [C, H, N, M], in the inputs' own dtype.
    Raises ShapeMismatch as spherical_attention does.
    Source: spherical attention, arXiv 2505.09326.

    Example:
        >>> import torch
        >>> from flashsign import edge_weights
        >>> q, k = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4)
        >>> weights = edge_weights(q, k, torch.ones(1, 5))
        >>> weights.shape
        torch.Size([1, 2, 3, 5])
        >>> bool((weights.norm(dim=-1) <= 1).all())
        True
    """
    require_tensors(q=q, k=k)
    if q.ndim != 4 or k.ndim != 4 or q.shape[-1] != k.shape[-1] or q.shape[0] != k.shape[0]:
        raise ShapeMismatch(
            "q must be [C, H, N, E] and k [C, K, M, E] of the same cells and width; found q "
            f"{list(q.shape)}, k {list(k.shape)}."
        )
    check_tensors(q, k, k, multiplicity, packed=False)
    k, m = _per_query_head(q, k, multiplicity)
    s = m * (q @ k.mT)
    t = (m * k.mT).square().sum((-2, -1), keepdim=True)
    floor = eps * q.square().sum(-1, keepdim=True) * t
    return s / (s.square().sum(-1, keepdim=True) + floor + torch.finfo(s.dtype).tiny).sqrt()


def reference_spherical_attention(
    q: Tensor, k: Tensor, v: Tensor, multiplicity: Tensor, eps: float = 1e-6
) -> Tensor:
    """Return edge weights times values.

    q [C, H, N, E], k [C, K, M, E], v [C, K, M, V], multiplicity [C, M] or [C, K, M] ->
    [C, H, N, V], in the inputs' own dtype.
    """
    v, _ = _per_query_head(q, v, multiplicity)
    return edge_weights(q, k, multiplicity, eps) @ v


def _per_query_head(q: Tensor, rows: Tensor, multiplicity: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows (k or v) repeated to [C, H, M, E], NaN of absent keys replaced by 0.

    Multiplicity as [C, H or 1, 1, M].
    """
    group = q.shape[1] // rows.shape[1]
    m = (multiplicity if multiplicity.ndim == 3 else multiplicity[:, None]).to(rows.dtype)
    rows = torch.where((m[..., None] == 0) & ~rows.isfinite(), 0, rows)
    m = m.repeat_interleave(group, 1) if multiplicity.ndim == 3 else m
    return rows.repeat_interleave(group, 1), m[:, :, None]
