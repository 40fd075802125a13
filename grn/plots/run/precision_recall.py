"""Precision against recall, for one or several networks on one universe."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from grn.errors import UserError
from grn.plots.style import INK, LINES, canvas, note, plain, refuse_other, refuse_words, short, shown


def precision_recall_curves(
    curves: Mapping[str, pd.DataFrame], density: float, *, ax: Axes | None = None, show: bool | None = None
) -> Axes:
    """One curve for each method, and a line for the density.

    curves: method -> columns recall, precision, at the end of each group of equal weights; the first is drawn on top.
    density: share of true edges among all pairs, which is the precision of guessing.   ax, show: as in grn.plots.
    """
    if not isinstance(curves, Mapping):
        raise UserError(
            f"This picture draws a curve for each method, by name, not {type(curves).__name__}; give a dict."
        )
    for curve in curves.values():
        refuse_other(curve, "the curves of methods", ("recall", "precision"))
        refuse_words(curve[["recall", "precision"]])
    if isinstance(density, bool) or not isinstance(density, Real) or not 0 <= density <= 1:
        raise UserError(f"density is {density!r}; it must be a share, from 0 to 1.")
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
