"""All methods on all sets in one picture."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from grn.plots.style import INK, figure, plain

# Okabe and Ito's colours, which colour-blind readers can tell apart; ours is black, larger and on top.
COLOURS = {
    "pearson": "#56b4e9",
    "spearman": "#0072b2",
    "ridge": "#d55e00",
    "partial_correlation": "#e69f00",
    "grnboost2": "#009e73",
    "genie3": "#cc79a7",
    "regdiffusion": "#999999",
}
PANELS = {
    "auprc_ratio": ("AUPRC / that of chance", 1.0),
    "early_precision_ratio": ("Early precision / that of chance", 1.0),
    "sign_accuracy": ("Sign accuracy", 0.5),
}


def dots(table: pd.DataFrame, *, ours: str) -> Figure:
    """table: a row a set and method with the metrics of PANELS -> sets down the side, a panel a metric.

    The dotted line is chance; bars are one standard deviation over the seeds. Ratios are on a logarithmic scale. Among
    the signs, a grey tick is the share of the set's more frequent sign; sets without known signs have nothing there.
    """
    sets = list(dict.fromkeys(table["set"]))
    methods = list(dict.fromkeys(table["method"]))
    place = {name: -index for index, name in enumerate(sets)}
    picture = figure(12, 1.6 + 0.34 * len(sets))
    panels = picture.subplots(1, len(PANELS), sharey=True, squeeze=False)[0]
    peers = [method for method in methods if method != ours]
    # Each peer a little above or below the line of its set, so that equal ones stay apart.
    shifts = dict(zip(peers, np.linspace(0.22, -0.22, len(peers)), strict=True)) if len(peers) > 1 else {}
    for panel, (metric, (title, chance)) in zip(panels, PANELS.items(), strict=True):
        panel.axvline(chance, color=INK, linewidth=0.8, linestyle=":")
        for method in [*peers, *(name for name in methods if name == ours)]:
            rows = table[table["method"] == method]
            heights = rows["set"].map(place) + shifts.get(method, 0)
            if method == ours:
                panel.errorbar(
                    *(rows[metric], heights),
                    xerr=rows[f"{metric}_sd"].fillna(0),
                    fmt="D",
                    color="black",
                    markersize=7,
                    markeredgecolor="white",
                    zorder=4,
                    label=method,
                )
            else:
                panel.scatter(rows[metric], heights, s=26, color=COLOURS.get(method, INK), zorder=3, label=method)
        plain(panel, title)
        if metric == "sign_accuracy":
            majority = table.drop_duplicates("set")
            heights = majority["set"].map(place)
            label = "all signs alike"
            panel.scatter(majority["sign_majority"], heights, s=120, marker="|", color="#999999", label=label)
        else:
            panel.set_xscale("log", base=2)
            panel.xaxis.set_major_formatter("{x:g}")
        panel.grid(axis="y", color="#dddddd", linewidth=0.6)
    panels[0].set_yticks(list(place.values()), [name.replace("_", " ") for name in sets])
    found = (panel.get_legend_handles_labels() for panel in panels)
    named = {label: handle for handles, labels in found for handle, label in zip(handles, labels, strict=True)}
    labels, handles = list(named), list(named.values())
    order = sorted(range(len(labels)), key=lambda index: labels[index] != ours)
    picture.legend(
        [handles[index] for index in order],
        [labels[index].replace("_", " ") for index in order],
        loc="outside lower center",
        ncols=len(labels),
        frameon=False,
        fontsize=9,
    )
    return picture
