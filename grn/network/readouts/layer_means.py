"""Means over cells and ensemble members of what a read-out finds in the regulation layer.

They are computed for some targets at a time, so that no table of cells x N x R is needed.
Letters: P members, C cells, N genes, n targets at a time, R regulators, H heads.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from grn.model.regulation_layer import RegulationLayer, Scores
from grn.network.weights import Network, members_agreement, without_self

SCORES = 2**26  # most numbers of one array: members x heads x targets x (regulators or cells)


def mean_over_cells(
    layer: RegulationLayer,
    m: Tensor,
    labels: Tensor,
    *,
    weight: Callable[[Scores, Tensor], Tensor],
    unit: Callable[[Tensor], Tensor],
    finish: Callable[[np.ndarray], np.ndarray],
) -> Network:
    """The network of all cells, and that of each cell type over the cells of the type.

    m [C, R + 1]: inputs of the layer.   labels [C]: cell type index, -1 unknown.   weight: scores of n targets, inputs
    of some cells -> mean over these cells [P, n, R].   unit: inputs of some cells -> what their weights are multiplied
    by, [R].   finish: [N, R] -> [N, R], the last step.
    """
    inputs = {int(cell_type): m[labels == cell_type] for cell_type in labels.unique()}
    units, unit_of_all = {cell_type: unit(cells) for cell_type, cells in inputs.items()}, unit(m)
    shape = (layer.genes, len(layer.regulators))
    by_type = {cell_type: np.empty(shape, np.float32) for cell_type in inputs}
    overall, confidence = np.empty(shape, np.float32), np.empty(shape, np.float32)
    step = max(1, SCORES // (layer.members * layer.heads * max(shape[1], len(m))))
    with torch.no_grad():
        for start in range(0, shape[0], step):
            genes = slice(start, min(start + step, shape[0]))
            scores = layer.scores(genes)
            total = torch.zeros((), device=m.device)
            for cell_type, cells in inputs.items():
                mean = weight(scores, cells)
                total = total + len(cells) / len(m) * mean
                by_type[cell_type][genes] = (mean.mean(0) * units[cell_type]).cpu().numpy()
            total = total * unit_of_all
            overall[genes] = total.mean(0).cpu().numpy()
            confidence[genes] = members_agreement(total).cpu().numpy()
    regulators = layer.regulators.cpu().numpy()
    finished = {
        cell_type: without_self(finish(by_type[cell_type]), regulators) for cell_type in inputs if cell_type >= 0
    }
    return Network(without_self(finish(overall), regulators), finished, confidence)
