"""GENIE3: a random forest predicts each gene from the regulators; importance = variance that their splits explain.

As in the paper: targets of variance 1, 1000 trees grown to the end on bootstraps, the square root of the number of
regulators tried at a split, importances not normalised per target. Importances have no sign: the sign is that of
Pearson's correlation. Source: Huynh-Thu, Irrthum, Wehenkel and Geurts 2010.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
from sklearn.ensemble import RandomForestRegressor

from peers.peer import Peer, edge_table, over_targets, positions, with_sign_of_correlation


def infer(
    values: np.ndarray,
    genes: list[str],
    regulators: list[str],
    seed: int,
    *,
    n_jobs: int = -1,
    trees: int = 1000,
    max_features: str = "sqrt",
) -> pd.DataFrame:
    """values [C, N] -> one row per pair regulator -> gene."""
    rows = positions(genes, regulators)
    fit = partial(importances, trees=trees, max_features=max_features)
    found = over_targets(fit, values, rows, seed, n_jobs)
    return edge_table(with_sign_of_correlation(found, values, rows), genes, regulators)


def importances(inputs: np.ndarray, target: np.ndarray, seed: int, *, trees: int, max_features: str) -> np.ndarray:
    """inputs [C, R], target [C] of variance 1 -> [R]: variance explained by each input, mean over the trees."""
    forest = RandomForestRegressor(n_estimators=trees, max_features=max_features, random_state=seed)
    forest.fit(inputs, target)
    each = [tree.tree_.compute_feature_importances(normalize=False) for tree in forest.estimators_]
    return np.mean(each, axis=0)


PEER = Peer(
    "genie3",
    infer,
    source="Huynh-Thu et al. 2010",
    sign="correlation",
    settings={"trees": 1000, "max_features": "sqrt"},
    parallel=True,
)
