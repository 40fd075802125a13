"""The attention of the regulation layer: the mean normalised weight w_ij = s_ij / n_i over cells, with its sign.

Heads are weighted by gain x amount, which is what a weight of theirs adds to the prediction.
Sign: positive = the regulator raises the target's expected multiplicity, as for the effect (effect.py). The attention
of the transformer's blocks has no such sign (block_attention.py).

Letters: P members, C cells, n targets at a time, R regulators, H heads, K states.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from grn.model.signed.regulation import Regulation
from grn.model.signed.regulation_layer import Scores
from grn.networks.readouts.layer_means import state_means, state_sds
from grn.networks.weights import Network, without_self


def attention_network(regulation: Regulation, multiplicity: Tensor, basal: Tensor | None, states: Tensor) -> Network:
    """The network whose weights are the layer's mean attention, |weight| <= 1: over all cells, and for each state (by
    number, as text). Arguments as for `effect_network`."""
    layer = regulation.within
    m = layer.inputs(multiplicity, basal)
    # The layer cannot learn from a regulator that never varies: the score of such a regulator is chance.
    varies = (state_sds(m, states) > 0).to(m).cpu().numpy()
    regulators = layer.regulators.cpu().numpy()
    of_states = state_means(layer, m, states, attention) * varies[:, None]
    by_state = {str(k): without_self(weight, regulators) for k, weight in enumerate(of_states)}
    share = (states.sum(0) / states.sum()).cpu().numpy()
    overall = np.einsum("k,kir->ir", share, of_states).astype(np.float32)
    unknown = np.broadcast_to(np.float32(0.5), overall.shape)
    return Network(overall, by_state if len(by_state) > 1 else {}, unknown)


def attention(scores: Scores, m: Tensor, share: Tensor) -> Tensor:
    """Mean attention over cells m [C, R + 1] with shares [C]: [P, n, R]."""
    mean = (share[:, None] / scores.norms(m)).mT @ m  # mean of m_j / n_i: [P, H, n, R + 1]
    importance = scores.amount * scores.gain
    return (scores.score * mean * importance).sum(1)[..., :-1] / importance.sum(1)[..., :-1]
