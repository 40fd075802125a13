"""The top regulators of each cell type as dots: colour is sign and strength, size is confidence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.lines import Line2D

from grn.networks.signed_network import SignedNetwork
from grn.plots.given import RunLike, as_typed_edges
from grn.plots.style import SIGNED, canvas, colour_bar, note, plain, short, shorten, shown, whole

if TYPE_CHECKING:
    from anndata import AnnData

SIZES = (0.5, 0.75, 1.0)  # confidences in the legend


def regulator_dots(
    edges: RunLike | pd.DataFrame | SignedNetwork | AnnData,
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
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
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
