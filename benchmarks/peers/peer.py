"""What a peer is, and steps that several peers have in common.

Letters: C cells, N genes, R regulators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd


@dataclass(frozen=True)
class Peer:
    """A method of inference.

    infer(values [C, N], genes, regulators, seed, *, n_jobs, **settings) -> DataFrame of source,
    target, weight: every ordered pair regulator -> gene but self loops. |weight| ranks the edge,
    its sign is activation or repression.
    sign: "own" where the method infers it, else "correlation": that of Pearson's correlation.
    parallel: whether the targets are distributed over `n_jobs` processes.
    unavailable: returns the reason why the method cannot run here, or None.
    """

    name: str
    infer: Callable[..., pd.DataFrame]
    source: str
    sign: str
    settings: Mapping[str, float | str] = field(default_factory=dict)
    parallel: bool = False
    unavailable: Callable[[], str | None] = lambda: None


def positions(genes: Sequence[str], regulators: Sequence[str]) -> np.ndarray:
    """[R], the index of each regulator among the genes."""
    index = {gene: number for number, gene in enumerate(genes)}
    missing = [name for name in regulators if name not in index]
    if missing:
        raise ValueError(f"{len(missing)} regulators are not among the genes, e.g. {missing[0]!r}")
    return np.array([index[name] for name in regulators], dtype=np.int64)


def edge_table(
    weights: np.ndarray, genes: Sequence[str], regulators: Sequence[str]
) -> pd.DataFrame:
    """weights [R, N] -> source, target, weight: one row per pair, without self loops."""
    weights = np.nan_to_num(np.asarray(weights, dtype=np.float64))
    keep = np.arange(len(genes))[None, :] != positions(genes, regulators)[:, None]
    row, column = np.nonzero(keep)
    names = np.asarray(genes, dtype=object)
    sources = np.asarray(regulators, dtype=object)
    return pd.DataFrame(
        {"source": sources[row], "target": names[column], "weight": weights[row, column]}
    )


def standardised(values: np.ndarray) -> np.ndarray:
    """Mean 0 and variance 1 for every gene, float64; a gene that never varies is 0."""
    values = np.asarray(values, dtype=np.float64)
    centred = values - values.mean(axis=0)
    sd = centred.std(axis=0)
    varies = sd > 1e-12 * np.maximum(np.abs(values).max(axis=0), 1e-300)
    return np.where(varies, centred / np.where(varies, sd, 1), 0)


def correlation(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Pearson's correlation of the genes `rows` [R] with all of values [C, N] -> [R, N]; 0 without
    variance.
    """
    z = standardised(values)
    return z[:, rows].T @ z / len(z)


def with_sign_of_correlation(
    importances: np.ndarray, values: np.ndarray, rows: np.ndarray
) -> np.ndarray:
    """Importances [R, N], which have no sign, with the sign of Pearson's correlation (+ where it is
    0).
    """
    return np.where(correlation(values, rows) < 0, -importances, importances)


def over_targets(
    fit: Callable[[np.ndarray, np.ndarray, int], np.ndarray],
    values: np.ndarray,
    rows: np.ndarray,
    seed: int,
    n_jobs: int,
) -> np.ndarray:
    """One fit per target, whose importances are a column of the result [R, N].

    fit(inputs [C, R or R - 1], target [C], seed) -> [R or R - 1]; the target is left out of its own
    inputs. A target's seed depends on `seed` and its index alone, so the number of processes
    changes nothing. Targets that never vary get importances of 0.
    """
    from joblib import Parallel, delayed

    targets = standardised(values)
    inputs = np.ascontiguousarray(values[:, rows], dtype=np.float32)
    seeds = np.random.SeedSequence(seed).generate_state(values.shape[1])
    fitted = [
        column
        for column in range(values.shape[1])
        if targets[:, column].any() and (rows != column).any()
    ]
    others = [rows != column for column in fitted]
    found = Parallel(n_jobs=n_jobs)(
        delayed(fit)(inputs[:, other], targets[:, column], int(seeds[column]))
        for column, other in zip(fitted, others, strict=True)
    )
    importances = np.zeros((len(rows), values.shape[1]))
    for column, other, importance in zip(fitted, others, found, strict=True):
        importances[other, column] = importance
    return importances
