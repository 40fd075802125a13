"""The blocks' attention: the mean normalised weight w_ij = s_ij / n_i, over heads and cells, layer by layer.

Its sign means nothing: flipping the signs of W_k and W_v (or W_q and W_o) of a head changes no prediction and turns
every weight of the head round. Read its magnitude. (The regulation layer's attention has a sign: effect.py.)
Letters: B cells of a batch, H heads, N genes, R regulators.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from flashsign.reference import edge_weights
from grn.bags import Bags
from grn.model import Model
from grn.network.readout import without_self

WEIGHTS = 2**27  # most weights at once: heads x targets x regulators of one cell


def attention_layers(model: Model, bags: Iterable[Bags], regulators: np.ndarray) -> list[np.ndarray]:
    """[N, R] for each block: the mean over heads and over all cells of the dense `bags`."""
    targets, keys = len(model.is_regulator), len(regulators)
    sums = [torch.zeros(targets, keys, device=model.sd.device) for _ in model.blocks]
    cells = 0
    tile = max(1, WEIGHTS // (model.config.query_heads * (keys + 1)))

    def observe(layer: int, q, k, m) -> None:
        for cell in range(len(q)):
            one = slice(cell, cell + 1)
            for start in range(0, targets, tile):  # the basal gene is the last row and column
                rows = slice(start, min(start + tile, targets))
                weights = edge_weights(q[one, :, rows], k[one], m[one], model.config.eps)
                sums[layer][rows] += weights[0, :, :, :keys].mean(0)

    with torch.no_grad():
        for batch in bags:
            model(batch, observe=observe)
            cells += batch.cells
    return [without_self((total / max(cells, 1)).cpu().numpy(), regulators) for total in sums]
