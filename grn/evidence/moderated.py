"""Variances that few replicates give, moderated by those of all genes and interventions.

Each variance is its own true one times a chi-square of few degrees of freedom. The true ones are
taken to be a common one over a chi-square of `prior` degrees: where they hardly differ it has many,
and a variance is believed little by itself. Sources: Smyth 2004; Law et al. 2014 (a trend).
"""

from __future__ import annotations

import numpy as np
from scipy.special import digamma, polygamma

MOST = 1e6  # degrees of freedom that are as good as any number
NEWTON = 50  # steps, of which few are needed


def moderated(
    variance: np.ndarray, freedom: np.ndarray, size: np.ndarray, most: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return moderated variances and their degrees of freedom, both [n].

    variance, freedom [n]: of each by itself, freedom >= 1.
    size [n]: of what the variance is of, in its errors if there were no variance between
        replicates: large effects may differ more between them, and none less.
    most: degrees of freedom that all of them have together; no moderated one has more.
    """
    told = variance > 0
    if told.sum() < 2:
        return variance, np.minimum(freedom, most)
    log = np.log(variance[told]) - digamma(freedom[told] / 2) + np.log(freedom[told] / 2)
    along = np.log1p(np.square(size))
    away = along[told] - along[told].mean()
    slope = max(float(away @ log) / max(float(away @ away), 1e-12), 0.0)
    apart = float((log - slope * away).var(ddof=1) - polygamma(1, freedom[told] / 2).mean())
    prior = min(2 * _inverse_trigamma(apart), MOST) if apart > 0 else MOST
    expected = log.mean() + slope * (along - along[told].mean())
    common = np.exp(expected + digamma(prior / 2) - np.log(prior / 2))
    found = (prior * common + freedom * variance) / (prior + freedom)
    return found, np.minimum(prior + freedom, most)


def _inverse_trigamma(value: float) -> float:
    """Return x > 0 where trigamma(x) is `value` > 0, by Newton's steps on 1 / trigamma, which is
    convex and nearly linear.
    """
    x = 0.5 + 1 / value
    for _ in range(NEWTON):
        found = polygamma(1, x)
        step = found * (1 - found / value) / polygamma(2, x)
        x += step
        if abs(step) < 1e-8 * x:
            break
    return float(x)
