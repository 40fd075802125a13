"""Scores of the networks of cell types, each against the edges that act in its type.

All types share one universe, that of all edges together: an edge that acts elsewhere is a pair like any other.

Letters: K true edges of a type, P pairs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from grn.analysis.evaluate import evaluate_on, strongest_per_pair
from grn.analysis.ranking import auroc
from grn.analysis.universe import Universe

TYPE_SCORES = {
    "edges": "edges",
    "auprc": "AUPRC",
    "auprc_ratio": "AUPRC / density",
    "early_precision_ratio": "early precision / density",
    "sign_accuracy": "sign accuracy",
    "specificity": "specificity",
    "changed_signs": "changed signs",
}
MEAN = "mean"


class TypedTruth:
    """The true edges of each cell type within one universe.

    universe: of all edges together.   by_type: label -> the same pairs with the edges of the type.
    partial: codes of the pairs that are edges in some of the types but not in all.
    changed: codes of the pairs that are + in some type and - in another.
    """

    def __init__(self, universe: Universe, edges: Mapping[str, pd.DataFrame]):
        self.universe = universe
        self.by_type = {label: universe.with_edges(table) for label, table in edges.items()}
        codes = [universe.codes(of_type.edges) for of_type in self.by_type.values()]
        acting, types = np.unique(np.concatenate(codes), return_counts=True)
        self.partial = acting[types < len(codes)]
        signs = [of_type.edges["sign"].to_numpy() for of_type in self.by_type.values()]
        ups, downs = (
            np.concatenate([code[sign == which] for code, sign in zip(codes, signs, strict=True)]) for which in (1, -1)
        )
        self.changed = np.intersect1d(ups, downs)

    def score(self, label: str, predicted: pd.DataFrame, signed: bool) -> dict[str, float]:
        """By the names of TYPE_SCORES; nan where undefined. predicted: source, target, weight (finite) of one type.

        edges: K.   auprc, auprc_ratio, early_precision_ratio, sign_accuracy: see `evaluate`, with the type's edges.
        specificity: AUROC of |weight| for being an edge of this type, over the pairs `partial`.
        changed_signs: share of the pairs `changed`, as far as they act in this type with a known sign, whose weight
        has that sign; a weight of 0 is wrong.   signed: whether the weights' signs have a meaning.
        """
        scores = dict.fromkeys(TYPE_SCORES, math.nan)
        universe = self.by_type[label]
        scores["edges"] = float(len(universe.edges))
        if universe.edges.empty:
            return scores
        found = evaluate_on(universe, predicted, signed=signed, permutations=0).scores
        scores |= {name: found[name] for name in TYPE_SCORES if name in found}
        edges = universe.codes(universe.edges)
        weight = _weights(predicted, universe, self.partial)
        scores["specificity"] = auroc(np.abs(weight), np.isin(self.partial, edges))
        sign = universe.edges["sign"].to_numpy()
        scored = np.isin(edges, self.changed) & (sign != 0)
        if signed and scored.any():
            right = np.sign(_weights(predicted, universe, edges[scored])) == sign[scored]
            scores["changed_signs"] = float(right.mean())
        return scores


def with_means(rows: list[dict]) -> pd.DataFrame:
    """Rows of cell_type, method and TYPE_SCORES, and below them the mean over the types for each method, without nan.

    Each method is ordered as the first type has it.
    """
    table = pd.DataFrame(rows, columns=["cell_type", "method", *TYPE_SCORES])
    means = table.groupby("method", sort=False)[list(TYPE_SCORES)].mean().reset_index()
    return pd.concat([table, means.assign(cell_type=MEAN)[list(table)]], ignore_index=True)


def printed_type_rows(table: pd.DataFrame) -> list[tuple[str, ...]]:
    """The rows of `with_means` with readable numbers, - where undefined."""

    def text(name: str, value: float) -> str:
        return "-" if math.isnan(value) else f"{value:.4g}" if name == "edges" else f"{value:.3f}"

    rows = table.to_dict("records")
    return [(row["cell_type"], row["method"], *(text(name, row[name]) for name in TYPE_SCORES)) for row in rows]


def _weights(predicted: pd.DataFrame, universe: Universe, pairs: np.ndarray) -> np.ndarray:
    """The weight of each pair, given by its code, [P]; 0 where it has none."""
    codes, weights, _ = strongest_per_pair(predicted, universe)
    place = pd.Index(codes).get_indexer(pairs)
    return np.where(place >= 0, np.append(weights, 0.0)[place], 0.0)
