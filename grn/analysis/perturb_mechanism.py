"""What the regulation layers predict when regulators have other multiplicities than they were measured with.

    x(0) = m, the perturbed regulators at their new values
    change(t) = sd (y(x(t - 1)) - y(m))                       each gene's predicted change after t steps
    x(t) = max(m + change(t), 0), the perturbed regulators at their new values

Only the difference of two predictions counts, so that cells in which nothing is perturbed do not change. One step
reads direct effects; further steps let regulators that changed change their own targets. Each ensemble member goes its
own way, and the change is the mean of those that predict multiplicities. Where the slopes predict the levels of states
badly, a share of the change is association, which goes with a regulator in cells and from state to state: a regulator
that a handful of cells have has slopes of chance, while its association with a gene may still be known. Association
holds whatever else differs between cells, so it is never propagated, and it counts the less, the better the slopes
predict the levels of states that were left out:

    effect = (1 - share) of slopes + share of association        share = e^4 / 2, e: error of the levels

Association is the mean of two, on the scale of the slopes: the correlation over cells, and its part between states. At
e = 1 slopes know nothing of levels, and association counts as much as they do. The power and the two parts ranked the
targets of SERGIO's regulators best with at least 90 % of the signs right, on other draws than those of docs/perturb.md.

Letters: P members, C cells, N genes, R regulators, K states.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from grn.cells.cells import Cells
from grn.model.signed.regulation import Regulation
from grn.model.signed.regulation_layer import RegulationLayer
from grn.networks.readouts.effect import effect
from grn.networks.readouts.layer_means import state_means, state_sds
from grn.networks.weights import without_self
from grn.regulation.levels import state_levels
from grn.regulation.states import States

POWER = 4
NUMBERS = 2**25  # most numbers of one prediction (128 MiB)


@dataclass(frozen=True)
class Association:
    """share: of an effect that association makes up, 0 to 0.5.   slopes [N, R]: change of each gene, in its sds, for
    one unit of the multiplicity of each regulator; 0 where a gene meets itself."""

    share: float
    slopes: Tensor

    @classmethod
    def of(cls, regulation: Regulation, cells: Cells, states: States, sd: Tensor) -> Association | None:
        """None where levels do not follow their regulators: they may be composition then. sd [N]: of the genes."""
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


@dataclass(frozen=True)
class Mechanism:
    """layer: `pooled` where the levels of states follow their regulators, else the one that knows the states, as for
    the weights of the network (grn/networks/readouts/effect.py).   members: those that predict multiplicities.
    sd [N]: of every gene's multiplicity.   association: None where it does not count.
    """

    layer: RegulationLayer
    members: Tensor
    sd: Tensor
    association: Association | None = None

    @classmethod
    def of(cls, regulation: Regulation, sd: Tensor, association: Association | None = None) -> Mechanism:
        layer = regulation.pooled if regulation.levels_follow else regulation.within
        members = (layer.predicts_ranks == 0).nonzero()[:, 0]
        if not len(members):
            members = torch.arange(layer.members)
        return cls(layer, members, sd, association)

    def memberships(self, states: States) -> Tensor:
        """How much each cell belongs to each state of the layer, [C, K]."""
        found = torch.as_tensor(states.membership)
        return found if self.layer.states > 1 else torch.ones(len(found), 1)

    @torch.no_grad()
    def effects(
        self, measured: Tensor, basal: Tensor, states: Tensor, fixed: Mapping[int, Tensor], steps: int
    ) -> Tensor:
        """Changes of the predictions in sds of each gene, [P, C, N], for few cells at a time.

        measured [C, R]: multiplicities of the regulators.   basal [C].   states [C, K].   fixed: column of a regulator
        -> its new multiplicities [C].   steps: at least 1.
        """
        before = self._predictions(measured, basal, states)
        columns = list(fixed)
        values = torch.stack(list(fixed.values()), 1).to(measured)
        own = self.layer.regulators
        x = measured.clone()
        x[:, columns] = values
        effect = self._predictions(x, basal, states) - before
        for _ in range(steps - 1):
            x = (measured + effect[..., own] * self.sd[own]).clamp(min=0)
            x[..., columns] = values
            effect = self._predictions(x, basal, states) - before
        if self.association is None:
            return effect
        of_levels = (values - measured[:, columns]) @ self.association.slopes[:, columns].mT.to(measured)
        return torch.lerp(effect, of_levels.expand_as(effect), self.association.share)

    def _predictions(self, measured: Tensor, basal: Tensor, states: Tensor) -> Tensor:
        """measured [C, R], or [P, C, R] with a row for each member -> [P, C, N]."""
        of_members = measured if measured.ndim == 3 else measured.expand(len(self.members), *measured.shape)
        found = []
        for member, m in zip(self.members.tolist(), of_members, strict=True):
            inputs = self.layer.inputs(m, basal)
            found.append(self.layer.predict(inputs, states, slice(member, member + 1))[0])
        return torch.stack(found)

    def slices(self, cells: int) -> Iterator[slice]:
        """So many cells at a time that the predictions for them fit into NUMBERS."""
        step = max(1, NUMBERS // (len(self.members) * self.layer.genes))
        return (slice(first, min(first + step, cells)) for first in range(0, cells, step))


def cell_inputs(mechanism: Mechanism, cells: Cells, states: States, rows: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
    """Multiplicities of the regulators [C, R], basal multiplicities [C] and memberships [C, K] of some cells."""
    regulators = mechanism.layer.regulators.numpy()
    measured = torch.as_tensor(cells.multiplicity[rows][:, regulators].toarray())
    return measured, torch.as_tensor(cells.basal[rows]), mechanism.memberships(states)[rows]
