"""Spherical attention whose scores are the same for every bag: a table of genes, not a function of the cell.

    s_ij = q_i . k_j                     given as a table, [N, M]
    n_ci = sqrt(b_i^2 + sum_j (m_cj s_ij)^2 + eps)
    o_ci = sum_j (m_cj - c_j) s_ij v_j / n_ci

Where queries and keys belong to genes alone, bags differ by their multiplicities and by nothing else. Then both sums
over the keys are matrix products of multiplicities with a table, and no tensor has the axes bags x queries x keys.

Letters: C bags, N queries, M keys, E value width; leading axes are heads, ensemble members or both.
"""

from __future__ import annotations

import torch
from torch import Tensor

from flashsign.errors import ShapeMismatch


def attention_by_scores(
    scores: Tensor,
    values: Tensor,
    multiplicity: Tensor,
    *,
    centre: Tensor | None = None,
    basal: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """Spherical attention of many bags over one table of scores.

    Args:
        scores: [..., N, M], of every query with every key, for a multiplicity of 1.
        values: [..., M, E], of every key.
        multiplicity: [C, M], the same for all leading axes, or [..., C, M]; 0: the key is absent.
        centre: [..., M], multiplicities whose message is subtracted, under the same norm. None: nothing is.
        basal: [..., N], a score b_i of every query that is part of its norm and has no value. None: 0.
        eps: added under the root.

    Returns:
        [..., C, N, E], in the dtype of `scores`.

    Raises:
        ShapeMismatch: keys or queries of two arguments differ in number.

    Source: spherical attention, arXiv 2505.09326, section 3.

    Examples:
        >>> import torch
        >>> from flashsign import attention_by_scores
        >>> scores = torch.tensor([[3.0, -4.0]])
        >>> attention_by_scores(scores, torch.eye(2), torch.ones(1, 2))
        tensor([[[ 0.6000, -0.8000]]])
    """
    queries, keys = scores.shape[-2:]
    if values.shape[-2] != keys or multiplicity.shape[-1] != keys:
        raise ShapeMismatch(
            f"scores have {keys} keys, values {values.shape[-2]} and multiplicity {multiplicity.shape[-1]}; give each "
            "the same number"
        )
    if basal is not None and basal.shape[-1] != queries:
        raise ShapeMismatch(f"scores have {queries} queries and basal {basal.shape[-1]}; give both the same number")
    message = (scores.unsqueeze(-2) * values.mT.unsqueeze(-3)).flatten(-3, -2)  # [..., N E, M]
    sums, squares = _products(multiplicity, message), _products(multiplicity.square(), scores.square())
    if centre is not None:
        sums = sums - (message @ centre.unsqueeze(-1)).mT
    if basal is not None:
        squares = squares + basal.square().unsqueeze(-2)
    inverse = (squares + eps).rsqrt() if eps else squares.clamp(min=torch.finfo(squares.dtype).tiny).rsqrt()
    return sums.reshape(*sums.shape[:-1], queries, values.shape[-1]) * inverse.unsqueeze(-1)


def _products(multiplicity: Tensor, table: Tensor) -> Tensor:
    """multiplicity [C, M] or [..., C, M] with a table [..., F, M] -> [..., C, F]."""
    if multiplicity.ndim > 2 or table.ndim == 2:
        return multiplicity @ table.mT
    every = multiplicity @ table.flatten(0, -2).mT  # one product for all leading axes
    return every.reshape(len(multiplicity), *table.shape[:-1]).movedim(0, -2)
