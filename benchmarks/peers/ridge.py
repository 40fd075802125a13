"""Ridge regression of each gene on the regulators; the weight is the coefficient between standardised genes.

The penalty of each target is the best of 11 from 1 to 1e5 by leave-one-out error. A target that is a regulator
itself is left out of its own inputs.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from sklearn.linear_model import RidgeCV

from peers.peer import Peer, edge_table, positions, standardised

PENALTIES = np.logspace(0, 5, 11)


def infer(values: np.ndarray, genes: list[str], regulators: list[str], seed: int, *, n_jobs: int = 1) -> pd.DataFrame:
    """values [C, N] -> one row per pair regulator -> gene; nothing is random and nothing parallel here."""
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
    model = RidgeCV(PENALTIES, fit_intercept=False, alpha_per_target=True).fit(inputs, targets)
    return np.atleast_2d(model.coef_).T


PEER = Peer("ridge", infer, source="Hoerl and Kennard 1970", sign="own")
