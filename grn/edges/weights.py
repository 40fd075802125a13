"""The weights of a network, as every read-out gives them, and how rows of weights are balanced and
cut.

Letters: N target genes, R regulators.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

Table = TypeVar("Table", np.ndarray, Tensor)
SORTED = 2**22  # most numbers that are ordered at once


@dataclass(frozen=True)
class Network:
    """Weights of regulators on targets, [N, R] each: row = target, column = regulator, 0 where a
    gene meets itself.

    weight: what the trained model's signed blocks do, in sds of the target for a usual sd of the
        regulator, `balanced`.
    sd: of the weight over the ensemble's members.
    total: the weight with what goes through other regulators and the context; indirect, 0 to 1: the
        share of the total that does.
    between, -1 to 1: the correlation of the states' levels, which is no part of a weight.
    cells: how many have both genes. effect, with its standard error: log2 fold change of the target
        for a doubling of the regulator, not shrunk (evidence/effects.py); None where it was not
        computed, NaN where there is none. confidence, 0.5 to 1: that the sign is right; q: q-values
        (evidence/q_values.py); None where they were not computed. caused, with the ends of its
        interval and its q-values: what an intervention on the regulator did, in sds of the target
        (evidence/caused.py); NaN where there was none, None where there were none at all.
    observed: the weight by a regulator's messenger alone; NaN of one that was not measured, None
        likewise.
    of_states: the same for each state.
    """

    weight: np.ndarray
    sd: np.ndarray
    total: np.ndarray
    indirect: np.ndarray
    between: np.ndarray
    cells: np.ndarray
    effect: np.ndarray | None = None
    effect_se: np.ndarray | None = None
    confidence: np.ndarray | None = None
    q: np.ndarray | None = None
    caused: np.ndarray | None = None
    caused_low: np.ndarray | None = None
    caused_high: np.ndarray | None = None
    caused_q: np.ndarray | None = None
    observed: np.ndarray | None = None
    of_states: dict[str, Network] = field(default_factory=dict)


def seen_enough(network: Network, least: int) -> Network:
    """Return the network without weights of pairs that fewer than `least` cells have together:
    these are chance.
    """
    few = network.cells < least
    tables = {
        name: np.where(few, 0, getattr(network, name))
        for name in ("weight", "sd", "total", "indirect")
    }
    return replace(
        network,
        **tables,
        of_states={name: seen_enough(of, least) for name, of in network.of_states.items()},
    )


def row_factors(weight: Tensor) -> Tensor:
    """Return the positive factor of each row of effects [N, R] that `balanced` multiplies it by:
    [N, 1].
    """
    weight = weight.double()
    norm = weight.square().sum(1, keepdim=True).sqrt()
    typical = norm.square().mean().sqrt()
    factor = torch.where(norm > 0, norm, 1).rsqrt()
    scaled = weight * factor
    return factor * (typical / (scaled.square().sum() / len(weight)).sqrt().clamp(min=1e-30))


def balanced(weight: Tensor) -> Tensor:
    """Effects [N, R], float32, each row divided by the square root of its norm, in units of the
    rows' typical norm.

    Raw effects rank all edges of well-predicted targets first, effects divided by the norm itself
    those of targets that cannot be predicted as high; the square root ranked planted edges best
    (docs/log.md). The typical norm (root mean square) keeps the sum of squares: effects that are
    nearly zero everywhere stay so.
    """
    return (weight.double() * row_factors(weight)).float()


def strongest(weight: np.ndarray, top_k: int | None) -> np.ndarray:
    """bool [N, R]: the top_k regulators of each target by |weight| (None: all); of equal ones, the
    first are taken.
    """
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
    """`weight` [N, R], set to 0 in place where a gene meets itself. regulators [R]: the row of each
    column's gene.
    """
    weight[regulators, np.arange(len(regulators))] = 0
    return weight


def presence(sds: Tensor, usual: Tensor) -> Tensor:
    """0 for a regulator that does not vary in a state, 1 from half its usual sd on. sds [S, R],
    usual [R] -> [S, R].

    Slopes times sds would rank a regulator by how much of it there is in the state, where it is the
    slope that tells whether it regulates (docs/log.md).
    """
    return (2 * sds / usual.clamp(min=1e-6)).clamp(max=1)
