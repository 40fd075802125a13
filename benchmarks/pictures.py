"""Pictures of tables: a panel for each part of a table, a line for each method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from grn.plots.style import INK, plain

THICK, THIN = 2.4, 1.4


def looks(methods: pd.Series, colours: Mapping[Any, str], ours: str = "") -> dict[str, Any]:
    """Colours and order of the methods, ours in black and last, so that it is on top."""
    names = sorted(dict.fromkeys(methods), key=lambda name: name == ours)
    palette = {name: "black" if name == ours else colours.get(name, INK) for name in names}
    return {"hue": methods.name, "hue_order": names, "palette": palette}


def lines(
    table: pd.DataFrame, colours: Mapping[Any, str], *, x: str, y: str, ours: str, **facets: Any
) -> Figure:
    """A line for each value of `method`, that of ours thicker; both axes logarithmic.

    facets: of seaborn.relplot; panels have x of their own.
    """
    look = looks(table["method"], colours, ours)
    sizes = {name: THICK if name == ours else THIN for name in look["hue_order"]}
    grid = sns.relplot(
        table,
        x=x,
        y=y,
        size="method",
        sizes=sizes,
        kind="line",
        marker="o",
        height=3.4,
        **look,
        **facets,
    )
    finish(grid)
    return grid.figure


def finish(grid: sns.FacetGrid) -> None:
    """Logarithmic axes with plain numbers, and titles without the names of columns."""
    rows = "{row_var} = {row_name}: " if grid.row_names else ""
    grid.set_titles(rows + "{col_name}", row_template="{row_var} = {row_name}")
    for panel in grid.axes.flat:
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_major_formatter("{x:g}")
        panel.minorticks_off()
        panel.grid(color="#dddddd", linewidth=0.6)
        plain(panel)
    grid.tight_layout()
