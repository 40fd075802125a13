"""How good a model is: during training, in its test cells, and as precision against recall of
networks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from grn.plots.given import columns_of
from grn.plots.style import (
    INK,
    LINES,
    SHARE,
    canvas,
    colour_bar,
    note,
    nothing,
    panels,
    plain,
    short,
    shorten,
    shown,
    whole,
)

STYLES = ("-", "--", ":", "-.")  # of curves that share a colour


def confusion_matrix(
    confusion: pd.DataFrame, *, ax: Axes | None = None, show: bool | None = None
) -> Axes:
    """Rows: true cell types, columns: predicted ones. Colour: share of the row; number: cells.

    confusion: numbers of cells, with the cell types as index and columns (run.confusion).
    ax, show: as in grn.plots.
    """
    side = max(4.5, 0.48 * len(confusion) + 2.6)
    axes = canvas(ax, side + 0.6, side)
    counts = confusion.to_numpy()
    if not counts.sum():
        return shown(note(axes, "There are no labelled test cells."), ax, show)
    total = counts.sum(axis=1, keepdims=True)
    share = counts / np.where(total > 0, total, 1)
    colours = matplotlib.colormaps[SHARE]
    image = axes.imshow(share, cmap=colours, vmin=0, vmax=1)
    ticks = range(len(confusion))
    axes.set_xticks(
        ticks, shorten(confusion.columns), rotation=45, ha="right", rotation_mode="anchor"
    )
    axes.set_yticks(ticks, shorten(confusion.index))
    size = 9 if len(confusion) <= 20 else 6
    axes.tick_params(labelsize=size)
    for row, column in zip(*counts.nonzero(), strict=True):
        red, green, blue, _ = colours(share[row, column])
        # what is read more easily
        ink = "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.55 else "black"
        axes.text(
            column,
            row,
            f"{counts[row, column]:g}",
            ha="center",
            va="center",
            fontsize=size,
            color=ink,
        )
    axes.set_xlabel("predicted type")
    axes.set_ylabel("true type")
    plain(axes, "Cell types of the test cells")
    axes.spines[:].set_visible(False)
    colour_bar(
        whole(axes), image, "share of the true type's cells", size=9, ax=axes, shrink=0.6, pad=0.02
    )
    return shown(axes, ax, show)


def precision_recall_curves(
    curves: Mapping[str, pd.DataFrame],
    density: float,
    *,
    ax: Axes | None = None,
    show: bool | None = None,
) -> Axes:
    """One curve for each method, and a line for the density.

    curves: method -> columns recall, precision, at the end of each group of equal weights; the
        first is drawn on top.
    density: share of true edges among all pairs, which is the precision of guessing.
    ax, show: as in grn.plots.
    """
    wanted = "a curve for each method, by name"
    curves = {
        name: columns_of(curve, wanted, numbers=("recall", "precision"))
        for name, curve in curves.items()
    }
    axes = canvas(ax, 6.2, 4.6)
    if not any(len(curve) for curve in curves.values()):
        return shown(note(axes, "There is no network to draw."), ax, show)
    # Recall between two groups has the precision of the second, so that the area under the steps is
    # the AUPRC.
    for number, (name, curve) in enumerate(curves.items()):
        recall = np.concatenate([[0.0], curve["recall"]])
        precision = np.concatenate([curve["precision"][:1], curve["precision"]])
        area = float((np.diff(recall) * precision[1:]).sum())
        axes.plot(
            recall,
            precision,
            drawstyle="steps-pre",
            color=LINES[number % len(LINES)],
            linestyle=STYLES[number // len(LINES) % len(STYLES)],
            linewidth=1.9 if number == 0 else 1.2,
            zorder=3 if number == 0 else 2,
            label=f"{short(name)}, {area:.3f}",
        )
    axes.axhline(
        density,
        color=INK,
        linewidth=0.9,
        linestyle=(0, (4, 3)),
        zorder=1,
        label=f"guessing, {density:.3f}",
    )
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("recall: share of the true edges found")
    axes.set_ylabel("precision: share of found edges that are true")
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    plain(axes, "Edges found, from the largest |weight| down")
    axes.legend(
        title="area under the curve", title_fontsize=9, fontsize=9, frameon=False, loc="upper right"
    )
    return shown(axes, ax, show)


PANELS = {
    "validation/loss": "Validation loss, unseen cells",
    "train/loss": "Training loss",
    "train/masked_multiplicity_loss": "Loss of the genes",
    "train/penalty_loss": "Penalty of the slopes",
    "train/cell_type_loss": "Loss of cell types",
    "train/genes_loss": "Loss of genes, reader of types",
}


def training_curves(metrics: pd.DataFrame) -> Figure:
    """A panel for each loss that was recorded during training; they have different units.

    metrics: columns `step` and `<stage>/<name>`, with gaps, as in a run's metrics.csv.
    """
    metrics = columns_of(
        metrics, "a table of metrics (run.history)", numbers=("step",), optional=tuple(PANELS)
    )
    metrics = metrics.sort_values("step", kind="stable")
    names = [name for name in PANELS if name in metrics and metrics[name].notna().any()]
    if not names:
        return nothing("No metrics were recorded during training.")
    picture, axes = panels(len(names), 3, 3.6, 2.6)
    for name, panel in zip(names, axes, strict=True):
        known = metrics[["step", name]].dropna()
        look: dict[str, Any] = {
            "color": LINES[name.startswith("train")],
            "linewidth": 1.6,
            "marker": "o",
            "markersize": 3,
        }
        panel.plot(known["step"] + 1, known[name], **look)  # Lightning counts steps from 0
        plain(panel, PANELS[name])
        panel.set_xlabel("step")
        panel.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        panel.grid(axis="y", color="#dddddd", linewidth=0.6)
    return picture
