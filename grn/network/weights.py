"""What every read-out gives, and the means over cells that it is made of.

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
    """Weights of regulators on targets. weight [N, R]: row = target, column = regulator, 0 on self pairs; sparse where
    only the strongest were kept, zeros among them stored.

    by_type: the same for each cell type index.   confidence [N, R], 0 to 1: how well the members agree, or, where the
    whole model is read, the share of the read bags in which the pair has the sign of its mean.
    """

    weight: np.ndarray | sp.csr_matrix
    by_type: dict[int, np.ndarray]
    confidence: np.ndarray


def balanced(weight: np.ndarray) -> np.ndarray:
    """Effects [N, R] over the square root of their target's norm.

    Raw effects rank the targets that are predicted well before all others; effects over the norm itself (shares of what
    is known of a target) rank the best of a hopeless target as high. Half way ranked planted edges best (docs/log.md).
    """
    norm = np.sqrt(np.square(weight, dtype=np.float64).sum(1, keepdims=True))
    return (weight / np.sqrt(np.where(norm > 0, norm, 1))).astype(np.float32)


def members_agreement(weights: Tensor) -> Tensor:
    """|mean| over the root mean square of the members' weights [P, ...]: 1 where all are alike, about 1 / sqrt(P) where
    only chance speaks. One member cannot disagree with itself: 0.5, knowing nothing."""
    if len(weights) == 1:
        return torch.full_like(weights[0], 0.5)
    size = weights.square().mean(0).sqrt()
    return torch.where(size > 0, weights.mean(0).abs() / torch.where(size > 0, size, 1), 0)


def strongest(weight: np.ndarray, top_k: int | None) -> np.ndarray:
    """bool [N, R]: the top_k regulators of each target by |weight|, of equals the first (None: all)."""
    if top_k is None or top_k >= weight.shape[1]:
        return np.ones(weight.shape, dtype=bool)
    keep = np.empty(weight.shape, dtype=bool)
    rows = max(1, SORTED // weight.shape[1])
    for start in range(0, len(weight), rows):
        size = np.abs(weight[start : start + rows])
        last = -np.partition(-size, top_k - 1, axis=1)[:, top_k - 1 : top_k]
        above, level = size > last, size == last
        room = top_k - above.sum(1, keepdims=True)
        keep[start : start + rows] = above | (level & (level.cumsum(1) <= room))
    return keep


def without_self(weight: np.ndarray, regulators: np.ndarray) -> np.ndarray:
    """The same array with 0 where a regulator meets itself. regulators [R]: which rows the columns are."""
    weight[regulators, np.arange(len(regulators))] = 0
    return weight


class PairMean:
    """Running mean of a value per (target, regulator) pair over the bags in which the pair can be read."""

    def __init__(self, targets: int, regulators: int):
        self.sum = np.zeros((targets, regulators))
        self.sign = np.zeros((targets, regulators))
        self.count = np.zeros((targets, regulators))

    def add(self, values: np.ndarray, readable: np.ndarray, columns: slice) -> None:
        """values and readable [B, N, r] for the regulators `columns`; unreadable values do not count."""
        values = np.where(readable, values, 0)
        self.sum[:, columns] += values.sum(0)
        self.sign[:, columns] += np.sign(values).sum(0)
        self.count[:, columns] += readable.sum(0)

    def mean(self) -> np.ndarray:
        """NaN where no bag had the pair."""
        with np.errstate(invalid="ignore"):
            return self.sum / np.where(self.count > 0, self.count, np.nan)


def average(means: dict[int, PairMean], cells: dict[int, int], unit: np.ndarray, regulators: np.ndarray) -> Network:
    """The network over all cells: each type's mean, weighted by its number of cells.

    All are in units of `unit`, then `balanced`. A pair that no bag of a type could read takes its mean over the other
    types. regulators [R]: which rows the columns are.
    """
    types = list(means)
    stack = np.stack([means[kind].mean() for kind in types])
    known = ~np.isnan(stack)
    shares = np.array([cells[kind] for kind in types], dtype=float)[:, None, None] * known
    total = shares.sum(0)
    overall = np.nan_to_num(np.where(known, stack, 0) * shares).sum(0) / np.where(total > 0, total, 1)
    stack = np.where(known, stack, overall)

    count = np.maximum(sum(mean.count for mean in means.values()), 1)
    agreement = 0.5 + 0.5 * sum(mean.sign for mean in means.values()) * np.sign(overall) / count

    def finished(weight: np.ndarray) -> np.ndarray:
        return balanced(without_self(weight * unit, regulators))

    by_type = {kind: finished(weight) for kind, weight in zip(types, stack, strict=True) if kind >= 0}
    return Network(finished(overall), by_type, np.clip(agreement, 0, 1).astype(np.float32))
