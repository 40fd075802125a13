"""The results of a run as rows of tables, for the terminal and for the report."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

COMPOSITION = "composition"  # beside an edge that differences between states alone speak for
LEAST_CONFIDENCE, LEAST_BETWEEN = 0.6, 0.5
ALL = "all cells"
EACH_SIGN = 4  # edges of each sign that every target has in each cell type
MOST = 40_000  # in a report: about a megabyte

SCORES = {
    "accuracy": "accuracy",
    "macro_f1": "macro F1",
    "auroc": "AUROC (one type against the rest)",
    "r2": "R2 of the genes, from their regulators",
    "error": "error of the genes (of their means: 1)",
    "ridge_error": "error of ridge on the same regulators",
}
LOSSES = {
    "cell_type_loss": "loss of cell types",
    "masked_multiplicity_loss": "loss of the genes",
    "property_loss": "loss of the property",
}
SHOWN = {  # column of an edge table -> its title, and the form of its values
    "source": ("regulator", ""),
    "target": ("target", ""),
    "weight": ("weight", "+.3f"),
    "sd": ("sd", ".3f"),
    "between": ("between", "+.2f"),
    "confidence": ("confidence", ".2f"),
    "q_value": ("q", ".2g"),
}


def score_rows(metrics: Mapping[str, float], names: Mapping[str, str] = SCORES) -> list[tuple[str, float]]:
    """(readable name, value) of each metric that was measured."""
    return [(title, metrics[name]) for name, title in names.items() if not math.isnan(metrics.get(name, math.nan))]


def class_rows(per_class: pd.DataFrame) -> list[tuple[str, str, int]]:
    """(cell type, F1, number of test cells); a type without test cells has no F1."""
    rows = per_class.to_dict("records")
    return [(str(row["class"]), f"{row['f1']:.3f}" if row["cells"] else "-", int(row["cells"])) for row in rows]


def edge_texts(edges: pd.DataFrame) -> tuple[list[str], list[tuple[str, ...]]]:
    """The columns that the table has, in words, and its rows as texts."""
    told_apart = tells_apart(edges)
    shown = {name: how for name, how in SHOWN.items() if name in edges and (told_apart or name != "between")}
    columns = [title for title, _ in shown.values()]
    texts = [[format(value, form) for value in edges[name]] for name, (_, form) in shown.items()]
    if told_apart:
        columns.append("note")
        texts.append([COMPOSITION if composed else "" for composed in is_composition(edges)])
    return columns, list(zip(*texts, strict=True))


def tells_apart(edges: pd.DataFrame) -> bool:
    """Whether the table has evidence between states beside its weights; with one state, there is none."""
    return "between" in edges and bool((edges["between"].fillna(0) != 0).any())


def is_composition(edges: pd.DataFrame) -> np.ndarray:
    """bool [edges]: levels of states that differ together, and nothing within states: it may be composition alone."""
    if "confidence" not in edges:
        return np.zeros(len(edges), dtype=bool)
    return ((edges["confidence"] < LEAST_CONFIDENCE) & (edges["between"].abs() > LEAST_BETWEEN)).to_numpy()


def found_rows(about: Mapping) -> list[tuple[str, int]]:
    """(all cells or a state, edges at a false discovery rate of 0.05), from uns["grn"]; none where it is not known."""
    found = about.get("found", {"label": (), "edges": ()})
    return [(str(label), int(edges)) for label, edges in zip(found["label"], found["edges"], strict=True)]


def states_sentence(about: Mapping, states: Sequence[str]) -> str:
    """Which states the network is of, and where they come from; states: their names. "" for older networks."""
    names = ", ".join(states[:12]) + (", ..." if len(states) > 12 else "")
    origins = {
        "labels": f"Cells are compared within {len(states)} states, the given labels: {names}.",
        "numeric": f"Cells are compared within {len(states)} states along a numeric column of obs: {names}.",
        "found": f"There are no labels, so cells are compared within {len(states)} states that were found in the "
        f"leading principal components of the genes: {names}.",
        "one": "All cells are compared with each other: no two labels have several cells each, and no states "
        "were found.",
    }
    if "cell_type" in about:
        return f"This is the network of one state of the cells alone: {about['cell_type']}."
    return origins.get(str(about.get("states", "")), "")


def edge_titles(signed: bool) -> tuple[str, str]:
    if signed:
        return "Strongest up-regulations", "Strongest down-regulations"
    return "Most positive weights (no sign claimed)", "Most negative weights (no sign claimed)"


def strongest_of_targets(edges: pd.DataFrame, count: int = EACH_SIGN) -> pd.DataFrame:
    """Of edges sorted by |weight|, the `count` strongest of each sign for each target and cell type, in that order."""
    sign = edges["weight"] > 0
    keys = [edges["target"], sign] + ([edges["cell_type"].astype(str)] if "cell_type" in edges else [])
    return edges[(edges.groupby(keys, sort=False).cumcount() < count) & (edges["weight"] != 0)]


def edges_json(overall: pd.DataFrame, of_types: pd.DataFrame, *, signed: bool) -> tuple[str, int]:
    """The edges of a report as JSON that may stand inside of HTML, and how many they are.

    overall: over all cells, sorted by |weight|.   of_types: the same with a column cell_type. At most MOST are kept:
    first the strongest edge of every target, then the second ones.
    """
    table = pd.concat([strongest_of_targets(overall).assign(cell_type=ALL), of_types], ignore_index=True)
    table["cell_type"] = table["cell_type"].astype(str)
    place = table.groupby([table["target"], table["cell_type"], table["weight"] > 0], sort=False).cumcount()
    order = np.lexsort([-table["weight"].abs(), place])[:MOST]
    table = table.iloc[np.sort(order)]
    genes = sorted(set(table["source"]) | set(table["target"]))
    types = list(dict.fromkeys([ALL, *table["cell_type"]]))
    gene_at, type_at = pd.Index(genes), pd.Index(types)
    composed = is_composition(table) if tells_apart(table) else np.zeros(len(table), dtype=bool)
    content = {
        "signed": signed,
        "genes": genes,
        "types": types,
        "s": gene_at.get_indexer(table["source"]).tolist(),
        "t": gene_at.get_indexer(table["target"]).tolist(),
        "k": type_at.get_indexer(table["cell_type"]).tolist(),
        "w": [float(f"{value:.3g}") for value in table["weight"]],
        "c": _numbers(table, "confidence", 2),
        "q": _numbers(table, "q_value", 3),
        "n": (composed & (table["cell_type"] == ALL)).astype(int).tolist(),
    }
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    # Inside of a script element nothing but these could end it, or begin a comment.
    for mark in "<>&\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text, len(table)


def _numbers(table: pd.DataFrame, column: str, digits: int) -> list[float | None]:
    if column not in table:
        return [None] * len(table)
    return [None if pd.isna(value) else round(float(value), digits) for value in table[column]]


def activity_texts(table: pd.DataFrame) -> tuple[list[str], list[tuple[str, ...]]]:
    """The columns of a table of `grn.activity` in words, and its rows as texts: what is read of it."""
    means = [name for name in table if str(name).startswith("activity")]
    shown = {"cell_type": "cell type", "regulator": "regulator", "targets": "targets"}
    shown |= {name: str(name).replace("_", " in ", 1) for name in means}
    texts = [
        table[name].astype(str).tolist() if name not in means else [f"{v:+.2f}" for v in table[name]] for name in shown
    ]
    titles = list(shown.values())
    if "effect" in table:
        titles += ["effect", "95 % interval", "q"]
        ends = zip(table["low"], table["high"], strict=True)
        texts += [[f"{v:+.2f}" for v in table["effect"]], [f"{low:+.2f} to {high:+.2f}" for low, high in ends]]
        texts.append([f"{v:.2g}" for v in table["q_value"]])
    return titles, list(zip(*texts, strict=True))
