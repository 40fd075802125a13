"""Evaluates a network by the rules of BEELINE (Pratapa et al. 2020), with ties, signs and p-values
spelled out.

Pairs are ranked by |weight|. Pairs of equal |weight| form one group, and pairs without a weight
form the last group, so that ties and missing pairs are treated exactly, at a cost that depends only
on the number of weights. scikit-learn's scores want all U pairs, in every permutation again; they
are the oracle of the tests.

Letters: R regulators, N genes, U pairs of the universe, P pairs with a weight, G groups, K true
edges, E true edges whose sign is known.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from grn.cells.genes.names import near_miss
from grn.edges.edge_table import unique_edges
from grn.runtime.errors import DataError

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


# The universe.


@dataclass(frozen=True)
class Universe:
    """Every ordered pair of a regulator and another gene.

    regulators [R], genes [N]: sorted names; every regulator is one of the genes.
    edges: K rows source, target, sign (+1, -1; 0: unknown), each pair once, no self loops.
    left_out: number of edges of the reference with a gene outside of those to which it is
        restricted.
    """

    regulators: pd.Index
    genes: pd.Index
    edges: pd.DataFrame
    left_out: int

    @property
    def pairs(self) -> int:
        return len(self.regulators) * (len(self.genes) - 1)

    @property
    def density(self) -> float:
        """Share of the pairs that are true edges: the precision of guessing."""
        return len(self.edges) / self.pairs

    def codes(self, table: pd.DataFrame) -> np.ndarray:
        """A number for the pair (source, target) of each row, int64; -1 for self loops and pairs
        outside.
        """
        source = self.regulators.get_indexer(table["source"])
        target = self.genes.get_indexer(table["target"])
        inside = (
            (source >= 0)
            & (target >= 0)
            & (table["source"].to_numpy() != table["target"].to_numpy())
        )
        return np.where(inside, source.astype(np.int64) * len(self.genes) + target, -1)

    def with_edges(self, reference: pd.DataFrame) -> Universe:
        """Return this universe with other true edges (source, target, sign), as those of one cell
        type. They may be none.
        """
        edges = unique_edges(reference)
        named = edges["source"].isin(self.genes) & edges["target"].isin(self.genes)
        inside = edges[self.codes(edges) >= 0].reset_index(drop=True)
        return replace(self, edges=inside, left_out=int((~named).sum()))


def make_universe(
    reference: pd.DataFrame,
    regulators: Iterable[str] | str | None = None,
    genes: Iterable[str] | None = None,
) -> Universe:
    """The universe of a reference (source, target, sign), as in BEELINE (Pratapa et al. 2020).

    genes: restricts it to true edges between these genes, as a reference may name genes that were
        not measured.
    regulators: None: every gene of the reference; "reference": the genes that regulate in it; else
        names, of which those in the reference are used.
    Raises DataError where no true edge is left.
    """
    edges = unique_edges(reference)
    whole, left_out = edges, 0
    measured = None if genes is None else pd.Index(genes).unique()
    if measured is not None:
        inside = edges["source"].isin(measured) & edges["target"].isin(measured)
        left_out = int((~inside).sum())
        edges = edges[inside]
    if edges.empty:
        raise DataError(_no_edge_between(measured, whole))
    named = pd.Index(pd.unique(pd.concat([edges["source"], edges["target"]]))).sort_values()
    if regulators is None:
        chosen = named
    elif isinstance(regulators, str):
        chosen = pd.Index(edges["source"].unique()).sort_values()
    else:
        listed = pd.Index(list(regulators))
        chosen = named[named.isin(listed)]
        kept = edges["source"].isin(chosen)
        if not kept.any():
            near = near_miss(map(str, listed), map(str, pd.unique(edges["source"])))
            raise DataError(
                f"None of the {len(listed)} regulators has an edge in the reference, whose "
                f"regulators are named like {edges['source'].iloc[0]!r}; "
                f"{near or 'give names as they are in the reference'}.",
                field="regulators",
            )
        edges = edges[kept]
    return Universe(chosen, named, edges.reset_index(drop=True), left_out)


def _no_edge_between(measured: pd.Index | None, edges: pd.DataFrame) -> str:
    """Why a restriction to some genes,
    `measured`, leaves no edge of the reference, and what to do.
    """
    if measured is None or edges.empty:
        return "The reference has no edge between two different genes; give one with such edges."
    found = f"No edge of the reference is between two of the {len(measured)} genes that are scored"
    if near := near_miss(
        map(str, pd.unique(pd.concat([edges["source"], edges["target"]]))), map(str, measured)
    ):
        return f"{found}, but {near}."
    return (
        f"{found}: these are named like {', '.join(measured[:1])!r}, and it has "
        f"{str(edges['source'].iloc[0])!r} to {str(edges['target'].iloc[0])!r}; use the same kind "
        "of names in both, or score more genes."
    )


# Scores.


@dataclass(frozen=True)
class Evaluation:
    """The scores of one network against a reference.

    scores: by the names in SCORES; nan where undefined.
    p_values: the same names but sign_majority, which is a property of the reference; nan where the
        score is undefined or nothing was permuted.
    predicted: pairs of the universe with a weight other than 0.
    outside: other predicted pairs, not in the universe.
    cut: number of pairs on which early precision is computed, see Ranking.
    silent: true edges of known sign without a weight, which count as wrong signs.
    signed: whether signs were scored.
    curve: columns recall, precision.
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


def evaluate_on(
    universe: Universe,
    predicted: pd.DataFrame,
    *,
    signed: bool | None = None,
    permutations: int = 1000,
    seed: int = 0,
) -> Evaluation:
    """Return the scores of a network on a universe with at least one true edge, with one-sided
    permutation p-values.

    predicted: as `checked_edges`, or without rows; of a pair that is listed with +w and -w, the
        positive one counts.
    signed: None: if any weight is negative.

    Where fewer than K pairs have a weight, early precision is computed on those, as BEELINE does: a
    network of few but right edges then scores high, so read it together with `cut`.
    The p-value is (1 + scores at least as high under the null) / (1 + permutations). The null of
    the ranking scores permutes the weights over all U pairs, that of the sign scores among the E
    true edges. Permutations under which a score is undefined do not count.
    """
    if signed is None:
        signed = bool((predicted["weight"] < 0).any())
    codes, weights, outside = strongest_per_pair(predicted, universe)
    ranking = rank(weights, universe.pairs)
    found = pd.Index(codes).get_indexer(universe.codes(universe.edges))
    # A true edge without a weight gets a rank in the last group, whose pairs all tie: which rank
    # makes no difference.
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
    if known.any():
        scores["sign_majority"] = float(max((sign[known] > 0).mean(), (sign[known] < 0).mean()))
    drawn = _null(
        ranking, sign, at_edges[known], top, scores, permutations, np.random.default_rng(seed)
    )
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
    """The columns source, target, weight (float64).

    Raises DataError: no rows, weights that are not finite.
    """
    table = predicted[["source", "target", "weight"]].astype({"weight": np.float64})
    if table.empty or not np.isfinite(table["weight"]).all():
        raise DataError(
            "The network has no edges, or weights that are not finite numbers; correct them."
        )
    return table


def check_names(table: pd.DataFrame, universe: Universe) -> None:
    """Raise DataError where no edge of a network is in the universe: other names of genes, or
    swapped columns.
    """
    if (universe.codes(table) >= 0).any():
        return
    turned = table.rename(columns={"source": "target", "target": "source"})
    scored = [str(name) for name in (*universe.regulators, *universe.genes)]
    named = pd.unique(pd.concat([table["source"], table["target"]]))
    if (universe.codes(turned) >= 0).any():
        advice = (
            "its edges are the other way round: swap the columns of regulators and targets in one "
            "of the two"
        )
    else:
        unknown = [str(name) for name in named if name not in scored]
        advice = near_miss(unknown, scored) or "use the same kind of names in both"
    raise DataError(
        "No edge of the network is from a regulator to a gene of the reference: its edges are "
        f"like {table['source'].iloc[0]!r} to {table['target'].iloc[0]!r}, the reference's like "
        f"{str(universe.edges['source'].iloc[0])!r} to {str(universe.edges['target'].iloc[0])!r}; "
        f"{advice}."
    )


def strongest_per_pair(
    table: pd.DataFrame, universe: Universe
) -> tuple[np.ndarray, np.ndarray, int]:
    """Codes and weights of the predicted pairs in the universe, by falling |weight|; number of
    pairs outside.
    """
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
    """Return how many pairs of the universe a table lists more than once, with different
    weights.
    """
    codes = universe.codes(table)
    # few or none: groups of all edges would take long
    again = pd.Index(codes).duplicated(keep=False) & (codes >= 0)
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
    """Scores under the null, [permutations] each. sign [K];
    at_known, top [E]: as in `sign_scores`.
    """
    wanted = [name for name in (*RANKED, *OF_SIGNS) if not np.isnan(observed[name])]
    drawn = {name: np.full(permutations, np.nan) for name in (*RANKED, *OF_SIGNS)}
    with_signs = any(name in OF_SIGNS for name in wanted)
    signs_above = ranking.signs[: ranking.cut(len(sign))]
    known = sign[sign != 0]
    for number in range(permutations):
        # Permuting the weights over the pairs is the same as drawing K different ranks for the true
        # edges.
        ranks = generator.choice(ranking.pairs, len(sign), replace=False, shuffle=False)
        scores = ranking_scores(ranking, ranks)
        if with_signs:
            scores["signed_early_precision"] = signed_early_precision(
                signs_above, ranks, generator.permutation(sign)
            )
            scores |= sign_scores(at_known, generator.permutation(known), top)
        for name in wanted:
            drawn[name][number] = scores[name]
    return drawn


def _p_value(observed: float, drawn: np.ndarray) -> float:
    drawn = drawn[~np.isnan(drawn)]
    if np.isnan(observed) or not len(drawn):
        return np.nan
    return float(
        (1 + np.count_nonzero(drawn >= observed - SAME * max(1.0, abs(observed))))
        / (1 + len(drawn))
    )


@dataclass(frozen=True)
class Ranking:
    """All pairs by falling |weight|, in groups of equal |weight|. A pair's rank is its position,
    from 0.

    starts, ends [G]: rank of each group's first pair, and one past the rank of its last.
    pairs: U, so many ranks.
    signs [P]: sign of the weight at each rank.
    """

    starts: np.ndarray
    ends: np.ndarray
    signs: np.ndarray
    pairs: int

    def group(self, ranks: np.ndarray) -> np.ndarray:
        """The group of each rank."""
        return np.searchsorted(self.ends, ranks, side="right")

    def cut(self, edges: int) -> int:
        """Return how many pairs are at or above the `edges`-th largest |weight|, ties included.

        Where fewer pairs have a weight, the number of those that have one (as in BEELINE: others
        are not predicted).
        """
        wanted = min(edges, len(self.signs))
        return int(self.ends[self.group(np.array(wanted - 1))]) if wanted else 0


def rank(weights: np.ndarray, pairs: int) -> Ranking:
    """weights [P]: no zeros, sorted by falling |weight|.   pairs: U >= P."""
    size = np.abs(weights)
    last = np.append(size[1:] != size[:-1], True) if len(size) else np.zeros(0, bool)
    ends = np.flatnonzero(last) + 1
    if pairs > len(size):
        ends = np.append(ends, pairs)
    starts = np.concatenate([[0], ends[:-1]])
    return Ranking(
        starts.astype(np.int64), ends.astype(np.int64), np.sign(weights).astype(np.int8), pairs
    )


def ranking_scores(ranking: Ranking, ranks: np.ndarray) -> dict[str, float]:
    """Return the scores of the true edges, whose ranks are given [K]; nan where undefined.

    early_precision: share of true edges among `Ranking.cut(K)` pairs; early_precision_ratio: over
        the density K / U.
    auprc: average precision, sum over groups of the recall gained times the precision reached
        (scikit-learn's average_precision_score); auprc_ratio: over the density.
    auprc_trapezoid: the area under straight lines between those points, from (0, 1), which is the
        figure that BEELINE publishes.
    auroc: ties count half.
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
        "auroc": float((hits * (others_below + others_level / 2)).sum() / (edges * others))
        if others
        else np.nan,
    }


def precision_recall(ranking: Ranking, ranks: np.ndarray) -> pd.DataFrame:
    """Columns recall, precision at the end of each group with a true edge. Drawn as steps, its area
    is the auprc.
    """
    group, hits = np.unique(ranking.group(ranks), return_counts=True)
    found = np.cumsum(hits)
    return pd.DataFrame({"recall": found / len(ranks), "precision": found / ranking.ends[group]})


def sign_scores(weight: np.ndarray, sign: np.ndarray, top: np.ndarray) -> dict[str, float]:
    """Return the scores of signed weights against true signs; nan where undefined.

    weight [E]: 0 where the pair has none; that counts as a wrong sign.
    sign [E]: +1 or -1.
    top [E]: whether the edge is among the strongest K pairs. Balanced accuracy is the mean of the
        shares of + and of - edges that are right; it needs both signs, as does sign_auroc, the
        probability that a + edge has a larger weight than a - edge, ties counting half.
    """

    def share(right: np.ndarray) -> float:
        return float(right.mean()) if len(right) else np.nan

    right, positive = np.sign(weight) == sign, sign > 0
    scores = {"sign_auroc": auroc(weight, positive)}
    for end, of in (("", slice(None)), ("_top", top)):
        ups, downs = right[of][positive[of]], right[of][~positive[of]]
        scores[f"sign_accuracy{end}"] = share(right[of])
        scores[f"sign_balanced_accuracy{end}"] = (share(ups) + share(downs)) / 2
    return scores


def signed_early_precision(signs: np.ndarray, ranks: np.ndarray, true: np.ndarray) -> float:
    """Share of true edges with the right sign among the strongest pairs (their signs); edges of
    unknown sign are left out. ranks [K], true [K]: rank and sign (0: unknown) of each true edge.
    """
    inside = ranks < len(signs)
    found, true = signs[ranks[inside]], true[inside]
    scored = len(signs) - np.count_nonzero(true == 0)
    return float(np.count_nonzero((found == true) & (true != 0)) / scored) if scored else np.nan


def auroc(weight: np.ndarray, positive: np.ndarray) -> float:
    """The probability that a positive has a larger weight than another, ties counting half; nan
    without either.
    """
    ups = int(np.count_nonzero(positive))
    downs = len(positive) - ups
    if not ups or not downs:
        return np.nan
    return float((rankdata(weight)[positive].sum() - ups * (ups + 1) / 2) / (ups * downs))
