"""The simple methods that every network is compared with: Pearson, Spearman and ridge regression.

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
    positions = _positions(genes, regulators)
    values = _standardised(matrix)
    return _edges(values[:, positions].T @ values / len(values), genes, positions)


def spearman(matrix: np.ndarray, genes: Sequence[str], regulators: Sequence[str]) -> pd.DataFrame:
    """As `pearson`, of the ranks of the cells (ties share their mean rank)."""
    return pearson(rankdata(np.asarray(matrix), axis=0), genes, regulators)


def ridge(matrix: np.ndarray, genes: Sequence[str], regulators: Sequence[str]) -> pd.DataFrame:
    """Coefficients of a ridge regression of each gene on the regulators, the gene itself left out, all standardised.

    Arguments and columns as in `pearson`. Each target has its own penalty from PENALTIES: the one with the smallest
    squared leave-one-out error over the cells. The result is that of scikit-learn's RidgeCV(PENALTIES,
    alpha_per_target=True), computed for all targets from one eigendecomposition.
    """
    positions = _positions(genes, regulators)
    return _edges(_ridge_coefficients(_standardised(matrix), positions), genes, positions)


def ridge_predictions(training: np.ndarray, test: np.ndarray, regulators: np.ndarray) -> np.ndarray:
    """Expected multiplicities [D, N] of D test cells [D, N], by the regression of `ridge` on training cells [C, N].

    regulators [R]: positions among the genes. No gene is predicted from itself.
    """
    weights = _ridge_coefficients(_standardised(training), regulators)
    training = np.asarray(training, dtype=np.float64)
    mean, sd = training.mean(0), training.std(0)
    sd = np.where(_varies(training, sd), sd, 1)
    return mean + sd * (((test - mean) / sd)[:, regulators] @ weights)


def _ridge_coefficients(values: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """[R, N], 0 for a gene on itself. values [C, N]: standardised.   positions [R]: of the regulators."""
    inputs = values[:, positions]
    cells = len(values)
    eigenvalues, vectors = np.linalg.eigh(inputs.T @ inputs)
    rotated = inputs @ vectors
    products = rotated.T @ values
    best = np.full(values.shape[1], np.inf)
    weights = np.zeros((len(positions), values.shape[1]))
    for penalty in PENALTIES:
        shrink = 1 / (np.maximum(eigenvalues, 0) + penalty)
        coefficients = (vectors * shrink) @ products
        leverage = ((rotated**2) @ shrink)[:, None]
        residuals = values - inputs @ coefficients
        leverages = np.broadcast_to(leverage, residuals.shape).copy()
        # A regulator that is the target is not among the inputs. With P = (X'X + penalty)^-1, block inversion gives its
        # coefficients on the others as -P_ij / P_ii and its residuals as X P_i / P_ii, and it reduces the leverage by
        # (X P_i)^2 / P_ii.
        inverse = (vectors * shrink) @ vectors.T
        own = np.diag(inverse)
        projected = inputs @ inverse
        coefficients[:, positions] = -inverse / own
        residuals[:, positions] = projected / own
        leverages[:, positions] -= projected**2 / own
        # 1 / C is the leverage of the intercept.
        error = ((residuals / (1 - leverages - 1 / cells)) ** 2).mean(0)
        better = error < best
        best[better], weights[:, better] = error[better], coefficients[:, better]
    weights[np.arange(len(positions)), positions] = 0
    return weights


def _positions(genes: Sequence[str], regulators: Sequence[str]) -> np.ndarray:
    positions = pd.Index(genes).get_indexer(pd.Index(regulators))
    if (positions < 0).any():
        raise ValueError(f"The regulator {regulators[int((positions < 0).argmax())]!r} is none of the genes.")
    return positions


def _standardised(matrix: np.ndarray) -> np.ndarray:
    """Columns with mean 0 and standard deviation 1 over the cells; all 0 for a gene that never varies."""
    values = np.asarray(matrix, dtype=np.float64)
    values = values - values.mean(0)
    sd = values.std(0)
    varies = _varies(matrix, sd)
    return np.where(varies, values / np.where(varies, sd, 1), 0)


def _varies(matrix: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """bool [N]: which columns vary by more than rounding."""
    return sd > 1e-12 * max(1.0, float(np.abs(matrix).max(initial=0)))


def _edges(weights: np.ndarray, genes: Sequence[str], positions: np.ndarray) -> pd.DataFrame:
    """weights [R, N] as a table without self loops, sorted by |weight|."""
    names = np.asarray(genes, dtype=object)
    source, target = np.nonzero(positions[:, None] != np.arange(len(genes)))
    table = pd.DataFrame(
        {"source": names[positions[source]], "target": names[target], "weight": weights[source, target]}
    )
    return table.iloc[np.argsort(-table["weight"].abs().to_numpy(), kind="stable")].reset_index(drop=True)
