"""Names of edges beside their dots, as many as there is room for."""

from __future__ import annotations

from collections.abc import Iterable

from matplotlib.axes import Axes

from grn.plots.style import INK, short


def name_edges(
    axes: Axes,
    edges: Iterable[tuple[float, float, str, str]],
    *,
    apart: tuple[float, float],
    turn: float,
) -> None:
    """Writes "source → target" beside each dot, left of it where its x is above `turn`; none over an earlier one.

    edges: x, y, source and target of each, the most important first.   apart: how far two names must be from each other
    in x or in y, in units of the axes.
    """
    taken: list[tuple[float, float]] = []
    for x, y, source, target in edges:
        if any(abs(x - other_x) < apart[0] and abs(y - other_y) < apart[1] for other_x, other_y in taken):
            continue
        taken.append((x, y))
        left = x > turn
        axes.annotate(
            f"{short(source, 10)} → {short(target, 10)}",
            (x, y),
            xytext=(-6 if left else 6, 0),
            textcoords="offset points",
            ha="right" if left else "left",
            va="center",
            fontsize=7.5,
            fontstyle="italic",
            color=INK,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.5},
            zorder=4,
        )
