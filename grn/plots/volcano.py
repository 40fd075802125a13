"""Dots: edges in two conditions, and the genes that a perturbation changes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from grn.networks.evidence.false_discovery import SIGNIFICANT
from grn.plots.given import columns_of, only_type
from grn.plots.style import DOWN, INK, LINES, UP, canvas, note, plain, short, shown

if TYPE_CHECKING:
    from anndata import AnnData

REST = "#c4c4c4"


def network_difference(
    table: pd.DataFrame, *, named: int = 12, ax: Axes | None = None, show: bool | None = None
) -> Axes:
    """Each edge as a dot, its slope in one condition to the right and in the other upwards: equal ones on the diagonal.

    table: `grn.compare(...).edges`, in all types together or in one. Edges that differ at a q-value of at most 0.05 are
    coloured.   named: how many of these have their names beside them.   ax, show: as in grn.plots. Raises UserError.
    """
    wanted = "the edges that grn.compare returns"
    names = [str(name) for name in getattr(table, "columns", ()) if str(name).startswith("weight_")][:2]
    edges = columns_of(table, wanted, texts=("source", "target"), numbers=tuple(names), gaps=("effect", "q_value"))
    types = edges["cell_type"].astype(str) if "cell_type" in edges else pd.Series("all", index=edges.index)
    edges = edges[types == ("all" if (types == "all").any() or types.empty else only_type(types.unique()))]
    axes = canvas(ax, 5.6, 5.4)
    if edges.empty:
        return shown(note(axes, "No edges were compared."), ax, show)
    x, y = (edges[name].to_numpy() for name in names)
    first, second = (name.removeprefix("weight_") for name in names)
    limit = 1.12 * max(float(np.abs([x, y]).max()), 1e-9)
    for line in (axes.axhline, axes.axvline):
        line(0, color="#dddddd", linewidth=0.8, zorder=0)
    axes.plot([-limit, limit], [-limit, limit], color="#bbbbbb", linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    differ = (edges["q_value"] <= SIGNIFICANT).to_numpy()
    axes.scatter(x[~differ], y[~differ], s=7, color=REST, linewidths=0, zorder=2, rasterized=len(edges) > 5000)
    for chosen, colour, name in ((np.abs(y) >= np.abs(x), LINES[1], second), (np.abs(y) < np.abs(x), LINES[0], first)):
        if (chosen := chosen & differ).any():
            label = f"stronger in {short(name, 20)}"
            look: dict[str, Any] = {"s": 22, "color": colour, "edgecolors": "white", "linewidths": 0.4, "zorder": 3}
            axes.scatter(x[chosen], y[chosen], label=label, **look)
    certain = edges[differ].sort_values("q_value", kind="stable").head(named)[[*names, "source", "target"]]
    name_edges(axes, certain.itertuples(index=False), apart=(0.32 * limit, 0.06 * limit), turn=0.45 * limit)
    axes.set_xlim(-limit, limit)
    axes.set_ylim(-limit, limit)
    axes.set_aspect("equal")
    axes.set_xlabel(f"slope in {short(first)}")
    axes.set_ylabel(f"slope in {short(second)}")
    if differ.any():
        axes.legend(frameon=False, fontsize=8.5, loc="upper left")
    plain(axes, f"Edges that differ: {int(differ.sum())} of {len(edges)}, q at most {SIGNIFICANT:g}")
    return shown(axes, ax, show)


def name_edges(
    axes: Axes, edges: Iterable[tuple[float, float, str, str]], *, apart: tuple[float, float], turn: float
) -> None:
    """Writes "source → target" beside each dot, left of it where its x is above `turn`; none over an earlier one.

    edges: x, y, source and target of each, the most important first.   apart: how far two names must be from each other
    in x or in y, in units of the axes.
    """
    taken: list[tuple[float, float]] = []
    for x, y, source, target in edges:
        if any(abs(x - other_x) < apart[0] and abs(y - other_y) < apart[1] for other_x, other_y in taken):
            continue
        taken.append((x, y))
        left = x > turn
        look: dict[str, Any] = {"xytext": (-6 if left else 6, 0), "ha": "right" if left else "left", "zorder": 4}
        look |= {"textcoords": "offset points", "va": "center", "fontsize": 7.5, "fontstyle": "italic", "color": INK}
        axes.annotate(
            f"{short(source, 10)} → {short(target, 10)}",
            (x, y),
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.5},
            **look,
        )


MOST = 20.0  # agreement beyond which dots are drawn at the edge
CERTAIN = 2.0  # sds of the members from which on a change is coloured
SMALL = 0.05  # sds of the gene


def perturbation_volcano(
    cells: AnnData | pd.DataFrame, *, named: int = 14, ax: Axes | None = None, show: bool | None = None
) -> Axes:
    """Each gene as a dot: its change in sds of the gene to the right, |change| in sds over the members upwards.

    Blue genes rise and red ones fall; grey: less than two sds over the members, or less than 0.05 sds of the gene.
    Upwards is no p-value: members were trained on nearly the same cells.
    cells: what grn.perturb returns, or the table that grn perturb writes.   named: how many of the largest changes have
    their names.   ax, show: as in grn.plots. Raises UserError.
    """
    table = cells if isinstance(cells, pd.DataFrame) else cells.var
    if "grn_effect" in table:
        columns = {name.removeprefix("grn_"): table[name] for name in table if str(name).startswith("grn_")}
        table = pd.DataFrame(columns).assign(gene=table.index.astype(str))
    wanted = "what grn.perturb returns, or the table of grn perturb"
    table = columns_of(table, wanted, texts=("gene",), numbers=("effect", "perturbed"), gaps=("sd",))
    table = table[table["perturbed"] == 0]
    axes = canvas(ax, 6.2, 4.8)
    if table.empty or not (table["effect"] != 0).any():
        return shown(note(axes, "The perturbation changes no gene."), ax, show)
    effect, sd = table["effect"].to_numpy(float), table["sd"].to_numpy(float)
    agreement = np.divide(np.abs(effect), sd, out=np.zeros(len(effect)), where=sd > 0)
    height = np.minimum(agreement, MOST)
    certain = (agreement >= CERTAIN) & (np.abs(effect) >= SMALL)
    colours = np.where(certain, np.where(effect > 0, UP, DOWN), "#c4c4c4")
    axes.scatter(effect, height, s=np.where(certain, 20, 9), c=colours, edgecolors="white", linewidths=0.3, zorder=2)
    axes.axhline(CERTAIN, color="#bbbbbb", linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
    axes.axvline(0, color="#bbbbbb", linewidth=0.8, zorder=1)
    limit = 1.25 * float(np.abs(effect).max())
    top = 1.12 * max(float(height.max()), CERTAIN)
    taken: list[tuple[float, float]] = []
    for place in np.argsort(-np.abs(effect) * certain, kind="stable")[:named]:
        x, y = effect[place], np.sqrt(height[place] * top)
        if not certain[place] or any(abs(x - a) < 0.16 * limit and abs(y - b) < 0.028 * top for a, b in taken):
            continue
        taken.append((x, y))
        side: dict[str, Any] = {"xytext": (5 if x > 0 else -5, 0), "ha": "left" if x > 0 else "right", "va": "center"}
        look: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8, "fontstyle": "italic", "color": INK}
        axes.annotate(short(table["gene"].iloc[place], 14), (x, height[place]), **side, **look)
    axes.set_xlim(-limit, limit)
    axes.set_yscale("function", functions=(np.sqrt, np.square))  # most genes are near the floor
    axes.set_ylim(0, top)
    axes.set_yticks([0, 1, 2, 5, 10, MOST], ["0", "1", "2", "5", "10", "20 or more"])
    axes.set_xlabel("expected change, in sds of the gene")
    axes.set_ylabel("agreement: |change| in sds over the members")
    rise, fall = (int((certain & chosen).sum()) for chosen in (effect > 0, effect < 0))
    axes.text(0.99, 0.01, f"{rise} rise", ha="right", color=UP, transform=axes.transAxes)
    axes.text(0.01, 0.01, f"{fall} fall", ha="left", color=DOWN, transform=axes.transAxes)
    title = str(getattr(cells, "uns", {}).get("grn_perturb", {}).get("perturbation", "perturbation"))
    plain(axes, short(f"{title[:1].upper()}{title[1:]}: genes that change", 60))
    return shown(axes, ax, show)
