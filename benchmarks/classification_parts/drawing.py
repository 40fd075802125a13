"""Pictures of how well methods tell cell types: against the share of labels, and against the depth of the cells."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from grn.plots.style import INK, figure, plain

# Okabe and Ito's colours, which colour-blind readers can tell apart; ours is black, larger and on top.
COLOURS = {
    "logistic regression": "#d55e00",
    "on 50 components": "#0072b2",
    "linear SVM": "#009e73",
    "random forest": "#cc79a7",
    "CellTypist": "#e69f00",
    "grn, not thinned": "#999999",
}
SCORES = {"accuracy": "Accuracy", "macro_f1": "Macro F1"}
APART = 0.08  # of the distance of two ticks: between the methods


def by_share(table: pd.DataFrame, along: str, *, ours: str, label: str, shares: Sequence[float]) -> Figure:
    """table: a row for each set, method, split and value of `along` -> a row of panels per score, a panel per set.

    along: the column with the shares, which are drawn at equal distances in the order given.   label: of that axis.
    Dots are means over the splits; a bar goes from each to the worst split.
    """
    sets = list(dict.fromkeys(table["set"]))
    # Ours last, so that it is on top; at the tick, with the peers beside it.
    methods = sorted(dict.fromkeys(table["method"]), key=lambda name: name == ours)
    peers = [method for method in methods if method != ours]
    places = sorted(sorted(range(-len(peers), len(peers) + 1), key=abs)[1 : len(peers) + 1])
    shifts = {ours: 0.0} | {method: APART * place for method, place in zip(peers, places, strict=True)}
    picture = figure(1.2 + 3.6 * len(sets), 6.4)
    panels = picture.subplots(len(SCORES), len(sets), sharex=True, squeeze=False)
    for panel, name in zip(panels[0], sets, strict=True):
        plain(panel, name)
    for (score, title), row in zip(SCORES.items(), panels, strict=True):
        for panel, name in zip(row, sets, strict=True):
            for method in methods:
                own = method == ours
                rows = table[(table["set"] == name) & (table["method"] == method)]
                found = rows.groupby(along)[score].agg(["mean", "min"]).reindex(shares)
                below = (found["mean"] - found["min"]).to_numpy()
                panel.errorbar(
                    np.arange(len(shares)) + shifts[method],
                    found["mean"].to_numpy(),
                    yerr=[below, np.zeros(len(shares))],
                    color="black" if own else COLOURS.get(method, INK),
                    marker="D" if own else "o",
                    markersize=6 if own else 4,
                    markeredgecolor="white" if own else None,
                    linewidth=2.0 if own else 1.1,
                    elinewidth=1.0,
                    label=method,
                    zorder=4 if own else 3,
                )
            panel.set_xticks(range(len(shares)), [f"{share:.0%}" for share in shares])
            panel.grid(axis="y", color="#dddddd", linewidth=0.6)
            plain(panel)
        row[0].set_ylabel(title)
    for panel in panels[-1]:
        panel.set_xlabel(label)
    handles, labels = panels[0][0].get_legend_handles_labels()
    picture.legend(
        handles[::-1], labels[::-1], loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9
    )
    return picture
