"""Picture: time and memory of a training step against the genes of a cell, one line per method."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from grn.plots.style import INK, figure, plain

# Okabe and Ito's colours, which colour-blind readers can tell apart; ours is black, drawn last and thickest.
LINES = {
    "varlen": ("#56b4e9", "s", "softmax, FlashAttention-2 (varlen)"),
    "SDPA": ("#e69f00", "^", "softmax, torch's choice"),
    "SDPA cuDNN": ("#0072b2", "o", "softmax, cuDNN"),
    "flashsign": ("black", "D", "spherical, flashsign"),
}
PANELS = (("s_per_step", 1000.0, "milliseconds per step"), ("memory_gib", 1.0, "peak memory, GiB"))


def against_genes(table: pd.DataFrame) -> Figure:
    """table: the rows of one series (a model, a number of cells) -> two panels."""
    table = table[table["status"] == "ok"].sort_values("genes")
    one = table.iloc[0]
    picture = figure(10, 3.8)
    for panel, (column, unit, what) in zip(picture.subplots(1, len(PANELS)), PANELS, strict=True):
        for method, (colour, marker, label) in LINES.items():
            rows = table[table["method"] == method]
            if len(rows):
                width = 2.4 if method == "flashsign" else 1.4
                values = unit * rows[column]
                panel.plot(rows["genes"], values, color=colour, marker=marker, linewidth=width, label=label)
        panel.set_xlim(0)
        panel.set_ylim(0)
        panel.grid(color="#dddddd", linewidth=0.6)
        panel.set_xlabel("genes of a cell")
        plain(panel, what)
    handles, labels = picture.axes[0].get_legend_handles_labels()
    picture.legend(
        handles[::-1], labels[::-1], loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9
    )
    fused = "small operations compiled" if one["compiled"] else "nothing compiled"
    picture.suptitle(
        f"{one['device']}, {one['cells']} cells per step, {one['precision']}, {fused}", fontsize=9, color=INK
    )
    return picture
