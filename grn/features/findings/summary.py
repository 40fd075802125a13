"""The results of a run as rows of tables, for the terminal and for the report."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from grn.cells.genes.programmes import in_words, programme_of
from grn.evidence.caused import NORMAL
from grn.evidence.q_values import SIGNIFICANT

ALL = "all cells"
EACH_SIGN = (
    4  # edges of each sign that every target has in each cell type, beside those that are certain
)
MOST = 40_000  # in a report: about a megabyte
MARKERS = 5  # genes of a cell type
FEWEST = 10  # cells with both genes: with fewer, large weights are chance
VISIBLE = 0.1  # a correlation within a type that is worth more cells
WIDEST = 10.0  # times the lower end of an interval, above which no fold change is told
SCORES = {
    "accuracy": "accuracy",
    "macro_f1": "macro F1",
    "auroc": "AUROC (one type against the rest)",
    "error": "error of the genes from their regulators (1: that of their means)",
    "ridge_error": "error of ridge within types on the same regulators",
    "means_error": "error of the means of the types",
}
LOSSES = {"cell_type_loss": "loss of cell types"}
SHOWN = {  # column of an edge table -> its title, and the form of its values
    "cell_type": ("cells", ""),
    "source": ("regulator", ""),
    "target": ("target", ""),
    "programme": ("programme", ""),
    "caused": ("effect", "+.2f"),
    "caused_low": ("from", "+.2f"),
    "caused_high": ("to", "+.2f"),
    "caused_q": ("its q", ".2g"),
    "weight": ("weight", "+.2g"),
    "sd": ("sd", ".2g"),
    "q_value": ("q", ".2g"),
}
CLASS_COLUMNS = ["cell type", "F1", "test cells", "marker genes"]
FOUND = {  # column of uns["grn"]["found"] -> its title
    "label": "cells",
    "cells": "number",
    "edges": "certain edges",
    "borrowed": "certain only together with other cells",
    "least_effect": "least correlation that could be seen",
}


def score_rows(
    metrics: Mapping[str, float], names: Mapping[str, str] = SCORES
) -> list[tuple[str, float]]:
    """(readable name, value) of each metric that was measured."""
    return [
        (title, metrics[name])
        for name, title in names.items()
        if not math.isnan(metrics.get(name, math.nan))
    ]


def class_rows(
    per_class: pd.DataFrame, levels: pd.DataFrame | None = None
) -> list[tuple[str, str, int, str]]:
    """(cell type, F1, number of test cells, markers); a type without test cells has no F1.

    levels: of genes (columns) in types. A type's markers are the genes whose level is furthest
        above every other's.
    """
    markers = {}
    if levels is not None and len(levels) > 1:
        for name in levels.index:
            above = (levels.loc[name] - levels.drop(index=name).max()).nlargest(MARKERS)
            markers[str(name)] = ", ".join(above.index[above > 0])
    return [
        (str(name), f"{f1:.3f}" if cells else "-", int(cells), markers.get(str(name), ""))
        for name, f1, cells in per_class.itertuples(index=False)
    ]


def edge_texts(edges: pd.DataFrame) -> tuple[list[str], list[tuple[str, ...]]]:
    """The columns that the table has, in words, and its rows as texts."""
    shown = {name: how for name, how in SHOWN.items() if name in edges}
    texts = [
        ["" if value != value else format(value, form) for value in edges[name]]
        for name, (_, form) in shown.items()
    ]
    return [title for title, _ in shown.values()], list(zip(*texts, strict=True))


def certain(edges: pd.DataFrame) -> pd.DataFrame:
    """The edges that are certain, by rising q-value and falling |weight|; none where q-values are
    not known.
    """
    if "q_value" not in edges:
        return edges.head(0)
    found = edges[(edges["q_value"] <= SIGNIFICANT) & (edges["weight"] != 0)]
    return found.iloc[np.lexsort([-found["weight"].abs(), found["q_value"]])]


def sizes_known(edges: pd.DataFrame) -> bool:
    """Return whether a certain edge has a size."""
    return {"effect", "effect_se"} <= set(edges) and bool(certain(edges)["effect"].notna().any())


def size_text(effect: float, error: float, counts: bool) -> str:
    """An edge's effect for a reader, with its 95 % interval: how many times as much of the target,
    or by how much more in the unit of its values. Where the ends of a fold change are more than
    WIDEST times apart, its size is not known.

    >>> sizes = [(0.4, True), (0.4, False), (float("nan"), True)]
    >>> tuple(size_text(size, 0.06, counts=counts) for size, counts in sizes)
    ('x1.32 (1.22 to 1.43)', '+0.4 (0.282 to 0.518)', '')
    >>> size_text(4.8, 1.1, counts=True)
    'size not known'
    """
    if math.isnan(effect):
        return ""
    if counts and 2 * NORMAL * error > math.log2(WIDEST):
        return "size not known"
    ends = (effect, effect - NORMAL * error, effect + NORMAL * error)
    size, low, high = (f"{2**end if counts else end:.3g}" for end in ends)
    return f"{'x' if counts else '+' if effect > 0 else ''}{size} ({low} to {high})"


def caused(edges: pd.DataFrame) -> pd.DataFrame:
    """The certain effects of interventions, the largest first; none where there were no
    interventions.
    """
    if "caused_q" not in edges:
        return edges.head(0)
    found = edges[edges["caused_q"] <= SIGNIFICANT]
    return found.iloc[np.argsort(-found["caused"].abs().to_numpy(), kind="stable")]


def found_texts(about: Mapping[str, Any]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return what uns["grn"]["found"] says of all cells and of each state, as columns and rows;
    none where it is not known.
    """
    if "found" not in about:
        return [], []
    found: pd.DataFrame = about["found"]
    texts = {name: found[name].astype(str) for name in FOUND if name in found}
    if "least_effect" in texts:
        texts["least_effect"] = [
            "none" if value != value else f"{value:.2f}" for value in found["least_effect"]
        ]
    return [FOUND[name] for name in texts], list(zip(*texts.values(), strict=True))


def certain_sentence(about: Mapping[str, Any]) -> str:
    """Return a sentence with the number of certain edges, and what more cells would show."""
    if "found" not in about:
        return about.get(
            "certain", "Which edges are certain was not computed (network.false_discovery: false)."
        )
    every, types = about["found"].iloc[0], about["found"].iloc[1:]
    alone = "; ".join(f"{row.label} {row.edges}" for row in types.itertuples() if row.edges)
    alone = f" In cells of one kind by themselves: {alone}." if alone else ""
    if every["edges"]:
        number = f"{every['edges']} edge{'s are' if every['edges'] > 1 else ' is'}"
        within = "cell types" if about.get("states") == "labels" else "groups of cells"
        said = (
            f"{number} certain over all cells (q at most {SIGNIFICANT:g}): associations within "
            f"{within}, direct or "
        )
        said += "indirect, not causes."
        if about.get("states") == "conditions":
            said += " As they are within one condition, they do not show the response itself."
        return said + alone
    none = f"No edge is certain over all cells (q at most {SIGNIFICANT:g}).{alone}"
    if math.isnan(least := every.get("least_effect", math.nan)):
        return none
    shown = (
        f"{none} With {every['cells']} cells, only correlations above {least:.2f} within a type "
        "could have been seen, as chance alone gives smaller ones"
    )
    # the error of a correlation falls with the root of the cells
    more = every["cells"] * (least / VISIBLE) ** 2
    needed = f"; for those above {VISIBLE:g}, about {float(f'{more:.1g}'):,.0f} cells are needed"
    return shown + (needed if least > VISIBLE else "") + "."


def certain_table(edges: pd.DataFrame, of_types: pd.DataFrame) -> pd.DataFrame:
    """The certain edges over all cells, then those of each type, with a last column cell_type."""
    every = [certain(edges).assign(cell_type=ALL), certain(of_types)]
    table = pd.concat([each for each in every if len(each)] or every[:1], ignore_index=True)
    return table.sort_values(
        "cell_type", key=lambda names: names.map({ALL: 0}).fillna(1), kind="stable"
    )


def both_ways(edges: pd.DataFrame) -> str:
    """Return a sentence with the number of pairs of regulators that are certain in both directions;
    "" where none are.
    """
    found = certain(edges)
    pairs = set(zip(found["source"], found["target"], strict=True))
    number = sum((target, source) in pairs for source, target in pairs) // 2
    return (
        f"{number} pairs are certain in both directions: which of the two regulates is not known."
        if number
        else ""
    )


def states_sentence(about: Mapping[str, Any], states: Sequence[str]) -> str:
    """Which groups of cells the network is of, and where they come from; states: their names. ""
    for older ones.
    """
    names = "; ".join(states[:12]) + ("; ..." if len(states) > 12 else "")
    origins = {
        "labels": f"Cells are compared within {len(states)} groups, the given labels: {names}.",
        "numeric": f"Cells are compared within {len(states)} groups along a numeric column of obs: "
        f"{names}.",
        "conditions": f"Cells are compared within one condition, in {len(states)} groups: {names}.",
        "found": f"There are no labels, so cells are compared within {len(states)} groups that "
        f"were found in the leading principal components of the genes: {names}.",
        "one": "All cells are compared with each other: no two labels have several cells each, and "
        "no groups were found.",
        "screen": "The cells of a screen without labels are compared with each other.",
        "together": "All cells are compared with each other, as cell types are the only objective.",
    }
    if "cell_type" in about:
        return f"This is the network of one group of the cells alone: {about['cell_type']}."
    return origins.get(str(about.get("states", "")), "")


def kept_edges(edges: pd.DataFrame, count: int = EACH_SIGN) -> pd.DataFrame:
    """Of edges sorted by |weight|, those that are certain, and the `count` strongest of each sign
    for each target and cell type, in that order.
    """
    keys = [edges["target"], edges["weight"] > 0]
    keys += [edges["cell_type"].astype(str)] if "cell_type" in edges else []
    kept = edges.groupby(keys, sort=False).cumcount() < count
    if "q_value" in edges:
        kept |= edges["q_value"] <= SIGNIFICANT
    return edges[kept & (edges["weight"] != 0)]


def edges_json(
    overall: pd.DataFrame,
    of_types: pd.DataFrame,
    *,
    signed: bool,
    genes: Sequence[str] = (),
    counts: bool = True,
) -> tuple[str, int]:
    """The edges of a report as JSON that may stand inside of HTML, and how many they are.

    overall: over all cells, sorted by |weight|.
    of_types: the same with a column cell_type.
    genes: all of the run.
    counts: whether effects are fold changes; else in the unit of the values. At most MOST are kept:
        first those that are certain, then the strongest edge of every target, then the second ones;
        of edges that are not certain, those whose genes are seen together in FEWEST cells.
    """
    table = pd.concat([kept_edges(overall).assign(cell_type=ALL), of_types], ignore_index=True)
    if {"cells", "q_value"} <= set(table):
        table = table[(table["cells"] >= FEWEST) | (table["q_value"] <= SIGNIFICANT)].reset_index(
            drop=True
        )
    table["cell_type"] = table["cell_type"].astype(str)
    place = table.groupby(
        [table["target"], table["cell_type"], table["weight"] > 0], sort=False
    ).cumcount()
    doubtful = (
        table["q_value"] > SIGNIFICANT if "q_value" in table else np.ones(len(table), dtype=bool)
    )
    order = np.lexsort([-table["weight"].abs(), place, doubtful])[:MOST]
    table = table.iloc[np.sort(order)]
    names = sorted(set(table["source"]) | set(table["target"]))
    types = list(dict.fromkeys([ALL, *table["cell_type"]]))
    gene_at, type_at = pd.Index(names), pd.Index(types)
    of_certain = (
        table.where(table["q_value"] <= SIGNIFICANT) if "q_value" in table else table.head(0)
    )
    sizes = {
        key: _numbers(of_certain, column, 4)
        for key, column in (("e", "effect"), ("d", "effect_se"))
        if column in of_certain and len(of_certain)
    }
    content = {
        "signed": signed,
        "fold": counts,
        "genes": names,
        "others": sorted(set(genes).difference(names)),
        "regulators": sorted(set(overall["source"])),
        "programmes": {name: in_words(of) for name in names if (of := programme_of(name))},
        "types": types,
        "s": gene_at.get_indexer(table["source"]).tolist(),
        "t": gene_at.get_indexer(table["target"]).tolist(),
        "k": type_at.get_indexer(table["cell_type"]).tolist(),
        "w": [float(f"{value:.3g}") for value in table["weight"]],
        "q": _numbers(table, "q_value", 6),
        **sizes,  # of certain edges
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
    """The columns of a table of `grn.activity` in words, and its rows as texts:
    what is read of it.
    """
    means = [name for name in table if str(name).startswith("activity")]
    shown = {"cell_type": "cell type", "regulator": "regulator", "targets": "targets"}
    shown |= {name: str(name).replace("_", " in ", 1) for name in means}
    texts = [
        table[name].astype(str).tolist()
        if name not in means
        else [f"{v:+.2f}" for v in table[name]]
        for name in shown
    ]
    titles = list(shown.values())
    if "messenger" in table:
        titles.append("own messenger")
        texts.append(["" if value != value else f"{value:+.2f}" for value in table["messenger"]])
    if "effect" in table:
        titles += ["effect", "95 % interval", "q"]
        ends = zip(table["low"], table["high"], strict=True)
        texts += [
            [f"{v:+.2f}" for v in table["effect"]],
            [f"{low:+.2f} to {high:+.2f}" for low, high in ends],
        ]
        texts.append([f"{v:.2g}" for v in table["q_value"]])
    return titles, list(zip(*texts, strict=True))
