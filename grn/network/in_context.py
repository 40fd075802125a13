"""The network of fitted regulation layers: effects within states and between them, with what knock-offs say of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from grn.data.cells import Cells
from grn.model.regulation import Regulation
from grn.network.false_discovery import edge_evidence, with_evidence
from grn.network.readouts.effect import effect_network
from grn.network.weights import Network
from grn.regulation.knockoffs import fit_with_knockoffs
from grn.regulation.levels import state_levels
from grn.regulation.linear import Penalties
from grn.regulation.states import States
from grn.regulation.training_cells import TrainingCells


def network_in_context(
    regulation: Regulation, cells: Cells, states: States, *, mean: Tensor, sd: Tensor, seed: int
) -> Network:
    """The effects of all cells and of each state, with confidences and q-values, computed on the layers' device.

    mean, sd [N]: of every gene, the units of the targets.   seed: of the knock-offs.
    """
    device, regulators = regulation.pooled.unit.device, regulation.regulators.cpu().numpy()
    measured = torch.as_tensor(cells.multiplicity[:, regulators].toarray(), device=device)
    basal = torch.as_tensor(cells.basal, device=device)
    membership = torch.as_tensor(states.membership, device=device)
    levels = state_levels(cells.multiplicity, states.membership)
    network = effect_network(regulation, measured, basal, membership, levels)
    network = replace(network, by_type={states.names[int(k)]: weight for k, weight in network.by_type.items()})

    layer = regulation.within
    memberships = None if regulation.by_state is None else states.membership
    fitted = TrainingCells.of(cells, np.arange(len(cells)), mean.cpu(), sd.cpu(), memberships)
    ranks = min(1, layer.members - 1)  # members predict multiplicities and ranks in turn
    values, of_ranks = (Penalties(layer.penalty[member], float(layer.ratio), 1.0) for member in (0, ranks))
    knockoffs = fit_with_knockoffs(replace(fitted, regulators=regulators), values, of_ranks, seed=seed, device=device)
    return with_evidence(network, *edge_evidence(knockoffs, regulators))


def summary(network: Network) -> list[str]:
    """What the knock-offs found, in a few sentences."""
    assert network.q is not None
    found = int((network.q <= 0.05).sum())
    lines = [f"{found} edges at a false discovery rate of 0.05 (of associations within states, not of causes)."]
    if network.type_q:
        each = ", ".join(f"{name} {int((q <= 0.05).sum())}" for name, q in list(network.type_q.items())[:12])
        lines.append(f"Edges of single states at this rate: {each}.")
    if not found and not any((q <= 0.05).any() for q in network.type_q.values()):
        lines.append("No edge stands out from chance within states: weights are small, and mean little.")
    return lines
