"""Bars: the strongest edges of a network, and the genes that speak for a cell type and against it."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from grn.networks.run_files import strongest_edges
from grn.plots.given import NetworkLike, as_edges, columns_of, only_type, refuse_unknown
from grn.plots.style import DOWN, INK, MEANING, UP, WITHOUT_MEANING, canvas, note, paler, plain, short, shorten, shown


def strongest_regulations(
    edges: NetworkLike,
    count: int = 15,
    *,
    signed: bool = True,
    ax: Axes | None = None,
    show: bool | None = None,
) -> Axes:
    """The first `count` edges of each sign as bars; paler ones are less confident.

    edges: a run, its network, or a table with source, target, weight and, where it is known, confidence.
    signed: the sign says whether the regulator raises or lowers its target.   ax, show: as in grn.plots.
    """
    table = as_edges(edges)
    up, down = strongest_edges(table, count)
    axes = canvas(ax, 7, max(2.2, 0.24 * (len(up) + len(down)) + 1.2))
    if up.empty and down.empty:
        return shown(note(axes, "The network has no edges."), ax, show)
    gap = 1 if len(up) and len(down) else 0
    bars = pd.concat([up, down[::-1]])
    heights = [*range(len(up)), *range(len(up) + gap, len(bars) + gap)]
    for height, edge in zip(heights, bars.itertuples(), strict=True):
        # 1 at a confidence of 0.5, which is that of a coin toss; such edges are drawn palest.
        uncertainty = min(max(2 - 2 * getattr(edge, "confidence", 1.0), 0), 1)
        axes.barh(height, edge.weight, color=paler(UP if edge.weight > 0 else DOWN, 0.75 * uncertainty), height=0.78)
    labels = [f"{short(edge.source, 18)} → {short(edge.target, 18)}" for edge in bars.itertuples()]
    axes.set_yticks(heights, labels, fontsize=8.5)
    axes.set_ylim(len(bars) + gap - 0.4, -0.6)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set_xlabel("weight")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7))
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    plain(axes, "Strongest edges: regulator → target")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    raises, lowers = MEANING if signed else WITHOUT_MEANING
    middle = len(up) / 2 - 0.5, len(up) + gap + len(down) / 2 - 0.5
    # The name of each side stands where the other side has no bars.
    if len(up):
        axes.text(0, middle[0], f"{raises}  ", ha="right", va="center", color=UP, fontsize=9)
    if len(down):
        axes.text(0, middle[1], f"  {lowers}", ha="left", va="center", color=DOWN, fontsize=9)
    widest = bars["weight"].abs().max()
    left = 1.08 * widest if len(down) else 0.5 * widest
    right = 1.08 * widest if len(up) else 0.5 * widest
    axes.set_xlim(-left, right)
    return shown(axes, ax, show)


def cell_type_genes(
    table: pd.DataFrame,
    cell_type: str | None = None,
    *,
    top: int = 10,
    ax: Axes | None = None,
    show: bool | None = None,
) -> Axes:
    """The `top` genes that speak for a cell type most, and as many that speak against it, and how much they do.

    table: of `grn.explain`.   cell_type: which of its types; None: its only one.   ax, show: as in grn.plots.
    Raises UserError for another table, a type that it does not have, and several types without a choice.
    """
    wanted = "the table that grn.explain returns"
    table = columns_of(table, wanted, texts=("cell_type", "gene"), numbers=("effect",))
    types = table["cell_type"].unique()
    chosen = only_type(types) if cell_type is None else cell_type
    refuse_unknown("cell type", chosen, types, "The table")
    own = table[table["cell_type"] == chosen].sort_values("effect", ascending=False, kind="stable")
    speaking = pd.concat([own[own["effect"] > 0].head(top), own[own["effect"] < 0].tail(top)])
    axes = canvas(ax, 4.6, 0.21 * max(len(speaking), 4) + 0.9)
    if speaking.empty:
        return shown(note(axes, f"No gene speaks for {short(chosen)} or against it."), ax, show)
    places, effects = np.arange(len(speaking)), speaking["effect"].to_numpy(float)
    axes.barh(places, effects, color=np.where(effects > 0, UP, DOWN), height=0.72)
    axes.set_yticks(places, shorten(speaking["gene"], 20), fontsize=8.5)
    axes.invert_yaxis()
    axes.axvline(0, color="#999999", linewidth=0.8)
    axes.set_xlabel("change of the type's log odds: blue speaks for it, red against it", fontsize=8.5)
    plain(axes, f"What tells {short(chosen, 26)}")
    return shown(axes, ax, show)
