"""How well a ranking of pairs finds the true edges, and how well the signs of weights agree with theirs.

Pairs are ranked by |weight|. Pairs of equal |weight| form one group, and pairs without a weight form the last group, so
that ties and missing pairs are treated exactly, at a cost that depends only on the number of weights.

Letters: U pairs, P pairs with a weight, G groups, K true edges, E true edges whose sign is known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import rankdata


@dataclass(frozen=True)
class Ranking:
    """All pairs by falling |weight|, in groups of equal |weight|. A pair's rank is its position, from 0.

    starts, ends [G]: rank of each group's first pair, and one past the rank of its last.   pairs: U, so many ranks.
    signs [P]: sign of the weight at each rank.   weighted: P.
    """

    starts: np.ndarray
    ends: np.ndarray
    signs: np.ndarray
    pairs: int

    @property
    def weighted(self) -> int:
        return len(self.signs)

    def group(self, ranks: np.ndarray) -> np.ndarray:
        """The group of each rank."""
        return np.searchsorted(self.ends, ranks, side="right")

    def cut(self, edges: int) -> int:
        """How many pairs are at or above the `edges`-th largest |weight|, ties included.

        Where fewer pairs have a weight, the number of those that have one (as in BEELINE: others are not predicted).
        """
        wanted = min(edges, self.weighted)
        return int(self.ends[self.group(np.array(wanted - 1))]) if wanted else 0


def rank(weights: np.ndarray, pairs: int) -> Ranking:
    """weights [P]: no zeros, sorted by falling |weight|.   pairs: U >= P."""
    size = np.abs(weights)
    last = np.append(size[1:] != size[:-1], True) if len(size) else np.zeros(0, bool)
    ends = np.flatnonzero(last) + 1
    if pairs > len(size):
        ends = np.append(ends, pairs)
    starts = np.concatenate([[0], ends[:-1]])
    return Ranking(starts.astype(np.int64), ends.astype(np.int64), np.sign(weights).astype(np.int8), pairs)


def ranking_scores(ranking: Ranking, ranks: np.ndarray) -> dict[str, float]:
    """Scores of the true edges, whose ranks are given [K]; nan where undefined.

    early_precision: share of true edges among `Ranking.cut(K)` pairs; early_precision_ratio: over the density K / U.
    auprc: average precision, sum over groups of the recall gained times the precision reached (scikit-learn's
    average_precision_score); auprc_ratio: over the density.   auprc_trapezoid: the area under straight lines between
    those points, from (0, 1), which is the figure that BEELINE publishes.   auroc: ties count half.
    """
    edges, pairs = len(ranks), ranking.pairs
    density = edges / pairs
    group, hits = np.unique(ranking.group(ranks), return_counts=True)
    starts, ends = ranking.starts[group], ranking.ends[group]
    found = np.cumsum(hits)
    precision = found / ends
    before = np.where(starts > 0, (found - hits) / np.maximum(starts, 1), 1.0)
    auprc = float((hits * precision).sum() / edges)
    others = pairs - edges
    others_above, others_level = starts - (found - hits), ends - starts - hits
    others_below = others - others_above - others_level
    cut = ranking.cut(edges)
    early = float(np.count_nonzero(ranks < cut) / cut) if cut else np.nan
    return {
        "early_precision": early,
        "early_precision_ratio": early / density,
        "auprc": auprc,
        "auprc_ratio": auprc / density,
        "auprc_trapezoid": float((hits * (precision + before)).sum() / (2 * edges)),
        "auroc": float((hits * (others_below + others_level / 2)).sum() / (edges * others)) if others else np.nan,
    }


def precision_recall(ranking: Ranking, ranks: np.ndarray) -> pd.DataFrame:
    """Columns recall, precision at the end of each group with a true edge. Drawn as steps, its area is the auprc.

    ranks [K]: those of the true edges.
    """
    group, hits = np.unique(ranking.group(ranks), return_counts=True)
    found = np.cumsum(hits)
    return pd.DataFrame({"recall": found / len(ranks), "precision": found / ranking.ends[group]})


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
