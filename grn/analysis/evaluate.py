"""Evaluates a network by the rules of BEELINE (Pratapa et al. 2020), with ties, signs and p-values spelled out.

Letters: U pairs of the universe, K true edges, E true edges whose sign is known.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from grn.analysis.ranking import (
    Ranking,
    majority_share,
    precision_recall,
    rank,
    ranking_scores,
    sign_scores,
    signed_early_precision,
)
from grn.analysis.universe import Universe, make_universe
from grn.cells.genes import near_miss
from grn.errors import DataError

SCORES = {
    "early_precision": "early precision",
    "early_precision_ratio": "early precision / density",
    "auprc": "AUPRC (average precision)",
    "auprc_ratio": "AUPRC / density",
    "auprc_trapezoid": "AUPRC by BEELINE's trapezoid",
    "auroc": "AUROC",
    "signed_early_precision": "early precision, right sign only",
    "sign_accuracy": "sign accuracy on true edges",
    "sign_balanced_accuracy": "sign accuracy, balanced",
    "sign_accuracy_top": "sign accuracy among the top K",
    "sign_balanced_accuracy_top": "sign accuracy among the top K, balanced",
    "sign_auroc": "AUROC of the weight, + against -",
    "sign_majority": "share of the majority sign",
}
RANKED = tuple(SCORES)[:6]
OF_SIGNS = tuple(name for name in SCORES if name not in (*RANKED, "sign_majority"))
SAME = 1e-12  # equal scores may differ by this much, because the order of summation differs


@dataclass(frozen=True)
class Evaluation:
    """The scores of a network against a reference.

    scores: by the names in SCORES; nan where undefined.   p_values: the same names but sign_majority, which is a
    property of the reference; nan where the score is undefined or nothing was permuted.
    predicted: pairs of the universe with a weight other than 0.   outside: other predicted pairs, not in the universe.
    cut: number of pairs at or above the K-th largest |weight|, ties included, on which early precision is computed.
    silent: true edges of known sign without a weight, which count as wrong signs.
    signed: whether signs were scored.   curve: columns recall, precision (see precision_recall).
    """

    universe: Universe
    scores: dict[str, float]
    p_values: dict[str, float]
    predicted: int
    outside: int
    cut: int
    silent: int
    signed: bool
    curve: pd.DataFrame


def evaluate(
    predicted: pd.DataFrame,
    reference: pd.DataFrame,
    *,
    regulators: Iterable[str] | str | None = None,
    genes: Iterable[str] | None = None,
    signed: bool | None = None,
    permutations: int = 1000,
    seed: int = 0,
) -> Evaluation:
    """Scores of a network on the universe of a reference, with one-sided permutation p-values.

    predicted: source, target, weight and any other columns. Self loops are dropped; of a pair that is listed repeatedly
    the largest |weight| is kept (of +w and -w the positive one). A pair that is missing has weight 0. Weights are not
    rounded (BEELINE rounds to six decimals).
    reference: source, target, sign (+1, -1, 0: unknown); a pair listed with both signs counts as unknown.
    regulators, genes: the universe, see make_universe.   None: all ordered pairs of the reference's genes.
    signed: whether the weights' signs have a meaning; None: if any weight is negative. If not, the sign scores are nan.

    Early precision is computed on all pairs at or above the K-th largest |weight|. Where fewer than K pairs have a
    weight other than 0, it is computed on those, as BEELINE does: a network of few but right edges then scores high, so
    read it together with `cut`.
    Sign scores are computed on the E true edges of known sign; a weight of 0 counts as wrong.

    The p-value is (1 + scores at least as high under the null) / (1 + permutations). The null of the ranking scores
    permutes the weights over all U pairs: weights are independent of which pairs are edges. The null of the sign scores
    permutes the weights among the E true edges: weights are independent of which edges are + and which are -, whatever
    the majority. For early precision with the right sign, weights with their signs are permuted over all U pairs.
    Permutations under which a score is undefined do not count.
    Neither null takes into account that pairs share genes: a small p means better than guessing, not better than a
    method that uses hubs. The same seed gives the same p-values.

    Raises DataError: columns that are missing, weights that are not finite, no gene shared with the reference.
    """
    table = checked_edges(predicted)
    universe = make_universe(reference, regulators, genes)
    check_names(table, universe)
    return evaluate_on(universe, table, signed=signed, permutations=permutations, seed=seed)


def evaluate_on(
    universe: Universe,
    predicted: pd.DataFrame,
    *,
    signed: bool | None = None,
    permutations: int = 1000,
    seed: int = 0,
) -> Evaluation:
    """As `evaluate`, on a universe with at least one true edge. predicted: as `checked_edges`, or without rows."""
    if signed is None:
        signed = bool((predicted["weight"] < 0).any())
    codes, weights, outside = strongest_per_pair(predicted, universe)
    ranking = rank(weights, universe.pairs)
    found = pd.Index(codes).get_indexer(universe.codes(universe.edges))
    # A true edge without a weight gets a rank in the last group, whose pairs all tie: which rank makes no difference.
    ranks = np.where(found >= 0, found, universe.pairs - 1)
    at_edges = np.where(found >= 0, np.append(weights, 0.0)[found], 0.0)
    cut = ranking.cut(len(ranks))
    sign = universe.edges["sign"].to_numpy()
    known = sign != 0
    top = ranks[known] < cut

    scores = ranking_scores(ranking, ranks)
    if signed and known.any():
        scores["signed_early_precision"] = signed_early_precision(ranking.signs[:cut], ranks, sign)
        scores |= sign_scores(at_edges[known], sign[known], top)
    scores = {name: scores.get(name, np.nan) for name in SCORES}
    scores["sign_majority"] = majority_share(sign[known])
    drawn = _null(ranking, sign, at_edges[known], top, scores, permutations, np.random.default_rng(seed))
    return Evaluation(
        universe=universe,
        scores=scores,
        p_values={name: _p_value(scores[name], drawn[name]) for name in drawn},
        predicted=len(weights),
        outside=outside,
        cut=cut,
        silent=int(np.count_nonzero(at_edges[known] == 0)),
        signed=signed,
        curve=precision_recall(ranking, ranks),
    )


def checked_edges(predicted: pd.DataFrame) -> pd.DataFrame:
    """The columns source, target, weight (float64). Raises DataError: no rows, weights that are not finite."""
    table = predicted[["source", "target", "weight"]].astype({"weight": np.float64})
    if table.empty:
        raise DataError("The network has no edges", advice="give a network with edges")
    if not (finite := np.isfinite(table["weight"])).all():
        first = table[~finite].iloc[0]
        raise DataError(f"The weight of {first['source']} -> {first['target']} is {first['weight']}; correct the edge.")
    return table


def check_names(table: pd.DataFrame, universe: Universe) -> None:
    """Raises DataError where no edge of a network is in the universe: other names of genes, or swapped columns."""
    if (universe.codes(table) >= 0).any():
        return
    turned = table.rename(columns={"source": "target", "target": "source"})
    scored = [str(name) for name in (*universe.regulators, *universe.genes)]
    named = pd.unique(pd.concat([table["source"], table["target"]]))
    if (universe.codes(turned) >= 0).any():
        advice = "its edges are the other way round: swap the columns of regulators and targets in one of the two"
    else:
        unknown = [str(name) for name in named if name not in scored]
        advice = near_miss(unknown, scored) or "use the same kind of names in both"
    raise DataError(
        f"No edge of the network is from a regulator to a gene of the reference: its edges are like "
        f"{table['source'].iloc[0]!r} to {table['target'].iloc[0]!r}, the reference's like "
        f"{str(universe.edges['source'].iloc[0])!r} to {str(universe.edges['target'].iloc[0])!r}; {advice}."
    )


def strongest_per_pair(table: pd.DataFrame, universe: Universe) -> tuple[np.ndarray, np.ndarray, int]:
    """Codes and weights of the predicted pairs in the universe, by falling |weight|; number of pairs outside."""
    weight = table["weight"].to_numpy()
    loop = table["source"].to_numpy() == table["target"].to_numpy()
    table, weight = table[(weight != 0) & ~loop], weight[(weight != 0) & ~loop]
    codes = universe.codes(table)
    outside = len(table[codes < 0].drop_duplicates(["source", "target"]))
    codes, weight = codes[codes >= 0], weight[codes >= 0]
    order = np.lexsort((codes, -weight, -np.abs(weight)))
    codes, weight = codes[order], weight[order]
    _, first = np.unique(codes, return_index=True)
    first.sort()
    return codes[first], weight[first], outside


def repeated_pairs(table: pd.DataFrame, universe: Universe) -> int:
    """How many pairs of the universe a table lists more than once, with different weights."""
    codes = universe.codes(table)
    again = pd.Index(codes).duplicated(keep=False) & (codes >= 0)  # few or none: groups of all edges would take long
    return int((table["weight"][again].groupby(codes[again]).nunique() > 1).sum())


def _null(
    ranking: Ranking,
    sign: np.ndarray,
    at_known: np.ndarray,
    top: np.ndarray,
    observed: dict[str, float],
    permutations: int,
    generator: np.random.Generator,
) -> dict[str, np.ndarray]:
    """Scores under the null, [permutations] each. sign [K]; at_known, top [E]: as in `sign_scores`."""
    wanted = [name for name in (*RANKED, *OF_SIGNS) if not np.isnan(observed[name])]
    drawn = {name: np.full(permutations, np.nan) for name in (*RANKED, *OF_SIGNS)}
    with_signs = any(name in OF_SIGNS for name in wanted)
    signs_above = ranking.signs[: ranking.cut(len(sign))]
    known = sign[sign != 0]
    for number in range(permutations):
        # Permuting the weights over the pairs is the same as drawing K different ranks for the true edges.
        ranks = generator.choice(ranking.pairs, len(sign), replace=False, shuffle=False)
        scores = ranking_scores(ranking, ranks)
        if with_signs:
            scores["signed_early_precision"] = signed_early_precision(signs_above, ranks, generator.permutation(sign))
            scores |= sign_scores(at_known, generator.permutation(known), top)
        for name in wanted:
            drawn[name][number] = scores[name]
    return drawn


def _p_value(observed: float, drawn: np.ndarray) -> float:
    drawn = drawn[~np.isnan(drawn)]
    if np.isnan(observed) or not len(drawn):
        return np.nan
    return float((1 + np.count_nonzero(drawn >= observed - SAME * max(1.0, abs(observed)))) / (1 + len(drawn)))
