"""A network beside Pearson and ridge against one reference: scores, sentences about them, and tables."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

import grn
from grn.analysis.baseline_cells import Expression, baseline_networks, cells_of_type
from grn.analysis.evaluate import SCORES, Evaluation, check_names, checked_edges, evaluate_on, repeated_pairs
from grn.analysis.network_files import PredictedNetwork, ReferenceNetwork, no_such_type
from grn.analysis.type_scores import TYPE_SCORES, TypedTruth, with_means
from grn.analysis.universe import Universe, make_universe
from grn.errors import DataError
from grn.messages import Say, silent

CAUTION = (
    "Caution: on observed blood cells, signs of correlations agree with curated signed pairs no better than chance "
    "(balanced accuracy 0.50 to 0.52); only simulations and perturbations can test signs."
)


@dataclass(frozen=True)
class Comparison:
    """evaluations: by method: `network` first, then Pearson and ridge where there are cells.   types: of compare_types.

    genes: the choice of genes that was made.
    """

    evaluations: dict[str, Evaluation]
    genes: str
    types: pd.DataFrame | None = None


def compare_networks(
    predicted: PredictedNetwork,
    truth: ReferenceNetwork,
    expression: Expression | None,
    *,
    regulators: Iterable[str] | str | None,
    genes: Iterable[str] | None,
    genes_of: str,
    cell_type: str | None,
    permutations: int,
    seed: int,
    say: Say,
) -> Comparison:
    """Scores of a network, of Pearson and of ridge on one universe, and of the networks of cell types.

    expression: the cells that Pearson and ridge are computed from; None: they are left out.   regulators, genes: see
    make_universe.   genes_of: where these genes are from, for messages.   cell_type: a label: the network of this type,
    against the edges of this type where the reference has types, beside Pearson and ridge on the cells of this type.
    The pairs that are scored stay those of the whole reference.   say: receives sentences that describe the universe
    and what was left out. Raises UserError.
    """
    every = predicted, truth, expression
    signed = predicted.signed  # of all cells: in a single type, every weight may be positive
    if cell_type is not None:
        predicted = predicted.of_type(cell_type)
        expression = expression and cells_of_type(expression, cell_type, say)
    table = checked_edges(predicted.edges)
    universe = make_universe(truth.edges, regulators, genes)
    if cell_type is not None and truth.by_type:
        if cell_type not in truth.by_type:
            raise no_such_type("The reference", cell_type, truth.by_type)
        truth = ReferenceNetwork(truth.by_type[cell_type], truth.format, conflicts=0)
        universe = universe.with_edges(truth.edges)
        if universe.edges.empty:
            raise DataError(
                f"None of the reference's {len(truth.edges)} edges of the cell type {cell_type!r} is between genes "
                "that are scored; score more regulators and genes."
            )
    check_names(table, universe)
    evaluation = evaluate_on(universe, table, signed=signed, permutations=permutations, seed=seed)
    for line in describe(evaluation, predicted, truth, genes_of):
        say(line)
    evaluations = {"network": evaluation}
    if expression is not None:
        for name, edges in baseline_networks(expression, universe.regulators, universe.genes, say).items():
            evaluations[name] = evaluate_on(universe, edges, signed=True, permutations=0)
    types = compare_types(*every, universe, say) if cell_type is None else None
    return Comparison(evaluations, genes_of, types)


def compare_types(
    predicted: PredictedNetwork,
    truth: ReferenceNetwork,
    expression: Expression | None,
    universe: Universe,
    say: Say,
) -> pd.DataFrame | None:
    """The networks of cell types against a reference with types: columns cell_type, method and TYPE_SCORES.

    A row for each type and method (network; Pearson and ridge on the cells of the type), and below them the mean over
    the types for each method. None where the reference has no types, or the network none of them.
    universe: of all edges of the reference together.   say: receives sentences about what is not scored.
    """
    if not truth.by_type:
        return None
    by_type = predicted.read_types()
    if not by_type:
        say("The reference has cell types, but the network has none: its types are not scored one by one.")
        return None
    scored = [label for label in truth.by_type if label in by_type]
    absent = [label for label in truth.by_type if label not in by_type]
    if absent:
        say(
            f"{len(absent)} of the reference's {len(truth.by_type)} cell types are not scored, as the network has none "
            f"of that name ({absent[0]!r}, for example; its own are named like {next(iter(by_type))!r})."
        )
    if not scored:
        return None
    typed = TypedTruth(universe, truth.by_type)
    rows: list[dict] = []
    for label in scored:
        rows.append({"cell_type": label, "method": "network", **typed.score(label, by_type[label], predicted.signed)})
        cells = None if expression is None else cells_of_type(expression, label, say)
        if cells is not None:
            for name, edges in baseline_networks(cells, universe.regulators, universe.genes, silent).items():
                rows.append({"cell_type": label, "method": name, **typed.score(label, edges, True)})
    return with_means(rows)


def describe(evaluation: Evaluation, predicted: PredictedNetwork, truth: ReferenceNetwork, genes: str) -> list[str]:
    """Sentences about the universe, the network and the signs that are scored. genes: where these are from."""
    universe = evaluation.universe
    sign = universe.edges["sign"]
    ups, downs = int((sign > 0).sum()), int((sign < 0).sum())
    lines = [
        f"Universe: {len(universe.regulators)} regulators x {len(universe.genes)} genes, {universe.pairs} pairs; "
        f"K = {len(universe.edges)} true edges ({ups} +, {downs} -, {len(sign) - ups - downs} of unknown sign), "
        f"density {universe.density:.4g}.",
        f"Network: {evaluation.predicted} of these pairs have a weight; {evaluation.outside} predicted edges are "
        f"outside the universe; early precision is computed on the strongest {evaluation.cut}.",
    ]
    typed = "cell_type" in predicted.edges  # such a table lists a pair once for each type
    if repeated := 0 if typed else repeated_pairs(predicted.edges, universe):
        lines.append(f"{repeated} of these pairs are listed with several weights; the largest of each counts.")
    if universe.left_out:
        lack = {"data": "the data lack", "network": "the network lacks"}.get(genes, "the list of genes lacks")
        lines.append(
            f"{universe.left_out} of the reference's {len(truth.edges)} edges are left out, as they name genes that "
            f"{lack}."
        )
    if truth.conflicts:
        lines.append(
            f"{truth.conflicts} pairs of the reference are listed with both signs; their sign counts as unknown."
        )
    absent = universe.genes[~universe.genes.isin(predicted.genes)]
    if len(absent):
        lines.append(
            f"{len(absent)} of the universe's {len(universe.genes)} genes are not in the network ({absent[0]!r}, for "
            "example), so their pairs have weight 0; score the genes of the network alone to leave them out."
        )
    if evaluation.signed and evaluation.silent:
        lines.append(
            f"{evaluation.silent} of the {ups + downs} signed true edges have no weight and count as wrong signs."
        )
    if not predicted.signs_have_meaning:
        lines.append(
            f"Signs are not scored, as those of this network have no meaning ({predicted.sign.removeprefix('none: ')})."
        )
    elif not evaluation.signed:
        lines.append("Signs are not scored, because the network has no negative weight.")
    elif truth.curated and ups + downs:
        lines.append(CAUTION)
    return lines


def score_table(evaluations: Mapping[str, Evaluation]) -> pd.DataFrame:
    """One row for each score: columns score, network, p, and one for each baseline; NaN where undefined."""
    first = evaluations["network"]
    columns: dict[str, list] = {"score": list(SCORES)}
    for name, evaluation in evaluations.items():
        columns[name] = [evaluation.scores[score] for score in SCORES]
        if evaluation is first:
            columns["p"] = [first.p_values.get(score, math.nan) for score in SCORES]
    return pd.DataFrame(columns)


def printed_rows(table: pd.DataFrame) -> list[tuple[str, ...]]:
    """The rows of `score_table` with readable names and numbers, without scores that no method has."""
    rows = []
    for row in table.to_dict("records"):
        name, p, values = row.pop("score"), row.pop("p"), row
        if all(math.isnan(value) for value in values.values()):
            continue
        texts = ["-" if math.isnan(value) else f"{value:.3f}" for value in values.values()]
        texts.insert(1, "-" if math.isnan(p) else f"{p:.2g}")
        rows.append((SCORES[name], *texts))
    return rows


def as_json(comparison: Comparison, about: Mapping[str, Any]) -> str:
    """The whole comparison as JSON text; null where a score is undefined. about: what was compared, and how."""
    universe = comparison.evaluations["network"].universe
    sign = universe.edges["sign"]
    types = None
    if comparison.types is not None:
        rows = comparison.types.to_dict("records")
        types = [
            {key: row[key] for key in ("cell_type", "method")} | _without_nan({key: row[key] for key in TYPE_SCORES})
            for row in rows
        ]
    found = {
        "version": grn.__version__,
        **about,
        "universe": {
            "regulators": len(universe.regulators),
            "genes": len(universe.genes),
            "pairs": universe.pairs,
            "true_edges": len(sign),
            "positive": int((sign > 0).sum()),
            "negative": int((sign < 0).sum()),
            "density": universe.density,
            "left_out": universe.left_out,
        },
        "cell_types": types,
        "methods": {
            name: {each: getattr(evaluation, each) for each in ("predicted", "outside", "cut", "silent", "signed")}
            | {each: _without_nan(getattr(evaluation, each)) for each in ("scores", "p_values")}
            for name, evaluation in comparison.evaluations.items()
        },
    }
    return json.dumps(found, indent=2, allow_nan=False) + "\n"


def _without_nan(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: None if math.isnan(value) else float(value) for name, value in values.items()}
