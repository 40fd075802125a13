"""False discovery rates of edges: how large are the weights of regulators that are not there?

Decoy regulators stand beside the real ones (grn/training/decoys.py makes and fits them); their weights are what chance
gives. A q-value is the least false discovery rate among the sets of strongest edges that hold the edge.

Letters: N target genes, R regulators, M decoy pairs.
"""

from __future__ import annotations

import numpy as np

NULL_FROM = 0.5  # p-values above it are taken to be of false edges alone: Storey's lambda


def q_values(weight: np.ndarray, decoy_weight: np.ndarray, candidates: np.ndarray | None = None) -> np.ndarray:
    """q [N, R], 0 to 1, 1 for no candidate; never larger for a larger |weight|.

    weight, decoy_weight [N, R]: of one fit, comparable as they are.   candidates bool [N, R]: pairs that may be edges
    (None: all); the decoys of the others are no part of the null either.
    Raises ValueError where shapes differ or a weight is not finite.
    Source: decoys as the null, Elias and Gygi 2007; the rate, Benjamini and Hochberg 1995; share of false edges,
    Storey 2002 (and its finite-sample form of 2004, which counts one p-value more).
    """
    candidates = np.ones(weight.shape, dtype=bool) if candidates is None else candidates
    if not weight.shape == decoy_weight.shape == candidates.shape:
        raise ValueError(f"weights {weight.shape}, decoys {decoy_weight.shape}, candidates {candidates.shape} differ")
    p = p_values(weight[candidates], decoy_weight[candidates])
    found = np.ones(weight.shape)
    found[candidates] = benjamini_hochberg(p, null_share(p))
    return found


def p_values(weight: np.ndarray, decoy_weight: np.ndarray) -> np.ndarray:
    """Share of decoys [M] that are at least as strong as each weight [n], the weight itself counted: never 0."""
    if not (np.isfinite(weight).all() and np.isfinite(decoy_weight).all()):
        raise ValueError("a weight is not finite")
    null = np.sort(np.abs(decoy_weight))
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
