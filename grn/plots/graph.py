"""A network as nodes and edges: red arrows raise, blue bars lower."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch

from grn.evidence.q_values import SIGNIFICANT
from grn.plots.given import NetworkLike, edges_of, genes_of
from grn.plots.style import DOWN, INK, UP, canvas, note, short, shown, sign_legend

REGULATOR, TARGET = "#f3e3b3", "#eeeeee"
WIDTH, HEIGHT = 9.0, 6.2  # inches
LETTER, LINE = 0.083, 0.24  # inches: a letter's width and the height of a gene's box
STEPS, APART = 200, 300  # of the springs, and of pushing boxes apart


def network_graph(
    network: NetworkLike,
    genes: str | Sequence[str] | None = None,
    *,
    cell_type: str | None = None,
    edges: int = 30,
    certain: bool = True,
    ax: Axes | None = None,
    show: bool | None = None,
) -> Axes:
    """The edges that are certain, by q-value and then by |weight|; the stronger an edge, the
    thicker.

    network: a run, its network, or a table of edges.
    genes: a name or several, whose edges are drawn; None: any.
    cell_type: the network of this type; None: over all cells.
    edges: at most so many.
    certain: False: also those with a q-value above 0.05, dashed; of networks without q-values, the
        strongest are drawn.
    ax, show: as in grn.plots.
    Raises UserError.
    """
    table, whose, found = edges_of(network, cell_type)
    focus = [] if genes is None else genes_of(found, genes)
    if genes is not None:
        table = table[table["source"].isin(focus) | table["target"].isin(focus)]
    known = "q_value" in table
    if known and certain:
        table = table[table["q_value"] <= SIGNIFICANT]
    order = [-table["weight"].abs(), table["q_value"]] if known else [-table["weight"].abs()]
    table = table.iloc[np.lexsort(order)[:edges]]
    axes = canvas(ax, WIDTH, HEIGHT)
    if table.empty:
        none = (
            f"No edge is certain (q at most {SIGNIFICANT:g})"
            if known and certain
            else "The network has no edges"
        )
        return shown(note(axes, f"{none}: {short(whose)}."), ax, show)
    names = list(dict.fromkeys([*table["source"], *table["target"]]))
    place = dict(zip(names, _layout(names, table), strict=True))
    widest = float(table["weight"].abs().max())
    for edge in table[::-1].itertuples():  # the most certain on top
        raises, size = edge.weight > 0, abs(edge.weight) / widest
        axes.add_patch(
            FancyArrowPatch(
                place[edge.source],
                place[edge.target],
                arrowstyle="-|>" if raises else "|-|,widthA=0,widthB=0.28",
                mutation_scale=11,
                connectionstyle="arc3,rad=0.08",
                shrinkA=_to_border(edge.source, place[edge.target] - place[edge.source]),
                shrinkB=_to_border(edge.target, place[edge.source] - place[edge.target]) + 3,
                linewidth=0.8 + 2.2 * size,
                linestyle="-" if not known or edge.q_value <= SIGNIFICANT else (0, (3, 2)),
                color=UP if raises else DOWN,
                alpha=0.5 + 0.45 * size,
                zorder=1,
            )
        )
    regulators = set(table["source"])
    for name, (x, y) in place.items():
        bold = name in focus or (not focus and name in regulators)
        box: dict[str, Any] = {
            "boxstyle": "round,pad=0.3",
            "facecolor": REGULATOR if name in regulators else TARGET,
        }
        box |= {"edgecolor": INK if bold else "#bbbbbb", "linewidth": 0.9 if bold else 0.6}
        font: dict[str, Any] = {
            "fontsize": 9,
            "fontweight": "bold" if bold else "normal",
            "style": "italic",
        }
        axes.text(
            x, y, short(name, 12), ha="center", va="center", color=INK, zorder=3, bbox=box, **font
        )
    axes.set_xlim(-WIDTH / 2, WIDTH / 2)
    axes.set_ylim(-HEIGHT / 2, HEIGHT / 2)
    axes.set_axis_off()
    worst = float(table["q_value"].max()) if known else 0.0
    kind = (
        f"most certain edges, q at most {worst:.2g}"
        if known
        else "strongest edges, q-values are not known"
    )
    if worst > SIGNIFICANT:
        kind = f"edges of least q-value, at most {worst:.2g} (dashed: above {SIGNIFICANT:g})"
    first = "The" if genes is None else f"{', '.join(short(each, 14) for each in focus[:4])}: the"
    axes.set_title(f"{first} {len(table)} {kind}, {short(whose)}")
    axes.title.set(fontsize=11, fontweight="bold", color=INK)
    sign_legend(axes, found.signed, loc="upper center", bbox_to_anchor=(0.5, 0.0), fontsize=8.5)
    return shown(axes, ax, show)


def _to_border(name: str, direction: np.ndarray) -> float:
    """From the middle of a gene's box to its border in a direction, in points."""
    x, y = np.abs(direction) / max(float(np.hypot(*direction)), 1e-9)
    return 72 * float(min(_half_width(name) / max(x, 1e-9), LINE / 2 / max(y, 1e-9)))


def _half_width(name: str) -> float:
    return LETTER * len(short(name, 12)) / 2 + 0.08


def _layout(names: list[str], edges: pd.DataFrame) -> np.ndarray:
    """Places [n, 2] in inches from the middle: springs along the edges, then boxes pushed apart
    until none overlap, which networkx does not do: its nodes are points, and names are not.
    """
    import networkx

    size, frame = len(names), np.array([WIDTH, HEIGHT]) / 2
    half = np.array([[_half_width(name) + 0.05, LINE / 2 + 0.05] for name in names])
    graph = networkx.Graph()
    graph.add_nodes_from(names)
    graph.add_edges_from(zip(edges["source"], edges["target"], strict=True))
    # its gravity holds groups together
    placed = networkx.spring_layout(graph, method="energy", iterations=STEPS, seed=0)
    place = np.array([placed[name] for name in names]) * frame
    place -= (place.max(0) + place.min(0)) / 2
    place *= (frame - half.max(0)) / np.maximum(np.abs(place).max(0), 1e-9)
    order = np.arange(size)
    for _ in range(APART):
        apart = place[:, None] - place[None]
        overlap = half[:, None] + half[None] - np.abs(apart)
        touching = (overlap > 0).all(2) & ~np.eye(size, dtype=bool)
        if not touching.any():
            break
        along = np.argmin(overlap, 2)  # the shorter way out
        side = np.sign(apart + 1e-9 * (order[:, None] - order)[..., None])
        push = np.where(
            touching[..., None] & (np.arange(2) == along[..., None]), 0.5 * overlap * side, 0
        )
        place = np.clip(place + push.sum(1), half - frame, frame - half)
    return place
