"""The effect read-out: what the regulation layers' attention does to the predictions, within states and between them.

effect: weight x value's effect on the predicted multiplicity, for one sd of the regulator, in sds of the target: the
slope of the prediction while the norm is held constant.

- *within*: differences between cells of one state alone, the mean over all states. The network of a state has its own
  slopes. A regulator counts there in so far as it varies in the state, up to about its usual sd: one that is off has no
  effect.
- *between*: the correlation of the target's levels with those of the regulator over the states.
- The weight of an edge is its effect within, unless the levels of held-out states follow their regulators
  (grn/regulation/levels.py): then differences between states are evidence, too, and the weight is that of `pooled`, the
  effect over all cells with a part of the correlation of levels.

Sign: positive = the regulator raises the target's expected multiplicity. In each head it is the sign of the score by
construction, whatever the initial values of training were; heads that disagree are added.

Letters: P members, C cells, n targets at a time, R regulators, H heads, K states.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from grn.model.regulation import Regulation
from grn.model.regulation_layer import Scores
from grn.network.readouts.layer_means import state_means, state_sds
from grn.network.weights import Network, balanced, without_self

OF_LEVELS = 0.6  # what the correlation of levels counts, in units of the effects, where levels are evidence


def effect_network(
    regulation: Regulation, multiplicity: Tensor, basal: Tensor | None, states: Tensor, levels: np.ndarray
) -> Network:
    """The network whose weights are effects, over all cells and for each state (by number, as text), `balanced`.

    multiplicity [C, R]: of the regulators.   basal [C]: of the basal gene, None: 1.   states [C, K].   levels [K, N]:
    mean multiplicity of every gene in each state.   The confidence is 0.5: nothing is known (see false_discovery.py).
    """
    regulators = regulation.regulators.cpu().numpy()

    def finished(weight: np.ndarray) -> np.ndarray:
        return without_self(balanced(without_self(weight, regulators)), regulators)

    within_layer = regulation.within
    m = within_layer.inputs(multiplicity, basal)
    cells = states.sum(0) / states.sum()
    slopes = state_means(within_layer, m, states, effect)
    sds = state_sds(m, states)
    usual = (cells @ sds.square()).sqrt()
    within = finished(np.einsum("k,kir->ir", cells.cpu().numpy(), slopes) * usual.cpu().numpy())
    unknown = np.broadcast_to(np.float32(0.5), within.shape)
    if regulation.by_state is None:
        return Network(within, {}, unknown, within, np.zeros_like(within))
    units = (usual * presence(sds, usual)).cpu().numpy()
    by_state = {str(k): finished(slopes[k] * units[k]) for k in range(len(slopes))}
    between = without_self(level_correlation(levels, regulators, cells.cpu().numpy()), regulators)
    weight = within
    if regulation.levels_follow:
        pooled = regulation.pooled
        m = pooled.inputs(multiplicity, basal)
        everyone = m.new_ones(len(m), 1)
        weight = finished(state_means(pooled, m, everyone, effect)[0] * state_sds(m, everyone)[0].cpu().numpy())
        scale = np.sqrt(np.square(weight).mean() / max(np.square(between).mean(), 1e-12))
        weight = (weight + OF_LEVELS * scale * between).astype(np.float32)
    return Network(weight, by_state, unknown, within, between)


def effect(scores: Scores, m: Tensor, share: Tensor) -> Tensor:
    """Slopes for one unit of the regulators, the mean over cells m [C, R + 1] with shares [C]: [P, n, R]."""
    mean_inverse_norm = (share[:, None] / scores.norms(m)).sum(-2)[..., None]  # [P, H, n, 1]
    return (scores.score * scores.amount * scores.gain * mean_inverse_norm)[..., :-1].sum(1)


def presence(sds: Tensor, usual: Tensor) -> Tensor:
    """0 for a regulator that does not vary in a state, 1 from half its usual sd on. sds [K, R], usual [R] -> [K, R].

    Slopes times sds would rank a regulator by how much of it there is in the state, where it is the slope that tells
    whether it regulates (docs/log.md).
    """
    return (2 * sds / usual.clamp(min=1e-6)).clamp(max=1)


def level_correlation(levels: np.ndarray, regulators: np.ndarray, cells: np.ndarray) -> np.ndarray:
    """Correlation of each gene's levels [K, N] with those of each regulator over states with shares [K]: [N, R]."""
    centred = (levels - cells @ levels) * np.sqrt(cells)[:, None]
    size = np.sqrt(np.square(centred).sum(0))
    unit = centred / np.where(size > 1e-9, size, 1)
    return (unit.T @ unit[:, regulators]).astype(np.float32)
