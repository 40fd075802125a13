"""Bars: the genes that speak for a cell type and against it."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from grn.plots.given import columns_of, only_type
from grn.plots.style import DOWN, UP, canvas, note, plain, short, shorten, shown
from grn.runtime.errors import check_known


def cell_type_genes(
    table: pd.DataFrame,
    cell_type: str | None = None,
    *,
    top: int = 10,
    ax: Axes | None = None,
    show: bool | None = None,
) -> Axes:
    """The `top` genes that speak for a cell type most, and as many that speak against it, and how
    much they do.

    table: of `grn.explain`.
    cell_type: which of its types; None: its only one.
    ax, show: as in grn.plots.
    Raises UserError for another table, a type that it does not have, and several types without a
    choice.
    """
    wanted = "the table that grn.explain returns"
    table = columns_of(table, wanted, texts=("cell_type", "gene"), numbers=("effect",))
    types = table["cell_type"].unique()
    chosen = only_type(types) if cell_type is None else cell_type
    check_known(chosen, types, "The table", "cell type")
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
    axes.set_xlabel(
        "change of the type's log odds: red speaks for it, blue against it", fontsize=8.5
    )
    plain(axes, f"What tells {short(chosen, 26)}")
    return shown(axes, ax, show)
