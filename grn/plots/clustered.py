"""One network as a heat map of regulators x targets, both ordered by hierarchical clustering, with their trees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from grn.networks.signed_network import SignedNetwork, block, edge_list
from grn.plots.given import RunLike, as_network, genes_of, weights_of
from grn.plots.style import SIGNED, canvas, colour_bar, note, short, shorten, shown, whole

if TYPE_CHECKING:
    from anndata import AnnData

TREE = "#999999"


def clustered_heatmap(
    network: SignedNetwork | AnnData | RunLike | pd.DataFrame,
    *,
    cell_type: str | None = None,
    regulators: Sequence[str] | int = 15,
    targets: Sequence[str] | int = 30,
    ax: Axes | None = None,
    show: bool | None = None,
) -> Axes:
    """Signed weights of regulators (rows) on targets (columns): red lowers, blue raises; similar rows are neighbours.

    network: a run, its network, or a table of edges.   cell_type: the network of this type; None: over all cells.
    regulators, targets: names, or how many, those of the strongest edges first, so that each regulator has a place for
    some targets of its own.   ax, show: as in grn.plots. Raises UserError.
    """
    from scipy.cluster.hierarchy import leaves_list

    found = as_network(network)
    weights, whose = weights_of(found, cell_type)
    edges = edge_list(weights, found.genes)
    strongest = list(dict.fromkeys(edges["source"]))
    rows = strongest[:regulators] if isinstance(regulators, int) else genes_of(found, regulators)
    columns = _targets(edges, rows, targets) if isinstance(targets, int) else genes_of(found, targets)
    if not rows or not columns:
        return shown(note(canvas(ax, 6, 2), "The network has no edges between these genes."), ax, show)
    axes = canvas(ax, 1.9 + 0.21 * len(columns), 1.9 + 0.21 * len(rows))
    frame = block(weights, found.genes, rows, columns)
    row_tree, column_tree = _tree(frame.to_numpy()), _tree(frame.to_numpy().T)
    leaves = [slice(None) if tree is None else leaves_list(tree) for tree in (row_tree, column_tree)]
    frame = frame.iloc[leaves[0], leaves[1]]
    limit = float(np.quantile(np.abs(frame.to_numpy()), 0.99)) or 1.0
    image = axes.imshow(frame, cmap=SIGNED, vmin=-limit, vmax=limit, aspect="auto")
    axes.set_xticks(range(len(columns)), shorten(frame.columns, 14), rotation=90, fontsize=8, fontstyle="italic")
    axes.set_yticks(range(len(rows)), shorten(frame.index, 14), fontsize=8, fontstyle="italic")
    axes.yaxis.tick_right()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xticks(np.arange(-0.5, len(columns)), minor=True)
    axes.set_yticks(np.arange(-0.5, len(rows)), minor=True)
    axes.grid(which="minor", color="white", linewidth=0.6)
    axes.tick_params(which="minor", length=0)
    _draw_tree(axes.inset_axes((0, 1.01, 1, 0.12)), column_tree, len(columns), "top")
    _draw_tree(axes.inset_axes((-0.09, 0, 0.085, 1)), row_tree, len(rows), "left")
    title = "All cells" if whose == "all cells" else short(whose)
    axes.set_title(f"{title}: regulators (rows) and their targets", fontsize=10, fontweight="bold", y=1.13)
    meaning = "weight: red lowers, blue raises" if found.signed else "weight (the sign has no meaning)"
    colour_bar(whole(axes), image, meaning, ax=axes, shrink=0.5, aspect=14, pad=0.02, extend="both")
    return shown(axes, ax, show)


def _targets(edges: pd.DataFrame, regulators: Sequence[str], count: int) -> list[str]:
    """The targets of the strongest edges, taken from the regulators in turn."""
    of_regulators = edges[edges["source"].isin(regulators)]
    turn = of_regulators.groupby("source").cumcount()
    ordered = of_regulators.iloc[np.argsort(turn.to_numpy(), kind="stable")]
    return list(dict.fromkeys(ordered["target"]))[:count]


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
        axes.plot(*((along, heights) if side == "top" else (heights, along)), color=TREE, linewidth=0.8)
    if side == "top":
        axes.set_xlim(-0.5, count - 0.5)
        axes.set_ylim(0, None)
    else:
        axes.set_ylim(count - 0.5, -0.5)
        axes.set_xlim(axes.get_xlim()[1], 0)
