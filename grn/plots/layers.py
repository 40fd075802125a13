"""The attention of the model's blocks, one beside the other: which regulators each layer reads."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from grn.errors import UserError
from grn.networks.signed_network import edge_list, similarity_order, weights_in
from grn.plots.given import RunLike, is_run
from grn.plots.style import colour_bar, figure, plain, shorten

if TYPE_CHECKING:
    from anndata import AnnData

LAYER = re.compile(r"grn_attention_layer\d+")
STRENGTH = "Purples"  # neither red nor blue: no sign is claimed


def attention_layers(network: AnnData | RunLike, *, regulators: int = 12, targets: int = 18) -> Figure:
    """A heat map for each layer, with the same regulators (rows) and targets (columns), on one scale.

    Colour is the mean over cells and heads of |w|, the size of the normalised attention weight of the target on the
    regulator: training does not identify the sign of a block's weight, so that none is drawn.
    network: a run, or its network (varp["grn_attention_layer<i>"]).   regulators, targets: those of the strongest
    weights over all layers; a regulator has a place for some targets of its own. Raises UserError.
    """
    from scipy import sparse

    adata = network.network if is_run(network) else network  # type: ignore[union-attr]
    keys = [key for key in getattr(adata, "varp", {}) if LAYER.fullmatch(key)]
    keys.sort(key=lambda key: int(key.removeprefix("grn_attention_layer")))
    if not keys:
        raise UserError("This picture draws the layers' attention (run, or run.network), and none is in this object.")
    layers = [abs(weights_in(adata, key)) for key in keys]  # type: ignore[arg-type]
    genes: pd.Index = adata.var_names  # type: ignore[union-attr]
    total = sum(layer / max(float(layer.max()), 1e-12) for layer in layers)
    edges = edge_list(sparse.csr_matrix(total), genes)
    rows = list(dict.fromkeys(edges["source"]))[:regulators]
    kept = edges[edges["source"].isin(rows)]
    turn = kept.groupby("source").cumcount().to_numpy()
    columns = list(dict.fromkeys(kept.iloc[np.argsort(turn, kind="stable")]["target"]))[:targets]
    places = genes.get_indexer(columns), genes.get_indexer(rows)
    blocks = [layer[places[0]][:, places[1]].toarray().T for layer in layers]
    row_order = column_order = np.arange(0)
    if rows:
        row_order, column_order = (similarity_order(each) for each in (np.hstack(blocks), np.vstack(blocks).T))
    limit = max((float(np.quantile(block, 0.99)) for block in blocks if block.size), default=0.0) or 1.0
    picture = figure(1.6 + len(layers) * (0.22 * len(columns) + 0.3), 1.5 + 0.22 * len(rows))
    panels = picture.subplots(1, len(layers), sharey=True, squeeze=False)[0]
    for number, (key, panel, block) in enumerate(zip(keys, panels, blocks, strict=True)):
        image = panel.imshow(block[row_order][:, column_order], cmap=STRENGTH, vmin=0, vmax=limit, aspect="auto")
        names = [columns[place] for place in column_order]
        panel.set_xticks(range(len(columns)), shorten(names, 14), rotation=90, fontsize=8, fontstyle="italic")
        panel.set_yticks(range(len(rows)), shorten([rows[n] for n in row_order], 14), fontsize=8, fontstyle="italic")
        plain(panel, f"Layer {int(key.removeprefix('grn_attention_layer')) + 1}")
        panel.spines[:].set_visible(False)
        panel.tick_params(length=0, labelleft=number == 0)
    label = "|attention weight| (no sign claimed)"
    colour_bar(picture, image, label, ax=list(panels), shrink=0.7, aspect=14, pad=0.02, extend="max")
    return picture
