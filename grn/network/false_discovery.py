"""False discovery rates of edges, against the weights of knock-off regulators.

Knock-offs are fitted beside the regulators (grn/regulation/knockoffs.py); their weights show what chance gives. The
q-value of an edge is the lowest false discovery rate among the sets of strongest edges that contain it.

Letters: N target genes, R regulators, M knock-off pairs.
"""

from __future__ import annotations

import numpy as np
import torch

from grn.network.readouts.effect import effect_network
from grn.regulation.knockoffs import KnockoffFit

NULL_FROM = 0.5  # p-values above it are taken to be of false edges alone: Storey's lambda


def knockoff_weights(fit: KnockoffFit) -> tuple[np.ndarray, np.ndarray]:
    """Balanced effects [N, R] of the regulators and of their knock-offs, from one fit."""
    one_type = torch.zeros(len(fit.inputs), dtype=torch.long, device=fit.inputs.device)
    weight = effect_network(fit.layer, fit.inputs, fit.basal, one_type).weight
    regulators = weight.shape[1] // 2
    return weight[:, :regulators], weight[:, regulators:]


def edge_q_values(fit: KnockoffFit, regulators: np.ndarray) -> np.ndarray:
    """q-value of every pair, [N, R], 0 to 1; 1 where a regulator meets itself. regulators: vocabulary positions [R].

    The q-values rank edges by the weights of this fit, in which every regulator competes with its knock-off: they are
    close to the weights of the network and not the same.
    """
    real, knockoff = knockoff_weights(fit)
    candidates = np.ones(real.shape, dtype=bool)
    candidates[regulators, np.arange(len(regulators))] = False
    return q_values(real, knockoff, candidates)


def q_values(weight: np.ndarray, null_weight: np.ndarray, candidates: np.ndarray | None = None) -> np.ndarray:
    """q [N, R], 0 to 1, never larger for a larger |weight|; 1 for pairs that are not candidates.

    weight, null_weight [N, R]: of one fit, so that they are comparable as they are.   candidates bool [N, R]: pairs
    that may be edges (None: all); the knock-offs of the others are not part of the null either.
    Raises ValueError where shapes differ or a weight is not finite.
    Source: competition with the null (target-decoy search), Elias and Gygi 2007; the rate, Benjamini and Hochberg 1995;
    the share of false edges, Storey 2002 (and its finite-sample form of 2004, which counts one p-value more).
    """
    candidates = np.ones(weight.shape, dtype=bool) if candidates is None else candidates
    if not weight.shape == null_weight.shape == candidates.shape:
        shapes = f"weights {weight.shape}, knock-offs {null_weight.shape}, candidates {candidates.shape}"
        raise ValueError(f"The shapes must be equal, and they are: {shapes}.")
    p = p_values(weight[candidates], null_weight[candidates])
    q = np.ones(weight.shape)
    q[candidates] = benjamini_hochberg(p, null_share(p))
    return q


def p_values(weight: np.ndarray, null_weight: np.ndarray) -> np.ndarray:
    """Share of knock-offs [M] that are at least as strong as each weight [n], the weight itself counted: never 0."""
    if not (np.isfinite(weight).all() and np.isfinite(null_weight).all()):
        raise ValueError("A weight is not finite.")
    null = np.sort(np.abs(null_weight))
    return (1 + len(null) - np.searchsorted(null, np.abs(weight), side="left")) / (1 + len(null))


def null_share(p: np.ndarray) -> float:
    """Estimated share of false edges among all, at most 1."""
    return float(min(1.0, (1 + (p > NULL_FROM).sum()) / (max(len(p), 1) * (1 - NULL_FROM))))


def benjamini_hochberg(p: np.ndarray, null_share: float = 1.0) -> np.ndarray:
    """q [n] of p-values [n]; equal p-values have equal q-values."""
    order = np.argsort(p)
    rate = null_share * p[order] * len(p) / np.arange(1, len(p) + 1)
    q = np.empty(len(p))
    q[order] = np.minimum(np.minimum.accumulate(rate[::-1])[::-1], 1)
    return q
