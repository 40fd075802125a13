"""How well the signs of weights agree with the signs of true edges.

Letters: E true edges whose sign is known.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import rankdata


def sign_scores(weight: np.ndarray, sign: np.ndarray, top: np.ndarray) -> dict[str, float]:
    """Scores of signed weights against true signs; nan where undefined.

    weight [E]: 0 where the pair has none; that counts as a wrong sign.   sign [E]: +1 or -1.
    top [E]: whether the edge is among the strongest K pairs.
    Balanced accuracy is the mean of the shares of + and of - edges that are right; it needs both signs, as does
    sign_auroc, the probability that a + edge has a larger weight than a - edge, ties counting half.
    """
    right = np.sign(weight) == sign
    positive = sign > 0
    return {
        "sign_accuracy": _share(right),
        "sign_balanced_accuracy": _balanced(right, positive),
        "sign_accuracy_top": _share(right[top]),
        "sign_balanced_accuracy_top": _balanced(right[top], positive[top]),
        "sign_auroc": auroc(weight, positive),
    }


def signed_early_precision(signs: np.ndarray, ranks: np.ndarray, true: np.ndarray) -> float:
    """Share of true edges with the right sign among the strongest pairs; edges of unknown sign are left out.

    signs: signs of the weights of the strongest pairs.   ranks [K], true [K]: rank and sign (0: unknown) of each true
    edge. nan where nothing is left.
    """
    inside = ranks < len(signs)
    found, true = signs[ranks[inside]], true[inside]
    scored = len(signs) - np.count_nonzero(true == 0)
    return float(np.count_nonzero((found == true) & (true != 0)) / scored) if scored else np.nan


def majority_share(sign: np.ndarray) -> float:
    """The accuracy of always predicting the more frequent sign."""
    return float(max((sign > 0).mean(), (sign < 0).mean())) if len(sign) else np.nan


def _share(right: np.ndarray) -> float:
    return float(right.mean()) if len(right) else np.nan


def _balanced(right: np.ndarray, positive: np.ndarray) -> float:
    ups = np.count_nonzero(positive)
    downs = len(positive) - ups
    if not ups or not downs:
        return np.nan
    return float((np.count_nonzero(right & positive) / ups + np.count_nonzero(right & ~positive) / downs) / 2)


def auroc(weight: np.ndarray, positive: np.ndarray) -> float:
    """The probability that a positive has a larger weight than another, ties counting half; nan without either."""
    ups = int(np.count_nonzero(positive))
    downs = len(positive) - ups
    if not ups or not downs:
        return np.nan
    return float((rankdata(weight)[positive].sum() - ups * (ups + 1) / 2) / (ups * downs))
