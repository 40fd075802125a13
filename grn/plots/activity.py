"""The activity of regulators: by cell type with intervals, and in each cell on an embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from grn.cells.obs import column_of, numbers_in_obsm
from grn.errors import DataError
from grn.networks.evidence.false_discovery import SIGNIFICANT
from grn.plots.given import columns_of, refuse_unknown
from grn.plots.style import INK, SIGNED, canvas, colour_bar, note, plain, short, shorten, shown, unframed, whole

if TYPE_CHECKING:
    from anndata import AnnData

LABEL_HEIGHT = 0.05  # of the picture


def activity_heatmap(
    table: pd.DataFrame, *, regulators: int = 12, types: int = 12, ax: Axes | None = None, show: bool | None = None
) -> Axes:
    """How much more active regulators are in each cell type (columns) than elsewhere, or in the second condition.

    Each field has the difference and half of its 95 % interval; those with a q-value above 0.05 are grey.
    table: of `grn.activity` with by= or compare=.   regulators: how many, the largest certain differences of each type
    in turn.   types: how many, the first ones of the table.   ax, show: as in grn.plots. Raises UserError.
    """
    wanted = "the table of grn.activity with by= or compare="
    table = columns_of(table, wanted, texts=("cell_type", "regulator"), gaps=("effect", "low", "high", "q_value"))
    names = list(dict.fromkeys(table["cell_type"]))[:types]
    certain = table[(table["q_value"] <= SIGNIFICANT) & table["cell_type"].isin(names)]
    turn = np.argsort(certain.groupby("cell_type").cumcount().to_numpy(), kind="stable")
    rows = list(dict.fromkeys(certain["regulator"].iloc[turn]))[:regulators]
    axes = canvas(ax, 2.2 + 0.62 * len(names), 1.5 + 0.34 * max(len(rows), 2))
    if not rows:
        return shown(note(axes, f"No difference in activity has a q-value of at most {SIGNIFICANT:g}."), ax, show)
    by_pair = table.set_index(["regulator", "cell_type"])
    effect, low, q = (
        by_pair[name].unstack().reindex(index=rows, columns=names) for name in ("effect", "low", "q_value")
    )
    limit = float(np.nanquantile(effect.abs(), 0.95)) or 1.0
    image = axes.imshow(effect.where(q <= SIGNIFICANT, 0), cmap=SIGNED, vmin=-limit, vmax=limit, aspect="auto")
    for (row, column), value in np.ndenumerate(effect.to_numpy()):
        if np.isfinite(value):
            sure = q.iloc[row, column] <= SIGNIFICANT
            ink = "#999999" if not sure else "white" if abs(value) > 0.5 * limit else INK
            text = f"{value:+.1f}\n±{value - low.iloc[row, column]:.1f}"
            axes.text(column, row, text, ha="center", va="center", fontsize=6.5, color=ink, linespacing=0.95)
    axes.set_xticks(
        range(len(names)), shorten(names, 22), rotation=45, ha="right", rotation_mode="anchor", fontsize=8.5
    )
    axes.set_yticks(range(len(rows)), shorten(rows, 14), fontsize=8.5, fontstyle="italic")
    plain(axes, "Activity of regulators")
    unframed(axes)
    means = [str(name).removeprefix("activity_") for name in table if str(name).startswith("activity_")]
    versus = "against other cells" if "others" in means else " against ".join(shorten(means[::-1], 14))
    colour_bar(whole(axes), image, f"{versus}: blue is more active", ax=axes, shrink=0.7, aspect=15, pad=0.02)
    return shown(axes, ax, show)


def regulator_activity(
    adata: AnnData,
    regulator: str,
    *,
    basis: str = "X_umap",
    key: str = "X_regulon",
    label_key: str | None = None,
    ax: Axes | None = None,
    show: bool | None = None,
) -> Axes:
    """Cells on an embedding, in the colour of a regulator's activity: blue is active, red the opposite, white neither.

    adata: cells with obsm[basis] and, from grn.activity, obsm[key], a table with a column for each regulator.
    label_key: column of obs whose labels are written at the middle of their cells, or led there by a line.
    ax, show: as in grn.plots. Raises UserError where the cells have no such embedding, activity, regulator or column.
    """
    if basis not in adata.obsm and f"X_{basis}" in adata.obsm:  # as scanpy names it
        basis = f"X_{basis}"
    for name, made in ((basis, "compute it with scanpy (sc.tl.umap)"), (key, "compute it with grn.activity")):
        if name not in adata.obsm:
            raise DataError(f"The cells have no obsm[{name!r}]; {made}, or name another.")
    activity: pd.DataFrame = adata.obsm[key]
    refuse_unknown("regulator", regulator, activity, f"obsm[{key!r}]")
    values, place = numbers_in_obsm(activity[regulator], key), numbers_in_obsm(adata.obsm[basis], basis)
    labels = None if label_key is None else column_of(adata.obs, label_key, "label_key", "obs").astype(object)
    names = [] if labels is None else list(labels.dropna().unique())
    axes = canvas(ax, 5.4, 4.6)
    limit = float(np.nanquantile(np.abs(values), 0.98)) or 1.0
    order = np.argsort(np.abs(values), kind="stable")  # the most active on top
    dots = axes.scatter(
        place[order, 0],
        place[order, 1],
        c=values[order],
        cmap=SIGNED,
        vmin=-limit,
        vmax=limit,
        s=float(np.clip(12000 / max(len(values), 1), 2, 26)),
        edgecolors="#99999955",
        linewidths=0.2,
        rasterized=len(values) > 5000,
    )
    if labels is not None and names:
        middles = np.array([np.median(place[(labels == name).to_numpy()], axis=0) for name in names])
        size = np.ptp(place, axis=0)
        for name, (x, y), middle in zip(names, _apart(middles, size), middles, strict=True):
            if abs(y - middle[1]) > 0.75 * LABEL_HEIGHT * size[1]:  # a line leads to the cells that it left
                axes.plot([x, middle[0]], [y, middle[1]], color=INK, linewidth=0.7, zorder=2.5)
                axes.plot(*middle, marker="o", markersize=3, color=INK, zorder=2.5)
            box: dict[str, Any] = {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.8}
            axes.text(x, y, short(name, 26), ha="center", va="center", fontsize=7.5, fontweight="bold", bbox=box)
    axes.set_xticks([])
    axes.set_yticks([])
    name = basis.removeprefix("X_").upper() if basis.lower() in ("x_umap", "x_pca", "x_tsne") else basis
    axes.set_xlabel(f"{name} 1", fontsize=9)
    axes.set_ylabel(f"{name} 2", fontsize=9)
    plain(axes, f"Activity of {short(regulator, 20)}")
    label = "activity: blue where its network is on"
    colour_bar(whole(axes), dots, label, ax=axes, shrink=0.6, aspect=15, pad=0.02, extend="both")
    return shown(axes, ax, show)


def _apart(middles: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Places of labels [n, 2], moved upwards and downwards until none lies on another; size: of the picture."""
    found = middles.copy()
    width, height = 0.42 * size[0], LABEL_HEIGHT * size[1]
    for _ in range(100):
        order = np.argsort(found[:, 1], kind="stable")
        moved = False
        for first, low in enumerate(order):
            for high in order[first + 1 :]:
                near = abs(found[low, 0] - found[high, 0]) < width
                missing = height - (found[high, 1] - found[low, 1])
                if near and missing > 1e-9 * size[1]:
                    found[low, 1] -= missing / 2
                    found[high, 1] += missing / 2
                    moved = True
        if not moved:
            break
    return found
