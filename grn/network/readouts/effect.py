"""The read-outs of the regulation layer: its signed attention, and what that attention does to the predictions.

attention: w_ij = s_ij / n_i, the mean over cells, heads weighed by what their weights are worth (gain x amount).
effect: weight x value's effect on the predicted multiplicity, for one sd of the regulator, in sds of the target: the
slope of the prediction, the norm held. For a cell type, one sd is that of its own cells: what does not vary there does
nothing there.
Sign of both: positive = the regulator raises the target's expected multiplicity. It is that of q_i.k_j in each head,
by construction, whatever signs the training started from; heads that disagree are added.
Both are means over cells and members, computed for some targets at a time: no table of cells x N x R.
Letters: P members, C cells, N genes, R regulators, H heads.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from grn.model.regulation_layer import Regulation, Scores
from grn.network.weights import Network, balanced, members_agreement, without_self

SCORES = 2**26  # most numbers of one array: members x heads x targets x (regulators or cells)


def effect_network(layer: Regulation, regulators: Tensor, basal: Tensor | None, kinds: Tensor) -> Network:
    """regulators [C, R]: multiplicities.   basal [C].   kinds [C]: cell type of each cell, -1 unknown."""

    def of_cells(said: Scores, m: Tensor) -> Tensor:
        slope = (1 / said.norms(m)).mean(-2)[..., None]  # [P, H, n, 1]
        return (said.score * said.amount * said.gain * slope)[..., :-1].sum(1)

    def spread(m: Tensor) -> Tensor:
        return m[:, :-1].std(0, correction=0)

    return _means(layer, layer.inputs(regulators, basal), kinds, of_cells, spread, balanced)


def attention_network(layer: Regulation, regulators: Tensor, basal: Tensor | None, kinds: Tensor) -> Network:
    """Arguments as for `effect_network`. |weight| <= 1."""

    def of_cells(said: Scores, m: Tensor) -> Tensor:
        mean = (1 / said.norms(m)).mT @ m / len(m)  # mean of m_j / n_i: [P, H, n, R + 1]
        worth = said.amount * said.gain
        return (said.score * mean * worth).sum(1)[..., :-1] / worth.sum(1)[..., :-1]

    # What never varies taught the layer nothing: its score is chance.
    varies = (regulators.amax(0) > regulators.amin(0)).to(layer.unit)
    return _means(layer, layer.inputs(regulators, basal), kinds, of_cells, lambda m: varies, lambda weight: weight)


def _means(
    layer: Regulation,
    m: Tensor,
    kinds: Tensor,
    of_cells: Callable[[Scores, Tensor], Tensor],
    scale: Callable[[Tensor], Tensor],
    finish: Callable[[np.ndarray], np.ndarray],
) -> Network:
    """of_cells [P, n, R], the mean over some cells, times their scale [R]; of all cells, and of those of each type."""
    parts = {int(kind): m[kinds == kind] for kind in kinds.unique()}
    scales, overall = {kind: scale(part) for kind, part in parts.items()}, scale(m)
    shape = (layer.genes, len(layer.regulators))
    tables = {kind: np.empty(shape, np.float32) for kind in parts}
    whole, confidence = np.empty(shape, np.float32), np.empty(shape, np.float32)
    step = max(1, SCORES // (layer.members * layer.heads * max(shape[1], len(m))))
    with torch.no_grad():
        for start in range(0, shape[0], step):
            genes = slice(start, min(start + step, shape[0]))
            said = layer.scores(genes)
            total = torch.zeros((), device=m.device)
            for kind, part in parts.items():
                found = of_cells(said, part)
                total = total + len(part) / len(m) * found
                tables[kind][genes] = (found.mean(0) * scales[kind]).cpu().numpy()
            total = total * overall
            whole[genes] = total.mean(0).cpu().numpy()
            confidence[genes] = members_agreement(total).cpu().numpy()
    regulators = layer.regulators.cpu().numpy()
    by_type = {kind: without_self(finish(tables[kind]), regulators) for kind in parts if kind >= 0}
    return Network(without_self(finish(whole), regulators), by_type, confidence)
