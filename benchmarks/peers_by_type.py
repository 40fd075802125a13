"""Simple methods that give a network for each cell type: what networks in context are compared
with.

Letters: C cells, N genes, R regulators, K cell types.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from grn.networks.baselines import pearson, ridge

RHO = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)  # how freely a type differs from the others; 0: not at all
PENALTIES = np.logspace(0, 5, 16)
FOLDS = 5


def by_label(labels: Sequence[str]) -> dict[str, np.ndarray]:
    """Positions of the cells of each label."""
    return pd.Series(labels, dtype=object).groupby(list(labels), sort=False).indices


def pearson_each(
    x: np.ndarray, labels: Sequence[str], genes: list[str], regulators: list[str]
) -> dict[str, pd.DataFrame]:
    """Correlations over the cells of each type. x [C, N]: multiplicities."""
    return {label: pearson(x[rows], genes, regulators) for label, rows in by_label(labels).items()}


def ridge_each(
    x: np.ndarray, labels: Sequence[str], genes: list[str], regulators: list[str]
) -> dict[str, pd.DataFrame]:
    """Ridge regression on the cells of each type alone."""
    return {label: ridge(x[rows], genes, regulators) for label, rows in by_label(labels).items()}


def ridge_within(
    x: np.ndarray, labels: Sequence[str], genes: list[str], regulators: list[str]
) -> pd.DataFrame:
    """One ridge regression on what is left without the means of types, of regulators and of
    targets.
    """
    x = np.array(x, dtype=np.float64)
    for rows in by_label(labels).values():
        x[rows] -= x[rows].mean(0)
    return ridge(x, genes, regulators)


def ridge_shared(
    x: np.ndarray, labels: Sequence[str], genes: list[str], regulators: list[str], seed: int
) -> tuple[dict[str, pd.DataFrame], float, float]:
    """Ridge regression with shared slopes and a deviation for each type; also returns the chosen
    rho and penalty.

    Within type z, with genes standardised within types: y = sum_j (b_j + rho d_jz) x_j, one penalty
    on b and d alike: that is lambda on shared slopes and lambda / rho^2 on deviations (MATH: within
    types at rho = 0). One rho and one penalty for all targets, those with the smallest error on
    held-out cells.
    """
    types = list(by_label(labels).values())
    own = pd.Index(genes).get_indexer(pd.Index(regulators))
    fold = np.random.default_rng(seed).permutation(len(x)) % FOLDS
    error = np.zeros((len(RHO), len(PENALTIES)))
    for held_out in range(FOLDS):
        train = [rows[fold[rows] != held_out] for rows in types]
        units = [_units(x[rows]) for rows in train]
        moments = [_moments(x[rows], *unit, own) for rows, unit in zip(train, units, strict=True)]
        tests = [
            (x[rows[fold[rows] == held_out]] - mean) * scale
            for rows, (mean, scale) in zip(types, units, strict=True)
        ]
        grams = [(test[:, own].T @ test[:, own], test[:, own].T @ test) for test in tests]
        for number, rho in enumerate(RHO):
            for place, weights in enumerate(_solve(moments, rho, PENALTIES, own)):
                for (gram, cross), weight in zip(grams, weights, strict=True):
                    # The squared error without the sum of squares of y, which is the same for all.
                    error[number, place] += ((gram @ weight) * weight).sum() - 2 * (
                        weight * cross
                    ).sum()
    number, place = np.unravel_index(error.argmin(), error.shape)
    moments = [_moments(x[rows], *_units(x[rows]), own) for rows in types]
    (weights,) = _solve(moments, RHO[number], PENALTIES[[place]], own)
    found = {
        label: _table(weight, genes, own)
        for label, weight in zip(by_label(labels), weights, strict=True)
    }
    return found, RHO[number], float(PENALTIES[place])


def _units(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean [N] and 1 / sd [N], 0 where a gene never varies."""
    sd = x.std(0, dtype=np.float64)
    return x.mean(0, dtype=np.float64), np.where(sd > 1e-6, 1 / np.where(sd > 1e-6, sd, 1), 0)


def _moments(
    x: np.ndarray, mean: np.ndarray, scale: np.ndarray, own: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """X'X [R, R] and X'Y [R, N] of the cells of a type, standardised."""
    values = (x - mean) * scale
    return values[:, own].T @ values[:, own], values[:, own].T @ values


def _solve(
    moments: list[tuple[np.ndarray, np.ndarray]], rho: float, penalties: np.ndarray, own: np.ndarray
):
    """Slopes [K, R, N] for each penalty, 0 for a gene on itself.

    Features are [x, rho x 1_1, ..., rho x 1_K]. A regulator that is the target is not among them:
    with P the inverse of the penalised moments and S its places, the coefficients on the others are
    c - P[:, S] P[S, S]^-1 c[S].
    """
    kinds, regulators = len(moments), len(own)
    size = regulators * (kinds + 1)
    left = np.zeros((kinds + 1, regulators, kinds + 1, regulators))
    right = np.zeros((kinds + 1, regulators, moments[0][1].shape[1]))
    for number, (gram, cross) in enumerate(moments, start=1):
        left[0, :, 0] += gram
        left[0, :, number] = left[number, :, 0] = rho * gram
        left[number, :, number] = rho**2 * gram
        right[0] += cross
        right[number] = rho * cross
    left, right = left.reshape(size, size), right.reshape(size, -1)
    eigenvalues, vectors = np.linalg.eigh(left)
    for penalty in penalties:
        inverse = (vectors / (np.maximum(eigenvalues, 0) + penalty)) @ vectors.T
        slopes = inverse @ right
        for regulator, gene in enumerate(own):
            places = np.arange(kinds + 1) * regulators + regulator
            slopes[:, gene] -= inverse[:, places] @ np.linalg.solve(
                inverse[np.ix_(places, places)], slopes[places, gene]
            )
        slopes = slopes.reshape(kinds + 1, regulators, -1)
        yield slopes[0] + rho * slopes[1:]


def _table(weight: np.ndarray, genes: list[str], own: np.ndarray) -> pd.DataFrame:
    """weight [R, N] as source, target, weight, without self loops."""
    source, target = (own[:, None] != np.arange(len(genes))).nonzero()
    names = np.asarray(genes, dtype=object)
    return pd.DataFrame(
        {"source": names[own[source]], "target": names[target], "weight": weight[source, target]}
    )
