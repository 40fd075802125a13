"""The effects in one cell: those of the layer of its states, with the norms that the cell itself has.

    w_ij(c) = [m_j(c) > 0] u_j mean_members sum_heads g_i a_j s_ij / (m_j n_i(c))

m_j(c) is the multiplicity of regulator j in cell c, n_i(c) the norm of target i there, u_j the usual sd of the
regulator within states. So w_ij(c) is the change of the target's prediction, in its sds, that one usual sd of the
regulator brings about in this cell; a regulator that the cell lacks has none. A cell that belongs to several states in
part has the mean of their effects. As in the network of a state, rows are `balanced`. Knock-offs, which know many
cells, say nothing here.

Letters: C cells, N genes, R regulators, K states.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from grn.model.signed.regulation import Regulation
from grn.networks.readouts.effect import balanced_weights, effect
from grn.networks.readouts.layer_means import state_means, state_sds


@torch.no_grad()
def cell_effects(
    regulation: Regulation, multiplicity: Tensor, basal: Tensor | None, states: Tensor, cell: int
) -> np.ndarray:
    """The weights in one cell, float32 [N, R].

    multiplicity [C, R], basal [C], states [C, K]: of all cells, as for `effect_network`.   cell: its position.
    """
    layer, regulators = regulation.within, regulation.regulators.cpu().numpy()
    m = layer.inputs(multiplicity, basal)
    usual = ((states.sum(0) / states.sum()) @ state_sds(m, states).square()).sqrt()
    own = slice(cell, cell + 1)
    slopes = state_means(layer, m[own], states[own], effect)
    slope = np.einsum("k,kir->ir", states[cell].cpu().numpy(), slopes)
    return balanced_weights(slope, usual * (multiplicity[cell] > 0), regulators)
