"""The attention of the regulation layer: the mean normalised weight w_ij = s_ij / n_i over cells, with its sign.

Heads are weighted by gain x amount, which is what a weight of theirs adds to the prediction.
Sign: positive = the regulator raises the target's expected multiplicity, as for the effect (effect.py). The attention
of the transformer's blocks has no such sign (block_attention.py).

Letters: P members, C cells, n targets at a time, R regulators, H heads.
"""

from __future__ import annotations

from torch import Tensor

from grn.model.regulation_layer import RegulationLayer, Scores
from grn.network.readouts.layer_means import mean_over_cells
from grn.network.weights import Network


def attention_network(layer: RegulationLayer, multiplicity: Tensor, basal: Tensor | None, labels: Tensor) -> Network:
    """The network whose weights are the layer's mean attention, |weight| <= 1. Arguments as for `effect_network`."""

    def attention(scores: Scores, m: Tensor) -> Tensor:
        mean = (1 / scores.norms(m)).mT @ m / len(m)  # mean of m_j / n_i: [P, H, n, R + 1]
        importance = scores.amount * scores.gain
        return (scores.score * mean * importance).sum(1)[..., :-1] / importance.sum(1)[..., :-1]

    # The layer cannot learn from a regulator that never varies: the score of such a regulator is chance.
    varies = (multiplicity.amax(0) > multiplicity.amin(0)).to(layer.unit)
    inputs = layer.inputs(multiplicity, basal)
    return mean_over_cells(layer, inputs, labels, weight=attention, unit=lambda m: varies, finish=lambda weight: weight)
