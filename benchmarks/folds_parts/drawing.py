"""Picture: time and extra memory of the losses by method, and where the MLP's fold breaks even over K / D."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from grn.plots.style import figure, plain

OURS, OTHERS = "#0072b2", "#b8b8b8"
LINES = {"flashsign": ("-", OURS), "torch, eager": ("--", "#111111"), "torch.compile": (":", "#e69f00")}


def bars_and_curves(table: pd.DataFrame) -> Figure:
    """table: folds.csv."""
    good = table[table["status"] == "ok"]
    picture = figure(11, 7)
    above, below = picture.subplots(2, 2)
    for panel, layer in zip(above, ("linear cross entropy", "two distributions"), strict=True):
        _bars(panel, good[good["layer"] == layer], layer)
    mlps = good[good["layer"] == "MLP"].assign(ratio=lambda rows: rows["items"] / rows["width"])
    for panel, column, title in zip(
        below, ("ms", "extra_mib"), ("MLP: milliseconds", "MLP: extra memory, MiB"), strict=True
    ):
        for method, (line, colour) in LINES.items():
            rows = mlps[(mlps["method"] == method) & (mlps[column] > 0)].sort_values("ratio")
            if rows.empty:
                continue
            panel.plot(rows["ratio"], rows[column], line, color=colour, marker="o", markersize=3, label=method)
        if not panel.lines:  # a CPU has no figures for memory
            continue
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.xaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_major_formatter("{x:g}")
        panel.minorticks_off()
        panel.set_xlabel("K / D, forward and backward")
        panel.set_title(title, fontsize=10)
        panel.grid(color="#dddddd", linewidth=0.6)
        panel.legend(frameon=False, fontsize=8)
        plain(panel)
    return picture


def _bars(panel: object, rows: pd.DataFrame, title: str) -> None:
    rows = rows.sort_values("ms", ascending=False)
    colours = [OURS if method == "flashsign" else OTHERS for method in rows["method"]]
    bars = panel.barh(rows["method"], rows["ms"], color=colours)
    share = [f"{ms:.1f} ms, {extra:,.0f} MiB" for ms, extra in zip(rows["ms"], rows["extra_mib"], strict=True)]
    panel.bar_label(bars, share, padding=3, fontsize=7)
    panel.set_xlim(0, 1.5 * rows["ms"].max() if len(rows) else 1)
    panel.set_title(f"{title}: forward and backward, extra memory", fontsize=10)
    panel.tick_params(labelsize=8)
    plain(panel)
