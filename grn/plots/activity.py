"""The activity of regulators by cell type or between conditions, with intervals."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from grn.evidence.q_values import SIGNIFICANT
from grn.plots.given import columns_of
from grn.plots.style import (
    INK,
    SIGNED,
    canvas,
    colour_bar,
    note,
    plain,
    shorten,
    shown,
    unframed,
    whole,
)


def activity_heatmap(
    table: pd.DataFrame,
    *,
    regulators: int = 12,
    types: int = 12,
    ax: Axes | None = None,
    show: bool | None = None,
) -> Axes:
    """How much more active regulators are in each cell type (columns) than elsewhere, or in the
    second condition.

    Each field has the difference and half of its 95 % interval; those with a q-value above 0.05 are
    grey.
    table: of `grn.activity` with by= or compare=.
    regulators: how many, the largest certain differences of each type in turn.
    types: how many, the first ones of the table.
    ax, show: as in grn.plots.
    Raises UserError.
    """
    wanted = "the table of grn.activity with by= or compare="
    table = columns_of(
        table, wanted, texts=("cell_type", "regulator"), gaps=("effect", "low", "high", "q_value")
    )
    names = list(dict.fromkeys(table["cell_type"]))[:types]
    certain = table[(table["q_value"] <= SIGNIFICANT) & table["cell_type"].isin(names)]
    turn = np.argsort(certain.groupby("cell_type").cumcount().to_numpy(), kind="stable")
    rows = list(dict.fromkeys(certain["regulator"].iloc[turn]))[:regulators]
    axes = canvas(ax, 2.2 + 0.62 * len(names), 1.5 + 0.34 * max(len(rows), 2))
    if not rows:
        return shown(
            note(axes, f"No difference in activity has a q-value of at most {SIGNIFICANT:g}."),
            ax,
            show,
        )
    by_pair = table.set_index(["regulator", "cell_type"])
    effect, low, q = (
        by_pair[name].unstack().reindex(index=rows, columns=names)
        for name in ("effect", "low", "q_value")
    )
    limit = float(np.nanmax(effect.abs())) or 1.0
    image = axes.imshow(
        effect.where(q <= SIGNIFICANT, 0), cmap=SIGNED, vmin=-limit, vmax=limit, aspect="auto"
    )
    for (row, column), value in np.ndenumerate(effect.to_numpy()):
        if np.isfinite(value):
            sure = q.iloc[row, column] <= SIGNIFICANT
            ink = "#999999" if not sure else "white" if abs(value) > 0.5 * limit else INK
            half = value - low.iloc[row, column]
            text = f"{value:+.1f}\n±{half:{'.1f' if half >= 0.1 else '.1g'}}"
            axes.text(
                column,
                row,
                text,
                ha="center",
                va="center",
                fontsize=6.5,
                color=ink,
                linespacing=0.95,
            )
    axes.set_xticks(
        range(len(names)),
        shorten(names, 22),
        rotation=45,
        ha="right",
        rotation_mode="anchor",
        fontsize=8.5,
    )
    axes.set_yticks(range(len(rows)), shorten(rows, 14), fontsize=8.5, fontstyle="italic")
    unframed(axes)
    means = [
        str(name).removeprefix("activity_") for name in table if str(name).startswith("activity_")
    ]
    versus = (
        "against other cells" if "others" in means else " against ".join(shorten(means[::-1], 14))
    )
    whose = "of regulators"
    if "regulons" in table:
        own = table["regulons"].astype(str).str.startswith("certain edges").any()
        whose = "of candidates, by edges of this run" if own else "by published targets"
    plain(axes, f"Activity {whose}, {versus}")
    label = (
        "difference of activity (t-value)\nred: more active, blue: less\n±: half of the 95 % "
        "interval"
    )
    colour_bar(whole(axes), image, label, ax=axes, shrink=0.9, aspect=15, pad=0.02)
    return shown(axes, ax, show)
