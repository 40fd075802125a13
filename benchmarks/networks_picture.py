"""Picture: the scores of all methods on all sets."""

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
    """table: a row for each set and method, with the metrics of PANELS -> one panel per metric, one line per set.

    The dotted line is chance; bars are one standard deviation over the seeds. Ratios are on a logarithmic scale. In the
    panel of signs a grey tick is the fraction of the more frequent sign; sets without known signs are empty there.
    """
    sets = list(dict.fromkeys(table["set"]))
    methods = list(dict.fromkeys(table["method"]))
    height = {name: -index for index, name in enumerate(sets)}
    picture = figure(12, 1.6 + 0.34 * len(sets))
    panels = picture.subplots(1, len(PANELS), sharey=True, squeeze=False)[0]
    peers = [method for method in methods if method != ours]
    # Each peer is drawn a little above or below the line of its set, so that equal scores stay apart.
    shifts = dict(zip(peers, np.linspace(0.22, -0.22, len(peers)), strict=True)) if len(peers) > 1 else {}
    for panel, (metric, (title, chance)) in zip(panels, PANELS.items(), strict=True):
        panel.axvline(chance, color=INK, linewidth=0.8, linestyle=":")
        for method in [*peers, *(name for name in methods if name == ours)]:
            rows = table[table["method"] == method]
            heights = rows["set"].map(height) + shifts.get(method, 0)
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
            heights = majority["set"].map(height)
            label = "all signs alike"
            panel.scatter(majority["sign_majority"], heights, s=120, marker="|", color="#999999", label=label)
        else:
            panel.set_xscale("log", base=2)
            panel.xaxis.set_major_formatter("{x:g}")
        panel.grid(axis="y", color="#dddddd", linewidth=0.6)
    panels[0].set_yticks(list(height.values()), [name.replace("_", " ") for name in sets])
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
