"""Times, rates and memory against the number of genes, as one picture."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from grn.plots.style import INK, figure, note, plain

# Okabe and Ito's colours, which colour-blind readers can tell apart; ours is black, drawn last and thickest.
LINES = {
    "spherical torch eager": ("#d55e00", "v"),
    "spherical torch.compile": ("#e69f00", "^"),
    "SDPA FlashAttention-2": ("#56b4e9", "s"),
    "SDPA cuDNN": ("#0072b2", "o"),
    "flashsign moments": ("#009e73", "P"),
    "flashsign stream": ("black", "D"),
}
OURS = "flashsign stream"
CEILING = "matrix product, 8192 x 8192"
HOLLOW = "hollow: N = 8191"
TICKS = (2048, 4096, 8192, 16384, 32768)
PANELS = (
    ("milliseconds", ("both", "forward")),
    ("TFLOP/s", ("forward",)),
    ("TFLOP/s", ("both", "backward")),
    ("extra memory, GiB", ("both", "forward")),
)
TITLES = {"forward": "forward", "backward": "backward", "both": "forward + backward"}


def curves(table: pd.DataFrame) -> Figure:
    """table: the benchmark's CSV -> a row of panels for each width: times, rates forward and of both, and memory.

    One dtype, the first of the table. Sizes that 16 does not divide are hollow marks beside the lines of rates. The
    dashed line is the rate of a matrix product of that dtype in the same run.
    """
    dtype = table["dtype"].iloc[0]
    table = table[(table["dtype"] == dtype) & (table["status"] == "ok")]
    widths = sorted(table["E"].unique())
    picture = figure(15, 0.7 + 3.0 * max(len(widths), 1))
    grid = picture.subplots(len(widths), len(PANELS), squeeze=False, sharex=True)
    for axes, width in zip(grid, widths, strict=True):
        for panel, (what, directions) in zip(axes, PANELS, strict=True):
            rows = table[table["E"] == width]
            direction = next((name for name in directions if (rows["direction"] == name).any()), directions[0])
            rows = rows[rows["direction"] == direction]
            plain(panel, f"{TITLES[direction]}, E = {width}, {dtype}")
            {"milliseconds": _time, "TFLOP/s": _rate}.get(what, _memory)(panel, rows)
            panel.set_ylabel(what)
    for panel in grid[-1]:
        panel.set_xlabel("genes of a cell, N")
    handles = {
        label: handle for axes in grid.flat for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    order = [name for name in [*LINES, CEILING, HOLLOW] if name in handles]
    picture.legend(
        [handles[name] for name in order], order, loc="outside lower center", ncols=min(len(order), 4), frameon=False
    )
    return picture


def _rate(panel: Axes, rows: pd.DataFrame) -> None:
    if rows.empty:
        note(panel, "not measured")
        return
    # Moments do far less than the nominal work: their rates would leave this scale.
    rows = rows[rows["method"] != "flashsign moments"]
    _lines(panel, rows, "tflops", 1)
    ceiling = rows["matmul_tflops"].max()
    panel.axhline(ceiling, color=INK, linewidth=1, linestyle="--", label=CEILING)
    panel.set_ylim(0, 1.08 * max(ceiling, rows["tflops"].max()))


def _time(panel: Axes, rows: pd.DataFrame) -> None:
    if rows.empty:
        note(panel, "not measured")
        return
    _lines(panel, rows, "ms", 1)
    _logarithmic(panel)


def _memory(panel: Axes, rows: pd.DataFrame) -> None:
    if rows["memory_mib"].isna().all():
        note(panel, "memory is measured on a GPU")
        return
    _lines(panel, rows, "memory_mib", 1 / 1024)
    _logarithmic(panel)


def _logarithmic(panel: Axes) -> None:
    panel.set_yscale("log")
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _lines(panel: Axes, rows: pd.DataFrame, column: str, unit: float) -> None:
    for name, (colour, marker) in LINES.items():
        own = rows[rows["method"] == name].sort_values("N")
        even, odd = own[own["N"] % 16 == 0], own[own["N"] % 16 != 0]
        style = {"color": colour, "marker": marker, "markersize": 6 if name == OURS else 5}
        if len(even):
            panel.plot(even["N"], unit * even[column], linewidth=2.2 if name == OURS else 1.5, label=name, **style)
        if len(odd) and column == "tflops":
            style |= {"markerfacecolor": "white", "linestyle": "none", "zorder": 4}
            panel.plot(odd["N"], unit * odd[column], label=HOLLOW, **style)
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_locator(FixedLocator(TICKS))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.grid(color="#e5e5e5", linewidth=0.6)
    panel.set_axisbelow(True)
