"""Networks as heat maps of regulators and targets: clustered, and layer by layer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from grn.edges.signed_network import block, edge_list, similarity_order, weights_in
from grn.evidence.q_values import SIGNIFICANT
from grn.plots.given import NetworkLike, RunLike, edges_of, genes_of, is_run, targets_in_turn
from grn.plots.style import (
    INK,
    SIGNED,
    canvas,
    colour_bar,
    colour_bar_beside_names,
    figure,
    note,
    plain,
    short,
    shorten,
    shown,
    unframed,
    whole,
)
from grn.runtime.errors import UserError

if TYPE_CHECKING:
    from anndata import AnnData


TREE = "#999999"
TITLED = 6.8  # inches of width that a title takes
ABOVE = 0.2  # of the height of a clustered heat map: its tree and its title, above it
LAYER = re.compile(r"grn_layer\d+")


def clustered_heatmap(
    network: NetworkLike,
    *,
    cell_type: str | None = None,
    regulators: Sequence[str] | int = 15,
    targets: Sequence[str] | int = 30,
    ax: Axes | None = None,
    show: bool | None = None,
) -> Axes:
    """Signed weights of regulators (rows) on targets (columns): red raises, blue lowers; similar
    rows are neighbours.

    A dot marks an edge with a q-value of at most 0.05, where these are known (of a run, or a table
    with them).
    network: a run, its network, or a table of edges.
    cell_type: the network of this type; None: over all cells.
    regulators, targets: names, or how many, those of the certain edges first, and of the strongest
        ones, so that each regulator has a place for some targets of its own.
    ax, show: as in grn.plots.
    Raises UserError.
    """
    from scipy.cluster.hierarchy import leaves_list

    edges, whose, found = edges_of(network, cell_type)
    if "q_value" in edges:
        edges = edges.iloc[np.argsort(edges["q_value"] > SIGNIFICANT, kind="stable")]
    strongest = list(dict.fromkeys(edges["source"]))
    rows = strongest[:regulators] if isinstance(regulators, int) else genes_of(found, regulators)
    columns = (
        targets_in_turn(edges, rows, targets)
        if isinstance(targets, int)
        else genes_of(found, targets)
    )
    if not rows or not columns:
        return shown(
            note(canvas(ax, 6, 2), "The network has no edges between these genes."), ax, show
        )
    axes = canvas(ax, max(1.9 + 0.21 * len(columns), TITLED), 1.9 + 0.21 * len(rows))
    frame = _table(edges, "weight", rows, columns).fillna(0)
    row_tree, column_tree = _tree(frame.to_numpy()), _tree(frame.to_numpy().T)
    leaves = [
        slice(None) if tree is None else leaves_list(tree) for tree in (row_tree, column_tree)
    ]
    frame = frame.iloc[leaves[0], leaves[1]]
    limit = float(np.quantile(np.abs(frame.to_numpy()), 0.99)) or 1.0
    image = axes.imshow(frame, cmap=SIGNED, vmin=-limit, vmax=limit, aspect="auto")
    axes.set_xticks(
        range(len(columns)), shorten(frame.columns, 14), rotation=90, fontsize=8, fontstyle="italic"
    )
    axes.set_yticks(range(len(rows)), shorten(frame.index, 14), fontsize=8, fontstyle="italic")
    axes.yaxis.tick_right()
    unframed(axes)
    axes.set_xticks(np.arange(-0.5, len(columns)), minor=True)
    axes.set_yticks(np.arange(-0.5, len(rows)), minor=True)
    axes.grid(which="minor", color="white", linewidth=0.6)
    axes.tick_params(which="minor", length=0)
    if "q_value" in edges:
        certain = _table(edges, "q_value", list(frame.index), list(frame.columns)) <= SIGNIFICANT
        axes.plot(*np.argwhere(certain.to_numpy())[:, ::-1].T, "o", markersize=2.5, color=INK)
    _draw_tree(axes.inset_axes((0, 1.01, 1, 0.12)), column_tree, len(columns), "top")
    _draw_tree(axes.inset_axes((-0.09, 0, 0.085, 1)), row_tree, len(rows), "left")
    dots = f"; dots: q at most {SIGNIFICANT:g}" if "q_value" in edges else ""
    title = "All cells" if whose == "all cells" else short(whose)
    axes.set_title(
        f"{title}: regulators (rows) and their targets{dots}",
        fontsize=10,
        fontweight="bold",
        y=1.13,
    )
    meaning = (
        "weight: red raises, blue lowers" if found.signed else "weight (the sign has no meaning)"
    )
    if isinstance(whole(axes).get_layout_engine(), ConstrainedLayoutEngine):
        place: dict[str, Any] = {"ax": axes, "shrink": 0.5, "aspect": 14, "pad": 0.02}
        colour_bar(whole(axes), image, meaning, extend="both", **place)
    else:
        colour_bar_beside_names(axes, image, meaning, above=ABOVE)
    return shown(axes, ax, show)


def _table(edges: pd.DataFrame, value: str, rows: list[str], columns: list[str]) -> pd.DataFrame:
    """A column of edges for some regulators (rows) and targets (columns), NaN for pairs that have
    none.
    """
    chosen = edges[edges["source"].isin(rows) & edges["target"].isin(columns)]
    return chosen.pivot(index="source", columns="target", values=value).reindex(
        index=rows, columns=columns
    )


def _tree(values: np.ndarray) -> np.ndarray | None:
    """A linkage of the rows; None for fewer than three."""
    from scipy.cluster.hierarchy import linkage

    return linkage(values, method="average", optimal_ordering=True) if len(values) > 2 else None


def _draw_tree(axes: Axes, tree: np.ndarray | None, count: int, side: str) -> None:
    from scipy.cluster.hierarchy import dendrogram

    axes.set_axis_off()
    if tree is None:
        return
    drawn = dendrogram(tree, no_plot=True)
    for places, heights in zip(drawn["icoord"], drawn["dcoord"], strict=True):
        along = (np.array(places) - 5) / 10  # scipy puts the leaves at 5, 15, ...
        axes.plot(
            *((along, heights) if side == "top" else (heights, along)), color=TREE, linewidth=0.8
        )
    if side == "top":
        axes.set_xlim(-0.5, count - 0.5)
        axes.set_ylim(0, None)
    else:
        axes.set_ylim(count - 0.5, -0.5)
        axes.set_xlim(axes.get_xlim()[1], 0)


def attention_layers(
    network: AnnData | RunLike,
    *,
    regulators: int = 12,
    targets: int = 18,
    ax: Sequence[Axes] | None = None,
) -> Figure:
    """A heat map for each block of the model, one beside the other: red raises, blue lowers.

    The targets of the first block are the regulators, those of the second all other genes. Each map
    has its own regulators (rows) and targets (columns), those of its strongest weights, on a scale
    of its own.
    network: a run, or its network (varp["grn_layer<i>"]).
    ax: the axes to draw into, as many as there are blocks or layers; None: those of a new figure.
    Raises UserError.
    """
    adata = network.network if is_run(network) else network
    keys = sorted(key for key in getattr(adata, "varp", {}) if LAYER.fullmatch(key))
    if not keys:
        raise UserError(
            "This picture draws the networks of layers (run, or run.network), and none is in this "
            "object."
        )
    given = None if ax is None else list(np.array(ax, dtype=object).flat)
    if given is not None and len(given) != len(keys):
        raise UserError(
            f"ax has {len(given)} axes, and the network {len(keys)} layers", advice="give each one"
        )
    genes: pd.Index = adata.var_names  # type: ignore[union-attr]
    what = "Block" if "grn_total" in adata.varp else "Layer"  # type: ignore[union-attr]  # signed blocks, or attention
    frames = []
    for key in keys:
        weights = weights_in(adata, key)
        edges = edge_list(weights, genes)
        rows = list(dict.fromkeys(edges["source"]))[:regulators]
        frame = block(weights, genes, rows, targets_in_turn(edges, rows, targets))
        order = (similarity_order(each) for each in (frame.to_numpy(), frame.to_numpy().T))
        frames.append(frame.iloc[next(order), next(order)])
    width = [1.9 + 0.22 * max(frame.shape[1], 3) for frame in frames]
    if given is None:
        new = figure(sum(width), 1.5 + 0.22 * max(len(frame) for frame in frames))
        grid = new.subplots(1, len(frames), squeeze=False, gridspec_kw={"width_ratios": width})
        panels = list(grid[0])
    else:
        panels = given
    picture = whole(panels[0])
    for key, panel, frame in zip(keys, panels, frames, strict=True):
        plain(panel, f"{what} {int(key.removeprefix('grn_layer')) + 1}")
        unframed(panel)
        if frame.empty:
            note(panel, "no edges")
            continue
        limit = float(np.quantile(np.abs(frame.to_numpy()), 0.99)) or 1.0
        image = panel.imshow(frame, cmap=SIGNED, vmin=-limit, vmax=limit, aspect="auto")
        names = [shorten(each, 14) for each in (frame.columns, frame.index)]
        panel.set_xticks(
            range(frame.shape[1]), names[0], rotation=90, fontsize=8, fontstyle="italic"
        )
        panel.set_yticks(range(len(frame)), names[1], fontsize=8, fontstyle="italic")
        colour_bar(
            picture,
            image,
            "weight: red raises, blue lowers" if what == "Block" else "weight",
            ax=panel,
            shrink=0.7,
            aspect=14,
            pad=0.02,
            extend="both",
        )
    return picture
