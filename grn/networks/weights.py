"""The weights of a network, as every read-out gives them, and how rows of weights are balanced and cut.

Letters: N target genes, R regulators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

Table = TypeVar("Table", np.ndarray, Tensor)
SORTED = 2**22  # most numbers that are ordered at once


@dataclass(frozen=True)
class Network:
    """Weights of regulators on targets.

    weight [N, R]: row = target, column = regulator, 0 where a gene meets itself; sparse where only the strongest were
    kept, with zeros among them stored.   by_type: the same for each cell type (or other state of cells), by name.
    confidence [N, R], 0 to 1: that the sign is right (false_discovery.py), or, where the whole model is read, the share
    of the read bags in which the pair has the sign of its mean.   within [N, R]: the weight of differences between
    cells of one type alone; between [N, R], -1 to 1: the correlation of the types' levels; both None where the read-out
    does not tell them apart.   total [N, R]: the weight with what goes through other regulators, and indirect [N, R],
    0 to 1: the share of the effect that does; None where direct effects were not told apart (direct.py).
    type_confidence, type_indirect: as those, for each type.   q, type_q: q-values, where known.
    """

    weight: np.ndarray | sp.csr_matrix
    by_type: dict[str, np.ndarray]
    confidence: np.ndarray
    within: np.ndarray | None = None
    between: np.ndarray | None = None
    type_confidence: dict[str, np.ndarray] = field(default_factory=dict)
    q: np.ndarray | None = None
    type_q: dict[str, np.ndarray] = field(default_factory=dict)
    total: np.ndarray | None = None
    indirect: np.ndarray | None = None
    type_indirect: dict[str, np.ndarray] = field(default_factory=dict)

    def with_names(self, names: Sequence[str]) -> Network:
        """The same with the names of the types in place of their numbers, which are texts."""
        by_type, indirect = (
            {names[int(number)]: values for number, values in of.items()} for of in (self.by_type, self.type_indirect)
        )
        return replace(self, by_type=by_type, type_indirect=indirect)

    def of_type(self, name: str) -> Network:
        """The network of one cell type by itself."""
        weight = self.by_type[name]
        confidence = self.type_confidence.get(name, self.confidence)
        within = None if self.within is None else weight
        indirect = self.type_indirect.get(name, self.indirect)
        q = self.type_q.get(name, self.q)
        return Network(weight, {}, confidence, within, self.between, indirect=indirect, q=q)


def balanced(weight: Tensor) -> Tensor:
    """Effects [N, R], float32, each row divided by the square root of its norm, in units of the rows' typical norm.

    Raw effects rank all edges of well-predicted targets first, effects divided by the norm itself those of targets that
    cannot be predicted as high; the square root ranked planted edges best (docs/log.md). The typical norm (root mean
    square) keeps the sum of squares: effects that are nearly zero everywhere stay so.
    """
    weight = weight.double()
    norm = weight.square().sum(1, keepdim=True).sqrt()
    typical = norm.square().mean().sqrt()
    if typical == 0:
        return torch.zeros_like(weight, dtype=torch.float32)
    scaled = weight / torch.where(norm > 0, norm, 1).sqrt()
    return (scaled * (typical / (scaled.square().sum() / len(weight)).sqrt())).float()


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


def without_self(weight: Table, regulators: np.ndarray) -> Table:
    """`weight` [N, R], set to 0 in place where a gene meets itself. regulators [R]: the row of each column's gene."""
    weight[regulators, np.arange(len(regulators))] = 0
    return weight
