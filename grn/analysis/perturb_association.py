"""What goes with a regulator in cells and from state to state, for the part of a perturbation that slopes do not know.

Slopes are fitted cell by cell, each beside those of all other regulators. A regulator that a handful of cells have has
slopes of chance, while its association with a gene may still be known, above all that of their levels in the states,
each the mean of many cells. Association holds direct and indirect effects, with whatever else differs between cells, so
it is never propagated, and it counts the less, the better the slopes predict the levels of states that were left out:

    effect = (1 - share) of slopes + share of association        share = e^4 / 2, e: error of the levels

Association is the mean of two, on the scale of the slopes: the correlation over cells, and its part between states. At
e = 1 slopes know nothing of levels, and association counts as much as they do. The power and the two parts are those
that ranked the targets of SERGIO's regulators best with at least 90 % of the signs right, on other draws than those of
docs/perturb.md.

Letters: C cells, N genes, R regulators, K states.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from grn.cells.cells import Cells
from grn.model.signed.regulation import Regulation
from grn.networks.readouts.effect import effect
from grn.networks.readouts.layer_means import state_means, state_sds
from grn.networks.weights import without_self
from grn.regulation.levels import state_levels
from grn.regulation.states import States

POWER = 4


@dataclass(frozen=True)
class Association:
    """share: of an effect that association makes up, 0 to 0.5.   slopes [N, R]: change of each gene, in its sds, for
    one unit of the multiplicity of each regulator; 0 where a gene meets itself."""

    share: float
    slopes: Tensor

    @classmethod
    def of(cls, regulation: Regulation, cells: Cells, states: States, sd: Tensor) -> Association | None:
        """That of all cells of a run and their states; None where levels do not follow their regulators: what they hold
        may be composition then. sd [N]: of the genes."""
        if not regulation.levels_follow or regulation.level_error is None:
            return None
        regulators, unit = regulation.regulators.cpu().numpy(), sd.numpy()
        measured = cells.multiplicity[:, regulators].toarray()
        sizes = states.membership.mean(0)
        levels = state_levels(cells.multiplicity, states.membership)
        differences = levels - sizes @ levels
        between = (differences * sizes[:, None]).T @ differences[:, regulators]
        means = np.asarray(cells.multiplicity.mean(0)).ravel()
        every = cells.multiplicity.T @ measured / len(measured) - np.outer(means, means[regulators])

        layer = regulation.pooled
        inputs = layer.inputs(torch.as_tensor(measured), torch.as_tensor(cells.basal))
        everyone = inputs.new_ones(len(inputs), 1)
        slopes = state_means(layer, inputs, everyone, effect)[0] * state_sds(inputs, everyone)[0].numpy()
        size = _size(without_self(slopes, regulators))
        parts = [without_self(each / np.outer(unit, unit[regulators]), regulators) for each in (every, between)]
        mean = sum(each / (2 * max(_size(each), 1e-9)) for each in parts)
        found = torch.as_tensor(size * mean / unit[regulators], dtype=torch.float32)
        return cls(regulation.level_error**POWER / 2, found)


def _size(values: np.ndarray) -> float:
    return float(np.sqrt(np.square(values).mean()))
