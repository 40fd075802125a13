"""A network beside Pearson and ridge against one reference: scores, sentences about them, and
tables.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from grn.cells.cells import Cells
from grn.cells.genes.lists import read_gene_list
from grn.edges.edge_table import PredictedNetwork, ReferenceNetwork
from grn.features.evaluate.scores import (
    SCORES,
    Evaluation,
    Universe,
    auroc,
    check_names,
    checked_edges,
    evaluate_on,
    make_universe,
    repeated_pairs,
    strongest_per_pair,
)
from grn.networks.baselines import pearson, ridge
from grn.runtime.errors import DataError, check_known
from grn.runtime.messages import Say, silent

CAUTION = (
    "Caution: on observed blood cells, signs of correlations agree with curated signed pairs no "
    "better than chance (balanced accuracy 0.50 to 0.52); only simulations and perturbations can "
    "test signs."
)
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
BASELINES = {"Pearson": pearson, "ridge": ridge}
FEWEST_CELLS = 3  # of which ridge can leave one out
Choice = str | os.PathLike[str] | Sequence[str]
"""Genes: a word for them ("reference", ...), a file of them, or their names."""


@dataclass(frozen=True)
class ScoredNetworks:
    """The scores of several methods against one reference.

    evaluations: by method, `network` first.
    genes: the choice that was made.
    types: of compare_types.
    """

    evaluations: dict[str, Evaluation]
    genes: str
    types: pd.DataFrame | None = None


def compare_networks(
    predicted: PredictedNetwork,
    truth: ReferenceNetwork,
    cells: Cells | None,
    *,
    regulators: Choice,
    genes: Choice | None,
    cell_type: str | None,
    permutations: int,
    seed: int,
    say: Say,
) -> ScoredNetworks:
    """Return the scores of a network, of Pearson and of ridge on one universe, and of the networks
    of cell types.

    cells: those that Pearson and ridge are computed from; None: they are left out.
    regulators, genes: as for grn.evaluate.
    cell_type: the network of this type, against the edges of this type where the reference has
        types, beside Pearson and ridge on the cells of this type. The pairs that are scored stay
        those of the whole reference.
    Raises UserError.
    """
    if genes is None:  # those that were measured, where these are known
        genes = "data" if cells is not None else "network" if predicted.of_run else "reference"
    if isinstance(genes, str) and genes == "data" and cells is None:
        raise DataError(
            "{field} is data, but there are no cells; give cells, or other genes.", field="genes"
        )
    measured = {
        "reference": None,
        "network": predicted.genes,
        "data": None if cells is None else cells.vocabulary,
    }
    genes_of = genes if isinstance(genes, str) and genes in measured else "list"
    listed = measured[genes_of] if genes_of in measured else _listed(genes, "genes")
    every, rows = (predicted, truth, cells), None
    signed = predicted.signed  # of all cells: in a single type, every weight may be positive
    if cell_type is not None:
        predicted = predicted.of_type(cell_type)
        rows = None if cells is None else rows_of_type(cells, cell_type, say)
        cells = None if rows is None else cells
    table = checked_edges(predicted.edges)
    universe = make_universe(truth.edges, chosen_regulators(regulators), listed)
    if cell_type is not None and truth.by_type:
        check_known(cell_type, truth.by_type, "The reference", "cell type", "cell_type")
        truth = ReferenceNetwork(truth.by_type[cell_type], truth.format, conflicts=0)
        universe = universe.with_edges(truth.edges)
        if universe.edges.empty:
            raise DataError(
                f"None of the reference's {len(truth.edges)} edges of the cell type {cell_type!r} "
                "is between genes that are scored; score more regulators and genes."
            )
    check_names(table, universe)
    evaluation = evaluate_on(universe, table, signed=signed, permutations=permutations, seed=seed)
    for line in describe(evaluation, predicted, truth, genes_of):
        say(line)
    evaluations = {"network": evaluation}
    if cells is not None:
        for name, edges in baseline_networks(cells, rows, universe, say).items():
            evaluations[name] = evaluate_on(universe, edges, signed=True, permutations=0)
    types = compare_types(*every, universe, say) if cell_type is None else None
    return ScoredNetworks(evaluations, genes_of, types)


def chosen_regulators(choice: Choice) -> list[str] | str | None:
    """`reference`, None for `all`, or names."""
    if isinstance(choice, str) and choice in ("all", "reference"):
        return None if choice == "all" else choice
    return _listed(choice, "regulators")


def _listed(names: Choice, field: str) -> list[str]:
    """Names, or those in a file with one a line."""
    return (
        read_gene_list(os.fspath(names), field)
        if isinstance(names, (str, os.PathLike))
        else list(names)
    )


def rows_of_type(cells: Cells, label: str, say: Say) -> np.ndarray | None:
    """Return the cells of one type for the baselines; None, with a sentence, where they are fewer
    than FEWEST_CELLS.
    """
    rows = (
        np.flatnonzero(cells.labels == cells.classes.index(label))
        if label in cells.classes
        else np.zeros(0, int)
    )
    if len(rows) >= FEWEST_CELLS:
        return rows
    labelled = "" if (cells.labels >= 0).any() else ", as they have no labels (data.label_key)"
    say(
        f"Pearson and ridge are left out for {label!r}: fewer than {FEWEST_CELLS} cells are of "
        f"that type{labelled}."
    )
    return None


def baseline_networks(
    cells: Cells, rows: np.ndarray | None, universe: Universe, say: Say
) -> dict[str, pd.DataFrame]:
    """Return the networks by Pearson and ridge on a universe, as far as the cells have its genes.
    rows: None: all.
    """
    measured = pd.Index(cells.vocabulary, dtype=object)
    genes = measured[measured.isin(universe.genes)]
    regulators = universe.regulators[universe.regulators.isin(genes)]
    if not len(regulators) or len(genes) < 2:
        say(
            "Pearson and ridge are left out: the data have none of the universe's regulators; "
            f"their genes are named like {measured[0]!r}, those of the reference like "
            f"{universe.genes[0]!r}."
        )
        return {}
    values = cells.multiplicity[:, measured.get_indexer(genes)]
    matrix = (values if rows is None else values[rows]).toarray().astype(np.float64)
    say(
        f"Pearson and ridge: from the multiplicities of {len(matrix)} cells, {len(regulators)} "
        f"regulators x {len(genes)} genes."
    )
    return {name: method(matrix, genes, regulators) for name, method in BASELINES.items()}


def compare_types(
    predicted: PredictedNetwork,
    truth: ReferenceNetwork,
    cells: Cells | None,
    universe: Universe,
    say: Say,
) -> pd.DataFrame | None:
    """The networks of cell types against a reference with types: columns cell_type, method and
    TYPE_SCORES.

    A row for each type and method, and below them the mean over the types for each method. None
    where the reference has no types, or the network none of them.
    universe: of all edges of the reference together.
    """
    if not truth.by_type:
        return None
    by_type = predicted.read_types()
    if not by_type:
        say(
            "The reference has cell types, but the network has none: its types are not scored one "
            "by one."
        )
        return None
    scored = [label for label in truth.by_type if label in by_type]
    absent = [label for label in truth.by_type if label not in by_type]
    if absent:
        say(
            f"{len(absent)} of the reference's {len(truth.by_type)} cell types are not scored, as "
            f"the network has none of that name ({absent[0]!r}, for example; its own are named "
            f"like {next(iter(by_type))!r})."
        )
    if not scored:
        return None
    typed = TypedTruth(universe, truth.by_type)
    rows: list[dict[str, Any]] = []
    for label in scored:
        rows.append(
            {
                "cell_type": label,
                "method": "network",
                **typed.score(label, by_type[label], predicted.signed),
            }
        )
        own = None if cells is None else rows_of_type(cells, label, say)
        others = (
            {} if cells is None or own is None else baseline_networks(cells, own, universe, silent)
        )
        for name, edges in others.items():
            rows.append({"cell_type": label, "method": name, **typed.score(label, edges, True)})
    return with_means(rows)


def describe(
    evaluation: Evaluation, predicted: PredictedNetwork, truth: ReferenceNetwork, genes: str
) -> list[str]:
    """Sentences about the universe, the network and the signs. genes: where these are from."""
    universe = evaluation.universe
    sign = universe.edges["sign"]
    ups, downs = int((sign > 0).sum()), int((sign < 0).sum())
    lines = [
        f"Universe: {len(universe.regulators)} regulators x {len(universe.genes)} genes, "
        f"{universe.pairs} pairs; K = {len(universe.edges)} true edges ({ups} +, {downs} -, "
        f"{len(sign) - ups - downs} of unknown sign), density {universe.density:.4g}.",
        f"Network: {evaluation.predicted} of these pairs have a weight; {evaluation.outside} "
        "predicted edges are outside the universe; early precision is computed on the strongest "
        f"{evaluation.cut}.",
    ]
    typed = "cell_type" in predicted.edges  # such a table lists a pair once for each type
    if repeated := 0 if typed else repeated_pairs(predicted.edges, universe):
        lines.append(
            f"{repeated} of these pairs are listed with several weights; the largest of each "
            "counts."
        )
    if universe.left_out:
        lack = {"data": "the data lack", "network": "the network lacks"}.get(
            genes, "the list of genes lacks"
        )
        lines.append(
            f"{universe.left_out} of the reference's {len(truth.edges)} edges are left out, as "
            f"they name genes that {lack}."
        )
    if truth.conflicts:
        lines.append(
            f"{truth.conflicts} pairs of the reference are listed with both signs; their sign "
            "counts as unknown."
        )
    absent = universe.genes[~universe.genes.isin(predicted.genes)]
    if len(absent):
        lines.append(
            f"{len(absent)} of the universe's {len(universe.genes)} genes are not in the network "
            f"({absent[0]!r}, for example), so their pairs have weight 0; score the genes of the "
            "network alone to leave them out."
        )
    if evaluation.signed and evaluation.silent:
        lines.append(
            f"{evaluation.silent} of the {ups + downs} signed true edges have no weight and count "
            "as wrong signs. (A run keeps the strongest edges of each gene, and all of them with "
            "network.top_k: null.)"
        )
    if not predicted.signs_have_meaning:
        lines.append(
            "Signs are not scored, as those of this network have no meaning "
            f"({predicted.sign.removeprefix('none: ')})."
        )
    elif not evaluation.signed:
        lines.append("Signs are not scored, because the network has no negative weight.")
    elif truth.curated and ups + downs:
        lines.append(CAUTION)
    return lines


def score_table(evaluations: Mapping[str, Evaluation]) -> pd.DataFrame:
    """One row for each score: columns score, network, p, and one for each baseline; NaN where
    undefined.
    """
    table = pd.DataFrame(
        {name: evaluation.scores for name, evaluation in evaluations.items()}, index=list(SCORES)
    )
    table.insert(1, "p", pd.Series(evaluations["network"].p_values, dtype=float))
    return table.rename_axis("score").reset_index()


class TypedTruth:
    """The true edges of each cell type within one universe: an edge that acts elsewhere is a pair
    like any other.

    by_type: label -> the universe with the edges of the type.
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
            np.concatenate([code[sign == which] for code, sign in zip(codes, signs, strict=True)])
            for which in (1, -1)
        )
        self.changed = np.intersect1d(ups, downs)

    def score(self, label: str, predicted: pd.DataFrame, signed: bool) -> dict[str, float]:
        """Return the scores of one type by the names of TYPE_SCORES; nan where undefined.

        predicted: source, target, weight (finite) of the type.
        edges: K.
        auprc, auprc_ratio, early_precision_ratio, sign_accuracy: see `evaluate_on`, with the type's
            edges.
        specificity: AUROC of |weight| for being an edge of this type, over the pairs `partial`.
        changed_signs: share of the pairs `changed`, as far as they act in this type with a known
            sign, whose weight has that sign; a weight of 0 is wrong.
        signed: whether the weights' signs have a meaning.
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


def with_means(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Rows of cell_type, method and TYPE_SCORES, and below them each method's mean over the types,
    without nan.
    """
    table = pd.DataFrame(rows, columns=["cell_type", "method", *TYPE_SCORES])
    means = table.groupby("method", sort=False)[list(TYPE_SCORES)].mean().reset_index()
    return pd.concat([table, means.assign(cell_type=MEAN)[list(table)]], ignore_index=True)


def _weights(predicted: pd.DataFrame, universe: Universe, pairs: np.ndarray) -> np.ndarray:
    """The weight of each pair, given by its code, [pairs]; 0 where it has none."""
    codes, weights, _ = strongest_per_pair(predicted, universe)
    place = pd.Index(codes).get_indexer(pairs)
    return np.where(place >= 0, np.append(weights, 0.0)[place], 0.0)
