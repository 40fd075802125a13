"""The confusion matrix of the test cells."""

from __future__ import annotations

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from grn.plots.style import SHARE, canvas, draws, ink_on, note, plain, shorten, shown
from grn.plots.tables import Counts


@draws(confusion=Counts())
def confusion_matrix(confusion: pd.DataFrame, *, ax: Axes | None = None, show: bool | None = None) -> Axes:
    """Rows: true cell types, columns: predicted ones. Colour: share of the row; number: cells.

    confusion: numbers of cells, with the cell types as index and columns (run.confusion).   ax, show: as in grn.plots.
    """
    side = max(4.5, 0.48 * len(confusion) + 2.6)
    axes = canvas(ax, side + 0.6, side)
    draw_confusion(axes, confusion)
    return shown(axes, ax, show)


def draw_confusion(axes: Axes, confusion: pd.DataFrame) -> None:
    if not confusion.to_numpy().sum():
        note(axes, "There are no labelled test cells.")
        return
    counts = confusion.to_numpy()
    total = counts.sum(axis=1, keepdims=True)
    share = counts / np.where(total > 0, total, 1)
    colours = matplotlib.colormaps[SHARE]
    image = axes.imshow(share, cmap=colours, vmin=0, vmax=1)
    ticks = range(len(confusion))
    axes.set_xticks(ticks, shorten(confusion.columns), rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(ticks, shorten(confusion.index))
    size = 9 if len(confusion) <= 20 else 6
    axes.tick_params(labelsize=size)
    for row, column in zip(*counts.nonzero(), strict=True):
        ink = ink_on(colours(share[row, column]))
        axes.text(column, row, f"{counts[row, column]:g}", ha="center", va="center", fontsize=size, color=ink)
    axes.set_xlabel("predicted type")
    axes.set_ylabel("true type")
    plain(axes, "Cell types of the test cells")
    axes.spines[:].set_visible(False)
    bar = axes.figure.colorbar(image, ax=axes, shrink=0.6, pad=0.02)
    bar.set_label("share of the true type's cells", fontsize=9)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8)
