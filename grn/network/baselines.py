"""The plain methods that every network is compared with: correlations and ridge regression.

Letters: C cells, N genes, R regulators, T targets.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.stats import rankdata

PENALTIES = np.logspace(0, 5, 11)


def pearson(matrix: np.ndarray, genes: Sequence[str], regulators: Sequence[str]) -> pd.DataFrame:
    """Correlation of each regulator with each other gene: columns source, target, weight.

    matrix [C, N]: multiplicities of `genes`.   regulators: names among them. A gene that never varies has weight 0.
    """
    places = _places(genes, regulators)
    values = _standardised(matrix)
    return _edges(values[:, places].T @ values / len(values), genes, places)


def spearman(matrix: np.ndarray, genes: Sequence[str], regulators: Sequence[str]) -> pd.DataFrame:
    """As `pearson`, of the ranks of the cells (ties share their mean rank)."""
    return pearson(rankdata(np.asarray(matrix), axis=0), genes, regulators)


def ridge(matrix: np.ndarray, genes: Sequence[str], regulators: Sequence[str]) -> pd.DataFrame:
    """Coefficients of a ridge regression of each gene on the regulators, the gene itself left out, all standardised.

    Arguments and columns as in `pearson`. Each target has its own penalty from PENALTIES, the one with the smallest
    squared leave-one-out error over the cells: what scikit-learn's RidgeCV(PENALTIES, alpha_per_target=True) finds,
    for all targets from one eigendecomposition.
    """
    places = _places(genes, regulators)
    return _edges(_ridge_coefficients(_standardised(matrix), places), genes, places)


def ridge_predictions(training: np.ndarray, test: np.ndarray, regulators: np.ndarray) -> np.ndarray:
    """Expected multiplicities [D, N] of the test cells [D, N] by a ridge fitted on the training cells [C, N].

    regulators: positions among the genes.   As in `ridge`; no gene reads itself.
    """
    weights = _ridge_coefficients(_standardised(training), regulators)
    training = np.asarray(training, dtype=np.float64)
    mean, sd = training.mean(0), training.std(0)
    sd = np.where(_varies(training, sd), sd, 1)
    return mean + sd * (((test - mean) / sd)[:, regulators] @ weights)


def _ridge_coefficients(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    """[R, N], 0 of a gene on itself. values: standardised, [C, N].   places: positions of the regulators."""
    inputs = values[:, places]
    cells = len(values)
    eigenvalues, vectors = np.linalg.eigh(inputs.T @ inputs)
    turned = inputs @ vectors
    products = turned.T @ values
    best = np.full(values.shape[1], np.inf)
    weights = np.zeros((len(places), values.shape[1]))
    for penalty in PENALTIES:
        shrink = 1 / (np.maximum(eigenvalues, 0) + penalty)
        coefficients = (vectors * shrink) @ products
        leverage = ((turned**2) @ shrink)[:, None]
        residuals = values - inputs @ coefficients
        leverages = np.broadcast_to(leverage, residuals.shape).copy()
        # A regulator as a target leaves the inputs. With P = (X'X + penalty)^-1, block inversion gives its coefficients
        # on the others as -P_ij / P_ii, its residuals as X P_i / P_ii, and takes (X P_i)^2 / P_ii off the leverage.
        inverse = (vectors * shrink) @ vectors.T
        own = np.diag(inverse)
        shadow = inputs @ inverse
        coefficients[:, places] = -inverse / own
        residuals[:, places] = shadow / own
        leverages[:, places] -= shadow**2 / own
        # 1 / C: the intercept is fitted too.
        error = ((residuals / (1 - leverages - 1 / cells)) ** 2).mean(0)
        better = error < best
        best[better], weights[:, better] = error[better], coefficients[:, better]
    weights[np.arange(len(places)), places] = 0
    return weights


def _places(genes: Sequence[str], regulators: Sequence[str]) -> np.ndarray:
    places = pd.Index(genes).get_indexer(pd.Index(regulators))
    if (places < 0).any():
        raise ValueError(f"regulator {regulators[int((places < 0).argmax())]!r} is none of the genes")
    return places


def _standardised(matrix: np.ndarray) -> np.ndarray:
    """Mean 0 and standard deviation 1 over the cells; 0 throughout for a gene that never varies."""
    values = np.asarray(matrix, dtype=np.float64)
    values = values - values.mean(0)
    sd = values.std(0)
    varies = _varies(matrix, sd)
    return np.where(varies, values / np.where(varies, sd, 1), 0)


def _varies(matrix: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """Which columns vary by more than rounding."""
    return sd > 1e-12 * max(1.0, float(np.abs(matrix).max(initial=0)))


def _edges(weights: np.ndarray, genes: Sequence[str], places: np.ndarray) -> pd.DataFrame:
    """weights [R, N] as a table without self loops, sorted by |weight|."""
    names = np.asarray(genes, dtype=object)
    source, target = np.nonzero(places[:, None] != np.arange(len(genes)))
    table = pd.DataFrame({"source": names[places[source]], "target": names[target], "weight": weights[source, target]})
    return table.iloc[np.argsort(-table["weight"].abs().to_numpy(), kind="stable")].reset_index(drop=True)
