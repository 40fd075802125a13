"""Precision against recall, for one or several networks on one universe."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from grn.errors import DataError
from grn.plots.style import INK, LINES, canvas, draws, note, plain, short, shown
from grn.plots.tables import Bound, EachOf, Table

STYLES = ("-", "--", ":", "-.")  # of curves that share a colour
SHARE = Bound(0, 1)
CURVE = Table("a curve for each method", numbers={"recall": SHARE, "precision": SHARE})


@draws(curves=EachOf("a curve for each method, by name", CURVE), density=SHARE)
def precision_recall_curves(
    curves: Mapping[str, pd.DataFrame], density: float, *, ax: Axes | None = None, show: bool | None = None
) -> Axes:
    """One curve for each method, and a line for the density.

    curves: method -> columns recall, precision, at the end of each group of equal weights; the first is drawn on top.
    density: share of true edges among all pairs, which is the precision of guessing.   ax, show: as in grn.plots.
    """
    for name, curve in curves.items():
        falls = curve["recall"].diff() < 0
        if falls.any():
            raise DataError(
                f"The curve {name!r} has a recall that falls in row {int(falls.to_numpy().argmax()) + 1}; sort it by "
                "rising recall."
            )
    empty = [name for name, curve in curves.items() if not len(curve)]
    if 0 < len(empty) < len(curves):
        raise DataError(f"The curve {empty[0]!r} has no points; leave it out.")
    axes = canvas(ax, 6.2, 4.6)
    draw_precision_recall(axes, curves, density)
    return shown(axes, ax, show)


def draw_precision_recall(axes: Axes, curves: Mapping[str, pd.DataFrame], density: float) -> None:
    """Draws steps: recall between two groups has the precision of the second, so that the area is the AUPRC."""
    if not any(len(curve) for curve in curves.values()):
        note(axes, "There is no network to draw.")
        return
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
    axes.axhline(density, color=INK, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1, label=f"guessing, {density:.3f}")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("recall: share of the true edges found")
    axes.set_ylabel("precision: share of found edges that are true")
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    plain(axes, "Edges found, from the largest |weight| down")
    axes.legend(title="area under the curve", title_fontsize=9, fontsize=9, frameon=False, loc="upper right")
