"""The attention read-out: the mean normalised weight w_ij = s_ij / n_i, over heads and cells, layer by layer.

Its sign means nothing yet: flipping the signs of W_k and W_v (or W_q and W_o) of a head changes no prediction and
turns every weight of the head round. Read its magnitude.
Letters: B bags, H heads, N genes, R regulators.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import scipy.sparse as sp
import torch

from flashsign.reference import edge_weights
from grn.model import Model
from grn.network.readout import Network, PairMean, average
from grn.network.sampling import Sample, masked_bags


def attention_network(
    model: Model,
    multiplicity: sp.csr_matrix,
    samples: Iterable[Sample],
    cells: dict[int, int],
    regulators: np.ndarray,
    basal: np.ndarray | None = None,
) -> Network:
    """Arguments as for the Jacobian. weight is the mean over layers; layers holds each."""
    shape = multiplicity.shape[1], len(regulators)
    means: list[dict[int, PairMean]] = [{} for _ in model.blocks]
    pooled: dict[int, PairMean] = {}
    everything = slice(0, len(regulators))
    for sample in samples:
        seen: dict[int, np.ndarray] = {}

        def observe(layer: int, q, k, m, seen=seen) -> None:
            weights = edge_weights(q, k, m, model.config.eps)[:, :, : shape[0], : shape[1]]
            seen[layer] = weights.mean(1).cpu().numpy()  # the basal gene is the last row and column

        with torch.no_grad():
            model(masked_bags(model, multiplicity, basal, sample, regulators), observe=observe)
        readable = np.broadcast_to(~sample.masked[:, None, :], (len(sample.rows), *shape))
        for layer, weights in seen.items():
            for table in (means[layer], pooled):
                table.setdefault(sample.cell_type, PairMean(*shape)).add(weights, readable, everything)
    unit = np.ones(shape)
    self_pairs = np.stack([regulators, np.arange(len(regulators))])
    layers = [average(mean, cells, unit, self_pairs).weight for mean in means]
    whole = average(pooled, cells, unit, self_pairs)
    return Network(whole.weight, whole.by_type, whole.confidence, layers)
