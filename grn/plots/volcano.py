"""Dots: the genes that a perturbation changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from grn.plots.given import columns_of
from grn.plots.style import DOWN, INK, UP, canvas, note, plain, short, shown

if TYPE_CHECKING:
    from anndata import AnnData

MOST = 20.0  # agreement beyond which dots are drawn at the edge
CERTAIN = 2.0  # sds of the members from which on a change is coloured
SMALL = 0.05  # sds of the gene


def perturbation_volcano(
    cells: AnnData | pd.DataFrame,
    *,
    named: int = 14,
    ax: Axes | None = None,
    show: bool | None = None,
) -> Axes:
    """Each gene as a dot: its change in sds of the gene to the right, |change| in sds over the
    members upwards.

    Red genes rise and blue ones fall; grey: less than two sds over the members, or less than 0.05
    sds of the gene. Upwards is no p-value: members were trained on nearly the same cells. Of genes
    with a certain edge from a perturbed regulator, sds are standard errors.
    cells: what grn.perturb returns, or the table that grn perturb writes.
    named: how many of the largest changes have their names.
    ax, show: as in grn.plots.
    Raises UserError.
    """
    table = cells if isinstance(cells, pd.DataFrame) else cells.var
    if "grn_effect" in table:
        columns = {
            name.removeprefix("grn_"): table[name] for name in table if str(name).startswith("grn_")
        }
        table = pd.DataFrame(columns).assign(gene=table.index.astype(str))
    wanted = "what grn.perturb returns, or the table of grn perturb"
    table = columns_of(
        table, wanted, texts=("gene",), numbers=("effect", "perturbed"), gaps=("sd",)
    )
    table = table[table["perturbed"] == 0]
    axes = canvas(ax, 6.2, 4.8)
    if table.empty or not (table["effect"] != 0).any():
        return shown(note(axes, "The perturbation changes no gene."), ax, show)
    effect, sd = table["effect"].to_numpy(float), table["sd"].to_numpy(float)
    agreement = np.divide(np.abs(effect), sd, out=np.zeros(len(effect)), where=sd > 0)
    height = np.minimum(agreement, MOST)
    certain = (agreement >= CERTAIN) & (np.abs(effect) >= SMALL)
    colours = np.where(certain, np.where(effect > 0, UP, DOWN), "#c4c4c4")
    axes.scatter(
        effect,
        height,
        s=np.where(certain, 20, 9),
        c=colours,
        edgecolors="white",
        linewidths=0.3,
        zorder=2,
    )
    axes.axhline(CERTAIN, color="#bbbbbb", linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
    axes.axvline(0, color="#bbbbbb", linewidth=0.8, zorder=1)
    limit = 1.25 * float(np.abs(effect).max())
    top = 1.12 * max(float(height.max()), CERTAIN)
    taken: list[tuple[float, float]] = []
    for place in np.argsort(-np.abs(effect) * certain, kind="stable")[:named]:
        x, y = effect[place], np.sqrt(height[place] * top)
        if not certain[place] or any(
            abs(x - a) < 0.16 * limit and abs(y - b) < 0.028 * top for a, b in taken
        ):
            continue
        taken.append((x, y))
        side: dict[str, Any] = {
            "xytext": (5 if x > 0 else -5, 0),
            "ha": "left" if x > 0 else "right",
            "va": "center",
        }
        look: dict[str, Any] = {
            "textcoords": "offset points",
            "fontsize": 8,
            "fontstyle": "italic",
            "color": INK,
        }
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
    title = str(
        getattr(cells, "uns", {}).get("grn_perturb", {}).get("perturbation", "perturbation")
    )
    plain(axes, short(f"{title[:1].upper()}{title[1:]}: genes that change", 60))
    return shown(axes, ax, show)
