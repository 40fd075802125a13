"""The effect read-out: what the regulation layer's attention does to the predictions.

effect: weight x value's effect on the predicted multiplicity, for one sd of the regulator, in sds of the target: the
slope of the prediction while the norm is held constant. For a cell type, one sd is that over its own cells: a regulator
that does not vary there has no effect there.
Sign: positive = the regulator raises the target's expected multiplicity. In each head it is the sign of q_i.k_j by
construction, whatever the initial values of training were; heads that disagree are added.

Letters: P members, C cells, n targets at a time, R regulators, H heads.
"""

from __future__ import annotations

from torch import Tensor

from grn.model.regulation_layer import RegulationLayer, Scores
from grn.network.readouts.layer_means import mean_over_cells
from grn.network.weights import Network, balanced


def effect_network(layer: RegulationLayer, multiplicity: Tensor, basal: Tensor | None, labels: Tensor) -> Network:
    """The network whose weights are effects, over all cells and for each cell type, `balanced`.

    multiplicity [C, R]: of the regulators.   basal [C]: of the basal gene, None: 1.   labels [C]: cell type index,
    -1 unknown.
    """

    def effect(scores: Scores, m: Tensor) -> Tensor:
        mean_inverse_norm = (1 / scores.norms(m)).mean(-2)[..., None]  # [P, H, n, 1]
        return (scores.score * scores.amount * scores.gain * mean_inverse_norm)[..., :-1].sum(1)

    def sd(m: Tensor) -> Tensor:
        return m[:, :-1].std(0, correction=0)

    inputs = layer.inputs(multiplicity, basal)
    return mean_over_cells(layer, inputs, labels, weight=effect, unit=sd, finish=balanced)
