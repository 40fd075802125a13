"""The strongest regulators of each cell type: as bars with their targets, and as dots of sign and confidence."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from grn.networks.signed_network import edge_list
from grn.plots.given import NetworkLike, as_network, as_typed_edges
from grn.plots.style import (
    DOWN,
    INK,
    SIGNED,
    UP,
    canvas,
    colour_bar,
    note,
    nothing,
    panels,
    plain,
    short,
    shorten,
    shown,
    sign_legend,
    unframed,
    whole,
)

LONGEST_GENE = 12  # characters of a gene's name before it is cut in the middle


def cell_type_regulators(network: NetworkLike, *, types: int = 6, regulators: int = 5) -> Figure:
    """One panel per cell type: its strongest regulators, each with at most one edge of either sign.

    network: a run, its network (network.h5ad), or a table of edges, with a column cell_type for types.
    types: how many cell types, those with the most cells first; a network without any is drawn over all cells.
    regulators: how many of each type, by their strongest edge in it; one regulator can therefore not fill a panel.

    To the right in blue the target that a regulator raises most, to the left in red the one that it lowers most, with
    |weight| in the bar (unit: uns["grn"]["sign"]); all panels have one scale. Raises UserError where the
    AnnData holds no network.
    """
    network = as_network(network)
    chosen = list(network.by_type.items())[:types] or [("all cells", network.weights)]
    tables = {title: strongest_of_each(edge_list(weights, network.genes), regulators) for title, weights in chosen}
    tables = {title: table for title, table in tables.items() if len(table)}
    if not tables:
        return nothing("The network has no edges.")
    height = 0.45 + 0.23 * max(len(table) for table in tables.values())
    picture, axes = panels(len(tables), 3, 3.4, height)
    picture.set_figheight(picture.get_figheight() + 0.5)  # of the legend
    widest = max(float(table[["raised_weight", "lowered_weight"]].abs().max(axis=None)) for table in tables.values())
    for panel, (title, table) in zip(axes, tables.items(), strict=True):
        draw_regulators(panel, title, table, widest)
    sign_legend(picture, network.signed, loc="outside lower center", fontsize=9)
    return picture


def strongest_of_each(edges: pd.DataFrame, count: int) -> pd.DataFrame:
    """The `count` regulators with the strongest edges, by that edge's |weight|.

    edges: source, target, weight, sorted by |weight|. Returns source, raised, raised_weight, lowered, lowered_weight:
    each regulator's strongest positive and strongest negative edge ("" and 0 where it has none).
    """
    names = list(dict.fromkeys(edges["source"]))[:count]
    first = {
        part: edges[side].drop_duplicates("source").set_index("source")
        for part, side in (("raised", edges["weight"] > 0), ("lowered", edges["weight"] < 0))
    }
    table = pd.DataFrame({"source": names})
    for part, found in first.items():
        known = found.reindex(names)
        table[part] = known["target"].fillna("").to_numpy()
        table[f"{part}_weight"] = known["weight"].fillna(0.0).to_numpy()
    return table


def draw_regulators(axes: Axes, title: str, table: pd.DataFrame, widest: float) -> None:
    """Regulators in the middle; to both sides a bar, its weight in it and its target behind it.

    table: as from strongest_of_each; widest: the largest |weight| of all panels, whose scale this one shares.
    """
    middle = 0.6 * widest  # half of the space for the names of the regulators
    for row, edges in enumerate(table.itertuples()):
        name = short(edges.source, LONGEST_GENE)
        axes.text(0, row, name, ha="center", va="center", fontsize=8.5, fontweight="bold", color=INK)
        sides = (
            (1, "left", UP, edges.raised, edges.raised_weight),
            (-1, "right", DOWN, edges.lowered, edges.lowered_weight),
        )
        for side, align, colour, target, weight in sides:
            if not target:
                continue
            axes.barh(row, weight, left=side * middle, color=colour, height=0.7)
            end = side * (middle + abs(weight) + 0.04 * widest)
            axes.text(end, row, short(target, LONGEST_GENE), ha=align, va="center", fontsize=8, color=colour)
            # A number needs a bar that is wider than it.
            if abs(weight) > 0.3 * widest:
                inside = side * (middle + abs(weight) / 2)
                axes.text(inside, row, f"{abs(weight):.2f}", ha="center", va="center", fontsize=6.5, color="white")
    # The names of the targets need about as much space as the bars.
    axes.set_xlim(-2.7 * widest, 2.7 * widest)
    axes.set_ylim(len(table) - 0.4, -0.6)
    axes.set_axis_off()
    axes.set_title(short(title), fontsize=10, fontweight="bold", color=INK)


SIZES = (0.5, 0.75, 1.0)  # confidences in the legend


def regulator_dots(
    edges: NetworkLike,
    *,
    regulators: int = 3,
    types: int = 10,
    ax: Axes | None = None,
    show: bool | None = None,
) -> Axes:
    """A row for the strongest edge of each type's top regulators, a column for each cell type.

    A regulator is on top in a type by its strongest edge there; the row is that edge, and its dots say what it is in
    every type: blue raises, red lowers the target, the larger, the more certain its sign (confidence; without
    confidences, all dots have one size).
    edges: a run (its edges_by_type.parquet), a network, or a table with a column cell_type.   regulators: of each type.
    types: the first ones of the table.   ax, show: as in grn.plots. Raises UserError.
    """
    table = as_typed_edges(edges)
    names = list(dict.fromkeys(table["cell_type"].astype(str)))[:types]
    rows: list[tuple[str, str]] = []
    for name in names:
        of_type = table[table["cell_type"].astype(str) == name]
        of_type = of_type.iloc[np.argsort(-of_type["weight"].abs().to_numpy(), kind="stable")]
        for edge in of_type.drop_duplicates("source").head(regulators).itertuples():
            if (edge.source, edge.target) not in rows and edge.weight:
                rows.append((str(edge.source), str(edge.target)))
    axes = canvas(ax, 3.4 + 0.42 * len(names), 1.9 + 0.25 * len(rows))
    if not rows:
        return shown(note(axes, "There are no networks of cell types."), ax, show)
    place = {pair: number for number, pair in enumerate(rows)}
    shown_edges = table[[pair in place for pair in zip(table["source"], table["target"], strict=True)]]
    shown_edges = shown_edges[shown_edges["cell_type"].astype(str).isin(names)]
    y = [place[pair] for pair in zip(shown_edges["source"], shown_edges["target"], strict=True)]
    x = shown_edges["cell_type"].astype(str).map(names.index)
    known = "confidence" in shown_edges
    confidence = shown_edges["confidence"].fillna(0.5).to_numpy() if known else np.ones(len(shown_edges))
    limit = float(np.quantile(shown_edges["weight"].abs(), 0.95)) or 1.0
    axes.set_axisbelow(True)
    axes.grid(color="#eeeeee", linewidth=0.7)
    dots = axes.scatter(
        x,
        y,
        c=shown_edges["weight"],
        s=[_area(value) for value in confidence],
        cmap=matplotlib.colormaps[SIGNED],
        norm=Normalize(-limit, limit),
        edgecolors="#777777",
        linewidths=0.4,
    )
    axes.set_xticks(
        range(len(names)), shorten(names, 26), rotation=45, ha="right", rotation_mode="anchor", fontsize=8.5
    )
    labels = [f"{short(source, 12)} → {short(target, 12)}" for source, target in rows]
    axes.set_yticks(range(len(rows)), labels, fontsize=8, fontstyle="italic")
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    plain(axes, "Top regulators of each cell type")
    unframed(axes)
    place_of_bar: dict[str, Any] = {"shrink": 0.45, "aspect": 13, "pad": 0.02, "anchor": (0, 0.25)}
    colour_bar(whole(axes), dots, "weight: red lowers, blue raises", ax=axes, extend="both", **place_of_bar)
    if known:
        look: dict[str, Any] = {"marker": "o", "linestyle": "", "color": "#999999"}
        marks = [Line2D([], [], markersize=_area(value) ** 0.5, label=f"{value:g}", **look) for value in SIZES]
        at: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
        axes.legend(handles=marks, title="confidence", frameon=False, fontsize=8, title_fontsize=8.5, **at)
    return shown(axes, ax, show)


def _area(confidence: float) -> float:
    """Of a dot, in square points: 12 where nothing is known of the sign, 110 where it is certain."""
    return 12 + 98 * float(np.clip(2 * confidence - 1, 0, 1))
