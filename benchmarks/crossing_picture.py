"""Picture: microseconds of the stream and of moments against the number of genes, beside cuDNN's softmax."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from grn.plots.style import figure, plain

COLOURS = {32: "#e69f00", 64: "#0072b2", 128: "#111111"}
LINES = {"moments": "-", "stream": "--", "SDPA cuDNN": ":"}


def crossing(table: pd.DataFrame, softmax: pd.DataFrame) -> Figure:
    """table: crossing.csv. softmax: attention.csv, of which the rows of cuDNN in fp16 are drawn."""
    rows = table[(table["dtype"] == "float16") & (table["bags"] == 1)]
    peer = softmax[(softmax["method"] == "SDPA cuDNN") & (softmax["dtype"] == "fp16")]
    picture = figure(9, 4.4)
    for panel, direction in zip(picture.subplots(1, 2, sharey=True), ("forward", "both"), strict=True):
        here = rows[rows["direction"] == direction].sort_values("genes")
        for width, colour in COLOURS.items():
            own = here[here["width"] == width]
            for method in ("moments", "stream"):
                panel.plot(own["genes"], own[f"{method}_us"], LINES[method], color=colour, linewidth=1.8)
            softmax_rows = peer[(peer["direction"] == direction) & (peer["E"] == width)].sort_values("N")
            panel.plot(softmax_rows["N"], 1000 * softmax_rows["ms"], LINES["SDPA cuDNN"], color=colour, linewidth=1.4)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.xaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_major_formatter("{x:g}")
        panel.minorticks_off()
        panel.grid(color="#dddddd", linewidth=0.6)
        panel.set_xlabel("genes of a bag, 8 heads")
        panel.set_title({"forward": "forward", "both": "forward and backward"}[direction], fontsize=10)
        plain(panel)
    picture.axes[0].set_ylabel("microseconds (H200, 16-bit)")
    handles = [Line2D([], [], color="#555555", linestyle=style, label=name) for name, style in LINES.items()]
    handles += [Line2D([], [], color=colour, label=f"heads of {width}") for width, colour in COLOURS.items()]
    picture.legend(handles=handles, loc="outside right center", frameon=False, fontsize=9)
    return picture
