"""What the regulation layers predict when regulators have other multiplicities than they were measured with.

    x(0) = m, the perturbed regulators at their new values
    change(t) = sd (y(x(t - 1)) - y(m))                       each gene's predicted change after t steps
    x(t) = max(m + change(t), 0), the perturbed regulators at their new values

Only the difference of two predictions counts, so that cells in which nothing is perturbed do not change. One step
reads direct effects; further steps let regulators that changed change their own targets. Each ensemble member goes its
own way, and the change is the mean of those that predict multiplicities. Where the slopes predict the levels of states
badly, a share of the change is association (perturb_association.py).

Letters: P members, C cells, N genes, R regulators, K states.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from grn.analysis.perturb_association import Association
from grn.cells.cells import Cells
from grn.model.signed.regulation import Regulation
from grn.model.signed.regulation_layer import RegulationLayer
from grn.regulation.states import States

NUMBERS = 2**25  # most numbers of one prediction (128 MiB)


@dataclass(frozen=True)
class Mechanism:
    """The layer that answers, with what it needs.

    layer: `pooled` where the levels of states follow their regulators, else the one that knows the states: as for the
    weights of the network (grn/networks/readouts/effect.py).   members: those that predict multiplicities.
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
