"""Trees predict each gene from the regulators; their importances have the sign of Pearson's
correlation.

GENIE3: a random forest; importance = variance that its splits explain. As in the paper: targets of
variance 1, 1000 trees grown to the end on bootstraps, the square root of the number of regulators
tried at a split, importances not normalised per target. Source: Huynh-Thu, Irrthum, Wehenkel and
Geurts 2010.

GRNBoost2: gradient boosting, stopped early by out-of-bag improvement. Settings as its authors
publish them: learning rate 0.01, a tenth of the regulators tried at a split, 90 % of the cells in
each round, at most 5000 rounds; it ends when the mean out-of-bag improvement of the last 25 rounds
is negative. Importances, which sum to 1, are multiplied by the number of rounds: targets that took
more rounds weigh more. The improvement is that of the error on the cells that a round left out.
That is what scikit-learn's `oob_improvement_` was before 1.3; since then it compares the left-out
cells of one round with other cells of the round before, which is noise so large that nearly every
fit ends after 25 rounds. So it is computed here. Source: Moerman et al. 2019.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor

from peers.peer import Peer, edge_table, over_targets, positions, with_sign_of_correlation


def genie3(
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
    fit = partial(forest_importances, trees=trees, max_features=max_features)
    found = over_targets(fit, values, rows, seed, n_jobs)
    return edge_table(with_sign_of_correlation(found, values, rows), genes, regulators)


def forest_importances(
    inputs: np.ndarray, target: np.ndarray, seed: int, *, trees: int, max_features: str
) -> np.ndarray:
    """inputs [C, R], target [C] of variance 1 -> [R]: variance explained by each input, mean over
    the trees.
    """
    forest = RandomForestRegressor(n_estimators=trees, max_features=max_features, random_state=seed)
    forest.fit(inputs, target)
    each = [tree.tree_.compute_feature_importances(normalize=False) for tree in forest.estimators_]
    return np.mean(each, axis=0)


GENIE3 = Peer(
    "genie3",
    genie3,
    source="Huynh-Thu et al. 2010",
    sign="correlation",
    settings={"trees": 1000, "max_features": "sqrt"},
    parallel=True,
)


def grnboost2(
    values: np.ndarray,
    genes: list[str],
    regulators: list[str],
    seed: int,
    *,
    n_jobs: int = -1,
    rounds: int = 5000,
    window: int = 25,
    learning_rate: float = 0.01,
    max_features: float = 0.1,
    subsample: float = 0.9,
) -> pd.DataFrame:
    """values [C, N] -> one row per pair regulator -> gene."""
    rows = positions(genes, regulators)
    settings = {
        "n_estimators": rounds,
        "learning_rate": learning_rate,
        "max_features": max_features,
        "subsample": subsample,
    }
    fit = partial(boosting_importances, window=window, settings=settings)
    found = over_targets(fit, values, rows, seed, n_jobs)
    return edge_table(with_sign_of_correlation(found, values, rows), genes, regulators)


def boosting_importances(
    inputs: np.ndarray, target: np.ndarray, seed: int, *, window: int, settings: dict[str, Any]
) -> np.ndarray:
    """inputs [C, R], target [C] -> [R]."""
    model = GradientBoostingRegressor(random_state=seed, **settings)
    model.fit(inputs, target, monitor=EarlyStop(window))
    return model.feature_importances_ * len(model.estimators_)


class EarlyStop:
    """Called after each round: stops when the mean improvement of the last `window` rounds is
    negative.
    """

    def __init__(self, window: int) -> None:
        self.window = window
        self.improvements: list[float] = []

    def __call__(self, done: int, model: GradientBoostingRegressor, state: dict[str, Any]) -> bool:
        """state:
        the loop's variables, which scikit-learn passes to a monitor; y [C] is the target.
        """
        left_out = ~state["sample_mask"]
        after = state["y"][left_out] - state["raw_predictions"][left_out, 0]
        step = (
            model.learning_rate
            * model.estimators_[done, 0].tree_.predict(state["X"][left_out])[:, 0]
        )
        self.improvements.append(float(np.mean((after + step) ** 2) - np.mean(after**2)))
        return (
            len(self.improvements) >= self.window and np.mean(self.improvements[-self.window :]) < 0
        )


GRNBOOST2 = Peer(
    "grnboost2",
    grnboost2,
    source="Moerman et al. 2019",
    sign="correlation",
    settings={
        "rounds": 5000,
        "window": 25,
        "learning_rate": 0.01,
        "max_features": 0.1,
        "subsample": 0.9,
    },
    parallel=True,
)


PEERS = {"genie3": GENIE3, "grnboost2": GRNBOOST2}
