"""Scores a network against a reference, and Pearson and ridge for comparison; from files or from memory."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

import grn
from grn.analysis.baseline_cells import Expression, baseline_networks, cells_of_type, find_expression
from grn.analysis.evaluation.evaluate import SCORES, Evaluation, check_names, checked_edges, evaluate_on, repeated_pairs
from grn.analysis.evaluation.network_files import KEY, PredictedNetwork, open_network_file
from grn.analysis.evaluation.reference_files import ReferenceNetwork, open_reference_file
from grn.analysis.evaluation.type_scores import TYPE_SCORES, TypedTruth, with_means
from grn.analysis.evaluation.universe import Universe, make_universe
from grn.errors import DataError
from grn.messages import Say, silent

CAUTION = (
    "Caution: on observed blood cells, signs of correlations agree with curated signed pairs no better than chance "
    "(balanced accuracy 0.50 to 0.52); only simulations and perturbations can test signs."
)


Choice = str | os.PathLike[str] | Iterable[str]
"""Genes: a word for them ("reference", ...), a file of them, or their names."""


@dataclass(frozen=True)
class Comparison:
    """The comparison of two files. evaluations: see `compare_networks`.   options: the arguments of `compare`.

    types: see `compare_types`.
    """

    network: Path
    reference: Path
    evaluations: dict[str, Evaluation]
    options: dict[str, Any]
    types: pd.DataFrame | None = None


def compare(
    network: Path,
    reference: Path,
    *,
    regulators: str = "reference",
    genes: str | None = None,
    data: str | None = None,
    cell_type: str | None = None,
    key: str = KEY,
    permutations: int = 1000,
    seed: int = 0,
    say: Say = print,
) -> Comparison:
    """Evaluates the file `network` against the file `reference`: see `compare_networks`.

    data: cells for the baselines: a configuration, a run folder, anything that data.path takes (counts in X), or
    `none`. None: the cells of the run, where `network` is a run folder.   key: of varp, which network of a network.h5ad
    (or of a run folder's) is scored. Raises UserError.
    """
    refuse_type_of_key(cell_type, key)
    predicted, truth = open_network_file(network, key), open_reference_file(reference)
    expression = find_expression(network, data, say)
    if genes is None:
        genes = default_genes(predicted, expression)
    evaluations = compare_networks(
        predicted,
        truth,
        expression,
        regulators=regulators,
        genes=genes,
        cell_type=cell_type,
        permutations=permutations,
        seed=seed,
        say=say,
    )
    options = {
        "regulators": regulators,
        "genes": genes,
        "data": data,
        "cell_type": cell_type,
        "key": key,
        "permutations": permutations,
        "seed": seed,
    }
    universe = evaluations["network"].universe
    types = compare_types(predicted, truth, expression, universe, say) if cell_type is None else None
    return Comparison(network, reference, evaluations, options, types)


def refuse_type_of_key(cell_type: str | None, key: str) -> None:
    if cell_type is not None and key != KEY:
        raise DataError(
            f"--cell-type chooses among the networks of --key {KEY}, and --key is {key!r}; give one of them."
        )


def default_genes(predicted: PredictedNetwork, expression: Expression | None) -> str:
    """The default restriction of the universe: to the genes that were measured, where these are known."""
    if expression is not None:
        return "data"
    return "network" if predicted.of_run else "reference"


def compare_networks(
    predicted: PredictedNetwork,
    truth: ReferenceNetwork,
    expression: Expression | None,
    *,
    regulators: Choice,
    genes: Choice,
    cell_type: str | None,
    permutations: int,
    seed: int,
    say: Say,
) -> dict[str, Evaluation]:
    """Evaluations by method: `network` first, then Pearson and ridge, where there is expression to compute them from.

    regulators: `reference`, `all`, names, or a file with one name a line (see make_universe).
    genes: the restriction of the universe: `reference` (none), `network`, `data`, names, or a file.
    cell_type: a label: the network of this type, against the edges of this type where the reference has types, beside
    Pearson and ridge on the cells of this type. The pairs that are scored stay those of the whole reference.
    say: receives sentences that describe the universe and what was left out. Raises UserError.
    """
    universe_options: dict[str, Any] = {
        "regulators": chosen_regulators(regulators),
        "genes": _chosen_genes(genes, predicted, expression),
    }
    signed = predicted.signed  # of all cells: in a single type, every weight may be positive
    if cell_type is not None:
        predicted = predicted.of_type(cell_type)
        if expression is not None:
            expression = cells_of_type(expression, cell_type, say)
    table = checked_edges(predicted.edges)
    universe = make_universe(truth.edges, **universe_options)
    if cell_type is not None and truth.by_type:
        universe, truth = _of_type(universe, truth, cell_type)
    check_names(table, universe)
    evaluation = evaluate_on(universe, table, signed=signed, permutations=permutations, seed=seed)
    for line in describe(evaluation, predicted, truth, genes):
        say(line)
    evaluations = {"network": evaluation}
    if expression is not None:
        for name, edges in baseline_networks(expression, universe.regulators, universe.genes, say).items():
            evaluations[name] = evaluate_on(universe, edges, signed=True, permutations=0)
    return evaluations


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


def describe(evaluation: Evaluation, predicted: PredictedNetwork, truth: ReferenceNetwork, genes: Choice) -> list[str]:
    """Sentences about the universe, the network and the signs that are scored. Arguments as for compare_networks."""
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
    if len(universe.edges) == universe.pairs:
        lines.append("Every pair of the universe is a true edge: any network that has all of them gets these scores.")
    typed = "cell_type" in predicted.edges  # such a table lists a pair once for each type
    if repeated := 0 if typed else repeated_pairs(predicted.edges, universe):
        lines.append(f"{repeated} of these pairs are listed with several weights; the largest of each counts.")
    if universe.left_out:
        lacks = {"data": "the data lack", "network": "the network lacks"}
        lack = lacks.get(genes, f"{genes} lacks") if isinstance(genes, str) else "the list of genes lacks"
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
            "example), so their pairs have weight 0; to leave them out, give --genes network or a file of measured "
            "genes."
        )
        folded = {str(gene).casefold() for gene in predicted.genes}
        if twins := [str(gene) for gene in absent if str(gene).casefold() in folded]:
            lines.append(
                f"{len(twins)} of these differ from the network's only in upper and lower case ({twins[0]!r}, for "
                "example)."
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


def as_json(comparison: Comparison) -> str:
    """The whole comparison as JSON text; null where a score is undefined."""
    first = comparison.evaluations["network"]
    sign = first.universe.edges["sign"]
    found = {
        "version": grn.__version__,
        "network": str(comparison.network),
        "reference": str(comparison.reference),
        "options": comparison.options,
        "universe": {
            "regulators": len(first.universe.regulators),
            "genes": len(first.universe.genes),
            "pairs": first.universe.pairs,
            "true_edges": len(sign),
            "positive": int((sign > 0).sum()),
            "negative": int((sign < 0).sum()),
            "density": first.universe.density,
            "left_out": first.universe.left_out,
        },
        "cell_types": None if comparison.types is None else _type_records(comparison.types),
        "methods": {
            name: {
                "predicted": evaluation.predicted,
                "outside": evaluation.outside,
                "cut": evaluation.cut,
                "silent": evaluation.silent,
                "signed": evaluation.signed,
                "scores": _without_nan(evaluation.scores),
                "p_values": _without_nan(evaluation.p_values),
            }
            for name, evaluation in comparison.evaluations.items()
        },
    }
    return json.dumps(found, indent=2, allow_nan=False) + "\n"


def _type_records(types: pd.DataFrame) -> list[dict]:
    """The rows of `compare_types`; None where a score is undefined."""
    return [
        {"cell_type": row["cell_type"], "method": row["method"]}
        | _without_nan({name: float(row[name]) for name in TYPE_SCORES})
        for row in types.to_dict("records")
    ]


def _without_nan(values: dict[str, float]) -> dict[str, float | None]:
    return {name: None if math.isnan(value) else value for name, value in values.items()}


def _of_type(universe: Universe, truth: ReferenceNetwork, label: str) -> tuple[Universe, ReferenceNetwork]:
    """The same pairs with the true edges of one type. Raises DataError where there are none."""
    if label not in truth.by_type:
        raise DataError(f"The reference has no cell type {label!r}; it has {', '.join(map(repr, truth.by_type))}.")
    edges = truth.by_type[label]
    universe = universe.with_edges(edges)
    if universe.edges.empty:
        raise DataError(
            f"None of the reference's {len(edges)} edges of the cell type {label!r} is between genes that are scored; "
            "score more regulators (--regulators) and genes (--genes)."
        )
    return universe, ReferenceNetwork(edges, truth.format, conflicts=0)


def chosen_regulators(regulators: Choice) -> list[str] | str | None:
    if not isinstance(regulators, (str, os.PathLike)):
        return list(regulators)
    if regulators == "all":
        return None
    return "reference" if regulators == "reference" else _gene_list(regulators, "--regulators")


def _chosen_genes(genes: Choice, network: PredictedNetwork, expression: Expression | None) -> pd.Index | None:
    if not isinstance(genes, (str, os.PathLike)):
        return pd.Index(list(genes), dtype=object)
    if genes == "data" and expression is None:
        raise DataError("--genes is data, but there are no cells; give --data, or another choice of --genes.")
    match genes:
        case "reference":
            return None
        case "network":
            return network.genes
        case "data" if expression is not None:
            return expression.genes
    return pd.Index(_gene_list(genes, "--genes"))


def _gene_list(name: str | os.PathLike[str], option: str) -> list[str]:
    from grn.cells.genes import read_gene_list

    return read_gene_list(os.fspath(name), option)
