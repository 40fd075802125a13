"""The read-outs of the regulation layer: its signed attention, and what that attention does to the predictions.

attention: w_ij = s_ij / n_i, the mean over cells, heads weighed by what their weights are worth (gain x amount).
effect: weight x value's effect on the predicted multiplicity, for one sd of the regulator, in sds of the target: the
slope of the prediction at the yardstick that the cells have.
Sign of both: positive = the regulator raises the target's expected multiplicity. It is the sign of q_i.k_j, by
construction, whatever signs the training started from.
Both are means over cells and members, computed for some targets at a time: no table of cells x N x R.
Letters: P members, C cells, N genes, R regulators, H heads.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from grn.network.readout import Network, balanced, members_agreement, without_self
from grn.regulation import Regulation, Scores

SCORES = 2**26  # most numbers of one array: members x heads x targets x (regulators or cells)


def effect_network(layer: Regulation, regulators: Tensor, basal: Tensor | None, kinds: Tensor, sd: Tensor) -> Network:
    """regulators [C, R]: multiplicities.   basal [C].   kinds [C]: cell type of each cell, -1 unknown.   sd [N]."""
    share = (sd[layer.regulators] / layer.unit[:-1]).to(layer.unit)  # one sd of a regulator, in its unit
    # What never varies taught the layer nothing; its sd of 1 is a stand-in, its score chance.
    share = share * (regulators.amax(0) > regulators.amin(0)).to(share)

    def of_cells(said: Scores, m: Tensor) -> Tensor:
        slope = (1 / said.norms(m)).mean(-2)[..., None]  # [P, H, n, 1]
        return (said.score * said.amount * said.gain * slope)[..., :-1].sum(1) * share

    return _means(layer, layer.inputs(regulators, basal), kinds, of_cells, balance=True)


def attention_network(layer: Regulation, regulators: Tensor, basal: Tensor | None, kinds: Tensor) -> Network:
    """Arguments as for `effect_network`. |weight| <= 1."""

    def of_cells(said: Scores, m: Tensor) -> Tensor:
        mean = (1 / said.norms(m)).mT @ m / len(m)  # mean of m_j / n_i: [P, H, n, R + 1]
        worth = said.amount * said.gain
        return (said.score * mean * worth).sum(1)[..., :-1] / worth.sum(1)[..., :-1]

    return _means(layer, layer.inputs(regulators, basal), kinds, of_cells, balance=False)


def _means(layer: Regulation, m: Tensor, kinds: Tensor, of_cells, *, balance: bool) -> Network:
    """The mean over all cells, and over the cells of each type, of every member; then over members."""
    types = [int(kind) for kind in kinds.unique()]
    shape = (layer.genes, len(layer.regulators))
    tables = {kind: np.empty(shape, np.float32) for kind in types}
    whole, confidence = np.empty(shape, np.float32), np.empty(shape, np.float32)
    shares = {kind: float((kinds == kind).float().mean()) for kind in types}
    step = max(1, SCORES // (layer.members * layer.heads * max(shape[1], len(m))))
    with torch.no_grad():
        for start in range(0, shape[0], step):
            genes = slice(start, min(start + step, shape[0]))
            said = layer.scores(genes)
            total: Tensor | float = 0.0
            for kind in types:
                part = of_cells(said, m[kinds == kind])
                total = total + shares[kind] * part
                tables[kind][genes] = part.mean(0).cpu().numpy()
            assert isinstance(total, Tensor)
            whole[genes] = total.mean(0).cpu().numpy()
            confidence[genes] = members_agreement(total).cpu().numpy()
    regulators = layer.regulators.cpu().numpy()
    finish = balanced if balance else (lambda weight: weight)
    by_type = {kind: without_self(finish(tables[kind]), regulators) for kind in types if kind >= 0}
    return Network(without_self(finish(whole), regulators), by_type, confidence)
