"""Attention by any normaliser that is a fold: spherical, L1, squared ReLU and softmax from one
template.

Letters: C bags, H query heads, K key heads, N queries, M keys, E width; packed: T queries and S
keys. Source: spherical attention, arXiv 2505.09326, theorem 1; MonoidReduce, A. Cuba Gyllensten,
2025.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
from torch import Tensor

from flashsign.attention.dispatch import Backend
from flashsign.attention.validation import check_packing, check_tensors, require_tensors
from flashsign.eager.dense import zero_nonfinite_absent_keys
from flashsign.eager.packing import packed_attention
from flashsign.eager.transforms import as_autocast
from flashsign.folds.algebra.monoid import Monoid
from flashsign.folds.algebra.monoids.contractions import (
    SOFTMAX,
    normalised_contraction,
    spherical_monoid,
)
from flashsign.folds.algebra.reduce import monoid_reduce
from flashsign.folds.layers.backend import choose_fold
from flashsign.folds.layers.by_kernels import attention

Normaliser = Literal["spherical", "l1", "squared_relu", "softmax"]


def _or_one(z: Tensor) -> Tensor:
    """Return z, and 1 where it is 0: there u is 0, too."""
    return torch.where(z > 0, z, 1.0)


def _monoid(normaliser: Normaliser, eps: float) -> Monoid:
    if normaliser == "spherical":
        return spherical_monoid(eps)
    if normaliser == "softmax":
        return SOFTMAX
    if normaliser == "l1":
        return normalised_contraction("L1 attention", lambda s: s, torch.abs, _or_one)
    if normaliser == "squared_relu":
        squares = lambda s: s.relu().square()  # noqa: E731
        return normalised_contraction("squared ReLU attention", squares, squares, _or_one)
    raise ValueError(
        f"normaliser must be spherical, l1, squared_relu or softmax, not {normaliser!r}."
    )


def normalised_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    multiplicity: Tensor | None = None,
    *,
    offsets: Tensor | None = None,
    query_offsets: Tensor | None = None,
    normaliser: Normaliser = "spherical",
    eps: float = 1e-6,
    backend: Backend = "auto",
) -> Tensor:
    """Return sum_j a1(s_ij) v_j / b(sum_j a2(s_ij)) over dense or packed bags.

    Scores are s_ij = m_j q_i.k_j, and weights

        spherical      s / sqrt(sum s^2 + eps |q|^2 t + tiny)
        l1             s / sum |s|
        squared_relu   max(s, 0)^2 / sum max(s, 0)^2
        softmax        e^s / sum e^s

    The kernels of spherical_attention are faster than those of spherical here. Softmax takes scores
    as they are (scale q yourself), and m_j is how often j is listed.

    q [C, H, N, E], k and v [C, K, M, E], H a multiple of K, multiplicity [C, M] or [C, K, M], one
    floating dtype for q, k and v -> like q. Packed, as in spherical_attention: q [T, H, E], k and v
    [S, K, E], multiplicity [S] or [S, K], offsets and query_offsets [C + 1]; bags of similar size
    are padded and computed together. A row whose weights are all 0 has output 0; absent keys (m_j =
    0) may hold anything. Differentiable in all four. Weights and their gradients are rounded to the
    dtype before they meet values and keys, so in float16 a1(s) must be below 65504.
    Raises ShapeMismatch, ValueError for an unknown normaliser or backend.

    Example:
        >>> import torch
        >>> from flashsign import normalised_attention
        >>> q, k, v = torch.randn(2, 4, 20, 8), torch.randn(2, 2, 50, 8), torch.randn(2, 2, 50, 8)
        >>> output = normalised_attention(q, k, v, normaliser="softmax")
        >>> k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        >>> torch.allclose(output, torch.softmax(q @ k.mT, -1) @ v, atol=1e-5)
        True
    """
    monoid = _monoid(normaliser, eps)
    require_tensors(q=q, k=k, v=v)
    q, k, v = as_autocast(q, k, v)
    if offsets is not None or query_offsets is not None:
        offsets, query_offsets = check_packing(q, k, offsets, query_offsets)
        check_tensors(q, k, v, multiplicity, packed=True)
        assert offsets is not None and query_offsets is not None
        multiplicity = k.new_ones(len(k)) if multiplicity is None else multiplicity
        dense = partial(normalised_attention, normaliser=normaliser, eps=eps, backend=backend)
        return packed_attention(dense, q, k, v, multiplicity, offsets, query_offsets)
    check_tensors(q, k, v, multiplicity, packed=False)
    m = multiplicity if multiplicity is None or multiplicity.ndim == 3 else multiplicity[:, None]
    if m is not None:
        k, v = zero_nonfinite_absent_keys(k, v, m[..., None])

    def plain(q: Tensor, k: Tensor, v: Tensor, m: Tensor | None) -> Tensor:
        m = k.new_ones(1, 1, k.shape[2]) if m is None else m
        rows = q.reshape(len(q), k.shape[1], -1, *q.shape[2:])
        items = k[:, :, None], v[:, :, None], m[:, :, None]
        return monoid_reduce(monoid, (rows,), items, batch_dims=3).flatten(1, 2).to(q.dtype)

    if choose_fold(backend, "attention", q, q.shape[3:], q.shape[3:]) == "triton" and k.numel():
        return attention(plain, normaliser, q, k, v, m, eps)
    return plain(q, k, v, m)
