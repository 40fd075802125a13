"""Correlations and ridge regression, signed. Nothing is random and nothing parallel here.

pearson, spearman: symmetric, regulator -> target and back weigh the same; ties get their mean rank.
partial_correlation: of regulator and target given all other genes (all N, not the regulators
alone). The covariance of the standardised genes is shrunk towards a multiple of the identity with
Ledoit and Wolf's intensity, then inverted: p_ij = -K_ij / sqrt(K_ii K_jj), K the inverse. ridge: of
each gene on the regulators; the weight is the coefficient between standardised genes. The penalty
of each target is the best of 11 from 1 to 1e5 by leave-one-out error. A target that is a regulator
itself is left out of its own inputs.

Each takes values [C, N] and gives one row per pair regulator -> gene. scikit-learn is imported
where it is used, so that the memory that is measured is a method's own.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from peers.peer import Peer, correlation, edge_table, positions, standardised

PENALTIES = np.logspace(0, 5, 11)


def pearson(
    values: np.ndarray, genes: list[str], regulators: list[str], seed: int, *, n_jobs: int = 1
) -> pd.DataFrame:
    return edge_table(correlation(values, positions(genes, regulators)), genes, regulators)


def spearman(
    values: np.ndarray, genes: list[str], regulators: list[str], seed: int, *, n_jobs: int = 1
) -> pd.DataFrame:
    return pearson(rankdata(values, axis=0), genes, regulators, seed)


def partial_correlation(
    values: np.ndarray, genes: list[str], regulators: list[str], seed: int, *, n_jobs: int = 1
) -> pd.DataFrame:
    from sklearn.covariance import LedoitWolf

    precision = LedoitWolf(assume_centered=True).fit(standardised(values)).precision_
    scale = np.sqrt(np.diag(precision))
    partial = -precision / scale[:, None] / scale[None, :]
    return edge_table(partial[positions(genes, regulators)], genes, regulators)


def ridge(
    values: np.ndarray, genes: list[str], regulators: list[str], seed: int, *, n_jobs: int = 1
) -> pd.DataFrame:
    z = standardised(values)
    rows = positions(genes, regulators)
    weights = np.zeros((len(rows), len(genes)))
    plain = np.setdiff1d(np.arange(len(genes)), rows)
    if len(plain):  # they have the same inputs, so that one decomposition is enough
        weights[:, plain] = coefficients(z[:, rows], z[:, plain])
    for target in rows:
        others = rows != target
        if others.any():
            weights[others, target] = coefficients(z[:, rows[others]], z[:, [target]])[:, 0]
    return edge_table(weights, genes, regulators)


def coefficients(inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """inputs [C, R], targets [C, T] -> [R, T]."""
    from sklearn.linear_model import RidgeCV

    model = RidgeCV(PENALTIES, fit_intercept=False, alpha_per_target=True).fit(inputs, targets)
    return np.atleast_2d(model.coef_).T


PEERS = {
    "pearson": Peer("pearson", pearson, source="textbook", sign="own"),
    "spearman": Peer("spearman", spearman, source="textbook", sign="own"),
    "ridge": Peer("ridge", ridge, source="Hoerl and Kennard 1970", sign="own"),
    "partial_correlation": Peer(
        "partial_correlation",
        partial_correlation,
        source="Ledoit and Wolf 2004; Schaefer and Strimmer 2005",
        sign="own",
    ),
}
