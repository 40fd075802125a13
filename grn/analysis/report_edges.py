"""The edges in a report: those that its table and its network hold, and the top regulators of each cell type."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape

import numpy as np
import pandas as pd

from grn.analysis.summary import is_composition, tells_apart
from grn.networks.signed_network import SignedNetwork, edge_list

ALL = "all cells"
EACH_SIGN = 4  # edges of each sign that every target has in each cell type
MOST = 40_000  # in a report: about a megabyte
TOP, TARGETS = 6, 4  # regulators of a type, and genes that each raises or lowers


def strongest_of_targets(edges: pd.DataFrame, count: int = EACH_SIGN) -> pd.DataFrame:
    """Of edges sorted by |weight|, the `count` strongest of each sign for each target and cell type, in that order."""
    sign = edges["weight"] > 0
    keys = [edges["target"], sign] + ([edges["cell_type"].astype(str)] if "cell_type" in edges else [])
    return edges[(edges.groupby(keys, sort=False).cumcount() < count) & (edges["weight"] != 0)]


def edges_of_network(network: SignedNetwork) -> pd.DataFrame:
    """The edges of each type alone, where no table has more of them."""
    tables = [edge_list(w, network.genes).assign(cell_type=label) for label, w in network.by_type.items()]
    empty = edge_list(network.weights, network.genes).head(0).assign(cell_type="")
    return pd.concat([empty, *map(strongest_of_targets, tables)], ignore_index=True)


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


def top_regulators(of_types: Mapping[str, pd.DataFrame], *, signed: bool) -> str:
    """HTML: for each cell type its top regulators, each with the genes that it raises and lowers most.

    of_types: edges of each type (or of all cells), sorted by |weight|. A regulator's place is that of its strongest
    edge, so that none can fill a type by itself.
    """
    up, down = ("raises", "lowers") if signed else ("positive", "negative")
    cards = []
    for label, edges in of_types.items():
        rows = []
        for regulator in list(dict.fromkeys(edges["source"][edges["weight"] != 0]))[:TOP]:
            own = edges[edges["source"] == regulator]
            parts = []
            for word, colour, chosen in ((up, "up", own["weight"] > 0), (down, "down", own["weight"] < 0)):
                genes = ", ".join(_gene(target, label) for target in own["target"][chosen].head(TARGETS))
                parts.append(f'<td class="{colour}">{word + " " + genes if genes else ""}</td>')
            rows.append(f"<tr><th>{_gene(regulator, label)}</th>{''.join(parts)}</tr>")
        if rows:
            cards.append(f'<div class="card"><h3>{escape(label)}</h3><table class="top">{"".join(rows)}</table></div>')
    return f'<div class="cards">{"".join(cards)}</div>' if cards else ""


def _gene(name: str, label: str) -> str:
    return f'<span class="gene" data-gene="{escape(name)}" data-type="{escape(label)}">{escape(name)}</span>'
