"""The network around chosen genes, as nodes and edges: blue arrows raise, red bars lower."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch

from grn.networks.signed_network import edge_list
from grn.plots.given import NetworkLike, as_network, genes_of, weights_of
from grn.plots.style import DOWN, INK, UP, canvas, note, short, shown, sign_legend

CROWDED = 20  # genes on the circle, from which on every other one stands further inside
REGULATOR, TARGET = "#f3e3b3", "#eeeeee"


def network_graph(
    network: NetworkLike,
    genes: str | Sequence[str] | None = None,
    *,
    cell_type: str | None = None,
    edges: int = 12,
    ax: Axes | None = None,
    show: bool | None = None,
) -> Axes:
    """The strongest edges into and out of some genes; the stronger an edge, the thicker.

    network: a run, its network, or a table of edges.   genes: a name or several; None: the three regulators with the
    strongest edges.   cell_type: the network of this type; None: over all cells.   edges: of each gene, at most.
    ax, show: as in grn.plots. Raises UserError.
    """
    found = as_network(network)
    weights, whose = weights_of(found, cell_type)
    every = edge_list(weights, found.genes)
    chosen = list(dict.fromkeys(every["source"]))[:3] if genes is None else genes_of(found, genes)
    around = [every[(every["source"] == gene) | (every["target"] == gene)].head(edges) for gene in chosen]
    table = pd.concat([every.head(0), *around]).drop_duplicates(["source", "target"])
    drawn = pd.unique(table[["source", "target"]].to_numpy().ravel())
    # Letters keep their size: between more genes, arrows need the room to pass beside names.
    axes = canvas(ax, *((9.0, 8.0) if len(drawn) > CROWDED else (6.4, 5.6)))
    if table.empty:
        whom = ", ".join(map(short, chosen)) or "any gene"
        return shown(note(axes, f"The network has no edges of {whom}."), ax, show)
    names = list(dict.fromkeys([*chosen, *table["source"], *table["target"]]))
    names = [name for name in names if name in set(table["source"]) | set(table["target"])]
    place = dict(zip(names, _layout(names, table, chosen), strict=True))
    widest = float(table["weight"].abs().max())
    for edge in table[::-1].itertuples():  # the strongest on top
        raises = edge.weight > 0
        axes.add_patch(
            FancyArrowPatch(
                place[edge.source],
                place[edge.target],
                arrowstyle="-|>" if raises else "|-|,widthA=0,widthB=0.28",
                mutation_scale=11,
                connectionstyle="arc3,rad=0.12",
                shrinkA=15,
                shrinkB=_half_box(edge.target, place[edge.source] - place[edge.target]) + 4,
                linewidth=0.7 + 2.6 * abs(edge.weight) / widest,
                color=UP if raises else DOWN,
                alpha=0.45 + 0.5 * abs(edge.weight) / widest,
                zorder=1,
            )
        )
    regulators = set(table["source"])
    for name, (x, y) in place.items():
        focus = name in chosen
        font: dict[str, Any] = {"fontsize": 10 if focus else 8.5, "fontweight": "bold" if focus else "normal"}
        box: dict[str, Any] = {"boxstyle": "round,pad=0.35", "facecolor": REGULATOR if name in regulators else TARGET}
        box |= {"edgecolor": INK if focus else "#bbbbbb", "linewidth": 1.2 if focus else 0.6}
        axes.text(
            x, y, short(name, 12), ha="center", va="center", color=INK, zorder=3, bbox=box, style="italic", **font
        )
    axes.set_xlim(-1.18, 1.18)
    axes.set_ylim(-1.12, 1.12)
    axes.set_axis_off()
    title = f"Network around {', '.join(short(gene, 14) for gene in chosen[:4])}"
    axes.set_title(f"{title}: {short(whose)}", fontsize=11, fontweight="bold")
    sign_legend(axes, found.signed, loc="upper center", bbox_to_anchor=(0.5, -0.02), fontsize=8.5)
    return shown(axes, ax, show)


def _half_box(name: str, direction: np.ndarray) -> float:
    """From the middle of a gene's box to its edge in a direction, in points, for letters of 8.5 points."""
    x, y = np.abs(direction) / max(float(np.hypot(*direction)), 1e-9)
    return float(min((2.9 * len(short(name, 12)) + 4) / max(x, 1e-9), 9 / max(y, 1e-9)))


def _layout(names: list[str], edges: pd.DataFrame, chosen: list[str]) -> np.ndarray:
    """Positions in [-1, 1]^2. One chosen gene stands in the middle; several on a circle, each with an arc outside of it
    for the genes that it alone is linked with, while genes of several stand between these."""
    focus = [name for name in names if name in chosen]
    at = [2 * np.pi * number / len(focus) + np.pi / 2 for number in range(len(focus))]
    radius = 0.0 if len(focus) == 1 else 0.42
    place = {name: radius * np.array([np.cos(a), np.sin(a)]) for name, a in zip(focus, at, strict=True)}
    linked: dict[str, list[str]] = {name: [] for name in names if name not in chosen}
    for one, other in zip(edges["source"], edges["target"], strict=True):
        for gene, of in ((one, other), (other, one)):
            if gene in linked and of in chosen and of not in linked[gene]:
                linked[gene].append(of)
    weights = [*zip(edges["source"], edges["weight"], strict=True), *zip(edges["target"], edges["weight"], strict=True)]
    of_gene = dict(weights[::-1])
    share = 2 * np.pi / len(focus)
    for name, middle in zip(focus, at, strict=True):
        alone = sorted((gene for gene, of in linked.items() if of == [name]), key=lambda gene: -of_gene[gene])
        used = share * (1 if len(focus) == 1 else 0.92)
        for number, gene in enumerate(alone):
            angle = middle + used * ((number + 0.5) / len(alone) - 0.5)
            near = 0.84 if number % 2 and len(focus) * len(alone) > CROWDED else 1.0  # names are wider than high
            place[gene] = near * np.array([np.cos(angle), np.sin(angle)])
    together: dict[tuple[str, ...], list[str]] = {}
    for gene, of in linked.items():
        if len(of) > 1:
            together.setdefault(tuple(sorted(of, key=focus.index)), []).append(gene)
    for of, genes in together.items():
        middle_of = np.mean([place[name] for name in of], axis=0)
        for number, gene in enumerate(genes):
            place[gene] = middle_of + np.array([0.0, 0.13 * (number - (len(genes) - 1) / 2)])
    return np.array([place[name] for name in names])
