"""The effect read-out: what the regulation layers' attention does to the predictions, within states and between them.

effect: the slope of the prediction while the norm is held constant, for one sd of the regulator, in sds of the target.

- *within*: differences between cells of one state alone, the mean over all states. The network of a state has its own
  slopes; a regulator counts there in so far as it varies in the state.
- *between*: the correlation of the target's levels with those of the regulator over the states.
- The weight of an edge is its effect within, unless the levels of held-out states follow their regulators
  (grn/regulation/levels.py): then it is the effect over all cells (`pooled`) with a part of the correlation of levels.

Sign: positive = the regulator raises the target's expected multiplicity. In each head it is the sign of the score.

Letters: P members, C cells, n targets at a time, R regulators, H heads, K states.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from grn.model.signed.regulation import Regulation
from grn.model.signed.regulation_layer import Scores
from grn.networks.evidence.direct import Paths, PathsByState
from grn.networks.readouts.layer_means import state_means, state_sds
from grn.networks.weights import Network, balanced, without_self

OF_LEVELS = 0.6  # what the correlation of levels counts, in units of the effects, where levels are evidence


def effect_network(
    regulation: Regulation,
    multiplicity: Tensor,
    basal: Tensor | None,
    states: Tensor,
    levels: np.ndarray,
    paths: PathsByState | None = None,
) -> Network:
    """The network whose weights are effects, over all cells and for each state (by number, as text), `balanced`.

    multiplicity [C, R]: of the regulators.   basal [C]: of the basal gene, None: 1.   states [C, K].   levels [K, N]:
    mean multiplicity of every gene in each state.   paths: through other regulators, whose effects are
    taken out; None: weights are total effects. The confidence is 0.5: nothing is known (see false_discovery.py).
    """
    regulators = regulation.regulators.cpu().numpy()
    within_layer = regulation.within
    m = within_layer.inputs(multiplicity, basal)
    cells = states.sum(0) / states.sum()
    sds = state_sds(m, states)
    usual = (cells @ sds.square()).sqrt()
    slopes = state_means(within_layer, m, states, effect)
    over_states = np.einsum("k,kir->ir", cells.cpu().numpy(), slopes)
    mean = Effects.of(over_states, None if paths is None else paths.together)
    within = mean.weight(usual, regulators)
    unknown = np.broadcast_to(np.float32(0.5), within.shape)
    if regulation.by_state is None:
        total, indirect = mean.total_weight(usual, regulators), mean.indirect
        return Network(within, {}, unknown, within, np.zeros_like(within), total=total, indirect=indirect)
    of_states = [Effects.of(of, None if paths is None else paths.of_states[k]) for k, of in enumerate(slopes)]
    units = usual * presence(sds, usual)
    by_state = {str(k): of.weight(units[k], regulators) for k, of in enumerate(of_states)}
    between = without_self(level_correlation(levels, regulators, cells.cpu().numpy()), regulators)
    weight, total = within, mean.total_weight(usual, regulators)
    if regulation.levels_follow:
        pooled = regulation.pooled
        m = pooled.inputs(multiplicity, basal)
        everyone = m.new_ones(len(m), 1)
        factor = (pooled.unit / within_layer.unit)[:-1]
        of_all = state_means(pooled, m, everyone, effect)[0]
        mean = Effects.of(of_all, None if paths is None else paths.together.in_units(factor))
        usual = state_sds(m, everyone)[0]
        weight = with_levels(mean.weight(usual, regulators), between)
        total = mean.total_weight(usual, regulators)
        total = None if total is None else with_levels(total, between)
    return Network(
        weight,
        by_state,
        unknown,
        within,
        between,
        total=total,
        indirect=mean.indirect,
        type_indirect={str(k): of.indirect for k, of in enumerate(of_states) if of.indirect is not None},
    )


@dataclass(frozen=True)
class Effects:
    """Slopes [N, R] for one unit of the regulator, in sds of the target: total, and direct, the same without paths."""

    total: np.ndarray
    direct: np.ndarray

    @classmethod
    def of(cls, total: np.ndarray, paths: Paths | None) -> Effects:
        if paths is None:
            return cls(total, total)
        return cls(total, paths.direct(torch.as_tensor(total, device=paths.sd.device)).cpu().numpy())

    def weight(self, unit: Tensor, regulators: np.ndarray) -> np.ndarray:
        """The direct effects of `unit` [R] units of each regulator, balanced."""
        return balanced_weights(self.direct, unit, regulators)

    def total_weight(self, unit: Tensor, regulators: np.ndarray) -> np.ndarray | None:
        return None if self.direct is self.total else balanced_weights(self.total, unit, regulators)

    @property
    def indirect(self) -> np.ndarray | None:
        """The share of each total effect that is not direct; None where no paths were looked for."""
        if self.direct is self.total:
            return None
        return 1 - np.divide(self.direct, self.total, out=np.ones_like(self.total), where=self.total != 0)


def balanced_weights(slopes: np.ndarray, unit: Tensor, regulators: np.ndarray) -> np.ndarray:
    """Slopes [N, R] times units [R], `balanced`, float32; 0 where a gene meets itself. On the device of the units."""
    weights = torch.as_tensor(slopes, device=unit.device) * unit
    return balanced(without_self(weights, regulators)).cpu().numpy()


def effect(scores: Scores, m: Tensor, share: Tensor) -> Tensor:
    """Slopes for one unit of the regulators, the mean over cells m [C, R + 1] with shares [C]: [P, n, R]."""
    mean_inverse_norm = (share[:, None] / scores.norms(m)).sum(-2)[..., None]  # [P, H, n, 1]
    return (scores.score * scores.amount * scores.gain * mean_inverse_norm)[..., :-1].sum(1)


@torch.no_grad()
def cell_effects(
    regulation: Regulation, multiplicity: Tensor, basal: Tensor | None, states: Tensor, cell: int
) -> np.ndarray:
    """The weights in one cell, float32 [N, R]: the effects of the layer of its states, with the cell's own norms.

        w_ij(c) = [m_j(c) > 0] u_j mean_members sum_heads g_i a_j s_ij / (m_j n_i(c))

    m_j(c) is the multiplicity of regulator j in cell c, n_i(c) the norm of target i there, u_j the usual sd of the
    regulator within states: the change of the target's prediction, in its sds, that one usual sd of the regulator
    brings about in this cell; a regulator that the cell lacks has none. A cell that belongs to several states in part
    has the mean of their effects. Rows are `balanced`. Knock-offs, which know many cells, say nothing here.

    multiplicity [C, R], basal [C], states [C, K]: of all cells, as for `effect_network`.   cell: its position.
    """
    layer, regulators = regulation.within, regulation.regulators.cpu().numpy()
    m = layer.inputs(multiplicity, basal)
    usual = ((states.sum(0) / states.sum()) @ state_sds(m, states).square()).sqrt()
    own = slice(cell, cell + 1)
    slopes = state_means(layer, m[own], states[own], effect)
    slope = np.einsum("k,kir->ir", states[cell].cpu().numpy(), slopes)
    return balanced_weights(slope, usual * (multiplicity[cell] > 0), regulators)


def with_levels(weight: np.ndarray, between: np.ndarray) -> np.ndarray:
    """The weights [N, R] and OF_LEVELS of the correlations of levels [N, R], in the same unit."""
    scale = np.sqrt(np.square(weight).mean() / max(np.square(between).mean(), 1e-12))
    return (weight + OF_LEVELS * scale * between).astype(np.float32)


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
