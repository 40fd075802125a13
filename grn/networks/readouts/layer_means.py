"""Means over cells and ensemble members of what a read-out finds in the regulation layer.

They are computed for some targets at a time, so that no table of cells x N x R is needed.
Letters: P members, C cells, N genes, n targets at a time, R regulators, H heads, K states.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from grn.model.signed.regulation_layer import RegulationLayer, Scores

SCORES = 2**26  # most numbers of one array: members x heads x targets x (regulators or cells)
VARIES = 1e-5  # least sd, in units of a regulator, that is more than rounding

# scores of n targets, inputs m [C, R + 1] and shares [C] of cells, which sum to 1 -> mean over these cells [P, n, R]
ReadOut = Callable[[Scores, Tensor, Tensor], Tensor]


@torch.no_grad()
def state_means(layer: RegulationLayer, m: Tensor, states: Tensor, readout: ReadOut) -> np.ndarray:
    """The mean of a read-out over the members and over the cells of each state, float32 [K, N, R].

    m [C, R + 1]: inputs of the layer.   states [C, K]: how much each cell belongs to each state.
    """
    shape = (layer.states, layer.genes, len(layer.regulators))
    found = np.zeros(shape, np.float32)
    step = max(1, SCORES // (layer.members * layer.heads * max(shape[2], len(m))))
    for state in range(layer.states):
        cells = (states[:, state] > 0).nonzero()[:, 0]
        if not len(cells):
            continue
        share = states[cells, state]
        share = share / share.sum()
        for start in range(0, shape[1], step):
            genes = slice(start, min(start + step, shape[1]))
            scores = layer.scores(genes, state=state)
            found[state, genes] = readout(scores, m[cells], share).mean(0).cpu().numpy()
    return found


def state_sds(m: Tensor, states: Tensor) -> Tensor:
    """sd of each regulator among the cells of each state, [K, R]; 0 below VARIES. m [C, R + 1], states [C, K]."""
    share = states / states.sum(0).clamp(min=1e-9)
    mean = share.mT @ m[:, :-1]
    sds = torch.stack([of @ (m[:, :-1] - centre).square() for of, centre in zip(share.mT, mean, strict=True)]).sqrt()
    return torch.where(sds > VARIES, sds, 0)
