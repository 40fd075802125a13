"""Regulators x targets as heat maps: over all cells, and one per cell type, on one scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from grn.networks.signed_network import SignedNetwork, heatmap_blocks
from grn.plots.given import ONLY_TYPES, RunLike, as_network
from grn.plots.style import SIGNED, colour_bar, figure, note, plain, short, shorten, whole

if TYPE_CHECKING:
    from anndata import AnnData


def network_heatmaps(
    weights: Mapping[str, pd.DataFrame] | SignedNetwork | AnnData | RunLike | pd.DataFrame, *, signed: bool = True
) -> Figure:
    """One heat map for each entry of `weights`, all with one colour scale.

    weights: a title (all cells, a cell type) -> signed weights, rows = regulators, columns = targets; all have the same
    rows and columns.   signed: whether the sign means that the regulator raises or lowers its target.
    Of a run, its network or a table of edges, the genes of the strongest edges are shown.
    """
    if not isinstance(weights, Mapping):
        network = as_network(weights)
        weights, signed = heatmap_blocks(network), network.signed
        if network.about.get(ONLY_TYPES):
            weights.pop("all cells", None)
    first = next(iter(weights.values()), pd.DataFrame())
    if first.empty:
        return whole(note(figure(6, 2).subplots(), "The network has no edges."))
    regulators, targets = first.shape
    columns = min(3, len(weights))
    rows = -(-len(weights) // columns)
    picture = figure(1.4 + columns * (0.19 * targets + 0.4), 1.0 + rows * (0.19 * regulators + 0.45) + 0.6)
    grid = picture.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    values = np.abs(np.concatenate([frame.to_numpy().ravel() for frame in weights.values()]))
    # With the largest weight as the limit, most of the map would be white.
    limit = float(np.quantile(values, 0.99)) or 1.0
    panels = list(grid.flat)
    for number, (panel, (title, frame)) in enumerate(zip(panels, weights.items(), strict=False)):
        image = panel.imshow(frame.to_numpy(), cmap=SIGNED, vmin=-limit, vmax=limit, aspect="auto")
        panel.set_yticks(range(regulators), shorten(frame.index, 14), fontsize=7.5)
        panel.set_xticks(range(targets), shorten(frame.columns, 14), fontsize=7.5, rotation=90)
        # A column is labelled under its last map; above an empty panel, the labels extend into it.
        panel.tick_params(labelbottom=number + columns >= len(weights), labelleft=number % columns == 0)
        for label in panel.get_xticklabels():
            label.set_in_layout(number // columns == rows - 1)
        plain(panel)
        panel.set_title(short(title), loc="left", fontsize=9, fontweight="bold" if number == 0 else "normal")
        panel.spines[:].set_visible(False)
        panel.tick_params(length=0)
    for panel in panels[len(weights) :]:
        panel.set_axis_off()
    picture.supxlabel("target", fontsize=9)
    picture.supylabel("regulator", fontsize=9)
    label = "weight: red lowers, blue raises the target" if signed else "weight (the sign has no meaning)"
    shrink = min(1.0, 2.0 / rows)
    colour_bar(picture, image, label, size=9, ax=grid, shrink=shrink, aspect=16, pad=0.015, extend="both")
    return picture
