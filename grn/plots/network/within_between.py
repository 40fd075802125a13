"""Edges by what they have between states of cells and within them: regulation and composition, told apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from grn.errors import UserError
from grn.networks.signed_network import SignedNetwork
from grn.plots.given import RunLike, as_edges
from grn.plots.names import name_edges
from grn.plots.style import canvas, draws, note, plain, shown
from grn.plots.tables import Bound, refuse_missing

if TYPE_CHECKING:
    from anndata import AnnData

NAMED = 10  # edges with their names beside them


@draws(count=Bound(1))
def within_and_between(
    edges: pd.DataFrame | SignedNetwork | AnnData | RunLike,
    count: int = 400,
    *,
    ax: Axes | None = None,
    show: bool | None = None,
) -> Axes:
    """One dot for each of the `count` strongest edges: its weight within states against its correlation between them.

    edges: a run, its network, or a table with source, target, weight, within, between and, if known, confidence.
    A network (run.network) tells the two apart where differences between states have no part in its weights.
    Darker dots are more confident. Edges on the horizontal line have nothing within states: composition alone may
    explain them. Where a dot is in a corner, both kinds of evidence agree; where their signs differ, states differ
    against what their own cells say.   ax, show: as in grn.plots.
    """
    table = as_edges(edges)
    if not isinstance(edges, pd.DataFrame) and "within" not in table:
        raise UserError(
            "The weights of this network count differences between states, too, so that those within states are not in "
            "it; give the run, or its table (run.edges)."
        )
    refuse_missing(table, ("within", "between"), "a table of edges (run.edges)")
    axes = canvas(ax, 6.4, 5.0)
    draw_within_between(axes, table, count)
    return shown(axes, ax, show)


def draw_within_between(axes: Axes, edges: pd.DataFrame, count: int) -> None:
    shown = edges[edges["within"].notna() & edges["between"].notna()].head(count)
    if shown.empty or not (shown["between"] != 0).any():
        note(axes, "The cells have one state, so nothing is between states.")
        return
    confidence = shown["confidence"].fillna(0.5).to_numpy() if "confidence" in shown else np.ones(len(shown))
    order = np.argsort(confidence, kind="stable")  # the most confident on top
    axes.axhline(0, color="#bbbbbb", linewidth=0.8, zorder=1)
    axes.axvline(0, color="#bbbbbb", linewidth=0.8, zorder=1)
    dots = axes.scatter(
        shown["between"].to_numpy()[order],
        shown["within"].to_numpy()[order],
        c=confidence[order],
        cmap="viridis_r",
        vmin=0.5,
        vmax=1.0,
        s=20,
        edgecolors="white",
        linewidths=0.3,
        zorder=2,
    )
    axes.set_xlim(-1.08, 1.08)
    height = 1.15 * float(shown["within"].abs().max()) or 1.0
    axes.set_ylim(-height, height)
    name_some(axes, shown, height)
    axes.set_xlabel("between: correlation of the states' levels")
    axes.set_ylabel("within: weight of differences between cells of one state")
    plain(axes, "Edges within states and between them")
    bar = axes.figure.colorbar(dots, ax=axes, shrink=0.6, aspect=18, pad=0.02)
    bar.set_label("confidence that the sign is right", fontsize=9)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8)


def name_some(axes: Axes, edges: pd.DataFrame, height: float) -> None:
    """Names of the strongest edges within states, and of the strongest that have nothing there; none over another."""
    half = NAMED // 2
    strongest = edges.reindex(edges["within"].abs().sort_values(ascending=False, kind="stable").index).head(half)
    only_between = edges[edges["within"].abs() < 0.05 * height].head(half)
    chosen = pd.concat([strongest, only_between]).drop_duplicates(["source", "target"])
    names = chosen[["between", "within", "source", "target"]].itertuples(index=False)
    name_edges(axes, names, apart=(0.45, 0.055 * height), turn=0.0)
