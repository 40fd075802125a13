"""GRNBoost2: gradient boosting predicts each gene from the regulators, stopped early by out-of-bag improvement.

Settings as its authors publish them: learning rate 0.01, a tenth of the regulators tried at a split, 90 % of the cells
in each round, at most 5000 rounds; it ends when the mean out-of-bag improvement of the last 25 rounds is negative.
Importances, which sum to 1, are multiplied by the number of rounds: targets that took more rounds weigh more.
The improvement is that of the error on the cells that a round left out. That is what scikit-learn's
`oob_improvement_` was before 1.3; since then it compares the left-out cells of one round with other cells of the round
before, which is noise so large that nearly every fit ends after 25 rounds. So it is computed here.

Importances have no sign: the sign is that of Pearson's correlation. Source: Moerman et al. 2019.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import GradientBoostingRegressor

from peers.peer import Peer, edge_table, over_targets, positions, with_sign_of_correlation


def infer(
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
    fit = partial(importances, window=window, settings=settings)
    found = over_targets(fit, values, rows, seed, n_jobs)
    return edge_table(with_sign_of_correlation(found, values, rows), genes, regulators)


def importances(
    inputs: np.ndarray, target: np.ndarray, seed: int, *, window: int, settings: dict[str, Any]
) -> np.ndarray:
    """inputs [C, R], target [C] -> [R]."""
    model = GradientBoostingRegressor(random_state=seed, **settings)
    model.fit(inputs, target, monitor=EarlyStop(window))
    return model.feature_importances_ * len(model.estimators_)


class EarlyStop:
    """Called after each round: stops when the mean improvement of the last `window` rounds is negative."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.improvements: list[float] = []

    def __call__(self, done: int, model: GradientBoostingRegressor, state: dict[str, Any]) -> bool:
        """state: the loop's variables, which scikit-learn passes to a monitor; y [C] is the target."""
        left_out = ~state["sample_mask"]
        after = state["y"][left_out] - state["raw_predictions"][left_out, 0]
        step = model.learning_rate * model.estimators_[done, 0].tree_.predict(state["X"][left_out])[:, 0]
        self.improvements.append(float(np.mean((after + step) ** 2) - np.mean(after**2)))
        return len(self.improvements) >= self.window and np.mean(self.improvements[-self.window :]) < 0


PEER = Peer(
    "grnboost2",
    infer,
    source="Moerman et al. 2019",
    sign="correlation",
    settings={"rounds": 5000, "window": 25, "learning_rate": 0.01, "max_features": 0.1, "subsample": 0.9},
    parallel=True,
)
