"""The network of fitted regulation layers: effects within states and between them, with what knock-offs say of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from grn.cells.cells import Cells
from grn.model.signed.regulation import Regulation
from grn.model.signed.regulation_layer import RegulationLayer
from grn.networks.evidence.direct import Paths, PathsByState, share_of_counting
from grn.networks.evidence.false_discovery import certain_pairs, edge_evidence, with_evidence
from grn.networks.readouts.effect import effect_network
from grn.networks.weights import Network
from grn.regulation.cell_table import TrainingCells
from grn.regulation.knockoffs import KnockoffFit, fit_with_knockoffs
from grn.regulation.levels import state_levels
from grn.regulation.linear import Penalties
from grn.regulation.states import States


def network_in_context(
    regulation: Regulation, cells: Cells, states: States, *, mean: Tensor, sd: Tensor, seed: int
) -> Network:
    """The effects of all cells and of each state, with confidences and q-values, computed on the layers' device.

    They are direct effects (see direct.py) where the cells say how they were counted, else total ones.
    mean, sd [N]: of every gene, the units of the targets.   seed: of the knock-offs.
    """
    device, regulators = regulation.pooled.unit.device, regulation.regulators.cpu().numpy()
    measured = torch.as_tensor(cells.multiplicity[:, regulators].toarray(), device=device)
    basal = torch.as_tensor(cells.basal, device=device)
    membership = torch.as_tensor(states.membership, device=device)
    levels = state_levels(cells.multiplicity, states.membership)

    layer = regulation.within
    memberships = None if regulation.by_state is None else states.membership
    fitted = TrainingCells.of(cells, np.arange(len(cells)), mean.cpu(), sd.cpu(), memberships)
    ranks = min(1, layer.members - 1)  # members predict multiplicities and ranks in turn
    values, of_ranks = (Penalties(layer.penalty[member], float(layer.ratio), 1.0) for member in (0, ranks))
    fit = fit_with_knockoffs(replace(fitted, regulators=regulators), values, of_ranks, seed=seed, device=device)
    paths = None
    if cells.counting is not None:
        noise = cells.counting.variance(cells.multiplicity[:, regulators])
        paths = paths_between(fit, layer, measured, membership, noise, sd)
        fit = replace(fit, slopes=paths.direct(fit.slopes))
    network = effect_network(regulation, measured, basal, membership, levels, paths)
    network = network.with_names(states.names)
    return with_evidence(network, *edge_evidence(fit, regulators))


def paths_between(
    fit: KnockoffFit, layer: RegulationLayer, measured: Tensor, membership: Tensor, noise: sp.csr_matrix, sd: Tensor
) -> PathsByState:
    """The paths through other regulators: as certain as the pairs are that they consist of, in each state.

    measured [C, R]: multiplicities of the regulators.   noise [C, R]: variance of each by counting.
    """
    unit, own, states = layer.unit[:-1], layer.regulators, membership
    if layer.states == 1:
        states = states.new_ones(len(states), 1)
    of_regulators = sd.to(unit)[own] / unit
    share = states / states.sum(0).clamp(min=1e-9)
    together, of_states = certain_pairs(fit, own.cpu().numpy())
    found = []
    for k, (cells, slopes) in enumerate(zip(share.mT, fit.slopes, strict=True)):
        among = of_regulators[:, None] * slopes.to(unit)[own]
        of_counting = torch.as_tensor(noise.T @ cells.cpu().numpy(), device=unit.device).to(unit) / unit.square()
        copied = share_of_counting(measured / unit, cells, of_counting, among)
        found.append(Paths(of_states[k] if of_states else together, copied, own, of_regulators))
    mean = sum(part * each.by_counting for part, each in zip(fit.share.to(unit), found, strict=True))
    return PathsByState(Paths(together, mean, own, of_regulators), found)


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
