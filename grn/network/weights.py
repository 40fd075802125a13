"""The weights of a network, as every read-out gives them, and how rows of weights are balanced and cut.

Letters: N target genes, R regulators, P members.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

SORTED = 2**22  # most numbers that are ordered at once


@dataclass(frozen=True)
class Network:
    """Weights of regulators on targets.

    weight [N, R]: row = target, column = regulator, 0 where a gene meets itself; sparse where only the strongest were
    kept, with zeros among them stored.   by_type: the same for each cell type index.   confidence [N, R], 0 to 1: how
    well the ensemble members agree or, where the whole model is read, the share of the read bags in which the pair has
    the sign of its mean.
    """

    weight: np.ndarray | sp.csr_matrix
    by_type: dict[int, np.ndarray]
    confidence: np.ndarray


def balanced(weight: np.ndarray) -> np.ndarray:
    """Effects [N, R], each row divided by the square root of its norm.

    Raw effects rank all edges of well-predicted targets before those of the others. Effects divided by the norm itself
    rank the best edge of a target that cannot be predicted as high as any. The square root, half way between the two,
    ranked planted edges best (docs/log.md).
    """
    norm = np.sqrt(np.square(weight, dtype=np.float64).sum(1, keepdims=True))
    return (weight / np.sqrt(np.where(norm > 0, norm, 1))).astype(np.float32)


def members_agreement(weights: Tensor) -> Tensor:
    """|mean| over the root mean square of the members' weights [P, ...] -> [...], 0 to 1.

    1 where all members have the same weight, about 1 / sqrt(P) where weights are chance, 0.5 by convention for a single
    member, which says nothing about agreement.
    """
    if len(weights) == 1:
        return torch.full_like(weights[0], 0.5)
    size = weights.square().mean(0).sqrt()
    return torch.where(size > 0, weights.mean(0).abs() / torch.where(size > 0, size, 1), 0)


def strongest(weight: np.ndarray, top_k: int | None) -> np.ndarray:
    """bool [N, R]: the top_k regulators of each target by |weight| (None: all); of equal ones, the first are taken."""
    if top_k is None or top_k >= weight.shape[1]:
        return np.ones(weight.shape, dtype=bool)
    keep = np.empty(weight.shape, dtype=bool)
    rows = max(1, SORTED // weight.shape[1])
    for start in range(0, len(weight), rows):
        size = np.abs(weight[start : start + rows])
        last = -np.partition(-size, top_k - 1, axis=1)[:, top_k - 1 : top_k]
        above, level = size > last, size == last
        missing = top_k - above.sum(1, keepdims=True)
        keep[start : start + rows] = above | (level & (level.cumsum(1) <= missing))
    return keep


def without_self(weight: np.ndarray, regulators: np.ndarray) -> np.ndarray:
    """`weight` [N, R], set to 0 in place where a gene meets itself. regulators [R]: the row of each column's gene."""
    weight[regulators, np.arange(len(regulators))] = 0
    return weight
