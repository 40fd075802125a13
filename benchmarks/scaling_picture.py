"""Picture: CPU seconds against genes and against cells, one line per method."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from networks_picture import COLOURS

from grn.plots.style import INK, figure, plain

LEAST_S = 1e-3  # times are recorded in milliseconds


def lines(table: pd.DataFrame, *, ours: str, cells: int, genes: int) -> Figure:
    """table: method, genes, cells, cpu_seconds -> two panels, both axes logarithmic.

    The left panel has the rows with `cells` cells, the right one those with `genes` genes. A line ends at the largest
    size of its method.
    """
    picture = figure(9, 4.4)
    panels = picture.subplots(1, 2, sharey=True)
    along = (("genes", "cells", cells), ("cells", "genes", genes))
    for panel, (grows, stays, number) in zip(panels, along, strict=True):
        for method in sorted(dict.fromkeys(table["method"]), key=lambda name: name == ours):
            rows = table[(table["method"] == method) & (table[stays] == number)].sort_values(grows)
            own = method == ours
            panel.plot(
                *(rows[grows], rows["cpu_seconds"].clip(lower=LEAST_S)),
                color="black" if own else COLOURS.get(method, INK),
                marker="D" if own else "o",
                markersize=6 if own else 4,
                linewidth=2.4 if own else 1.4,
                label=method.replace("_", " "),
            )
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xticks(sorted(table.loc[table[stays] == number, grows].unique()))
        panel.xaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_major_formatter("{x:g}")
        panel.minorticks_off()
        panel.grid(color="#dddddd", linewidth=0.6)
        panel.set_xlabel(f"{grows} (at {number} {stays})")
        plain(panel)
    panels[0].set_ylabel("CPU seconds, one thread")
    handles, labels = panels[0].get_legend_handles_labels()
    picture.legend(handles[::-1], labels[::-1], loc="outside right center", frameon=False, fontsize=9)
    return picture
