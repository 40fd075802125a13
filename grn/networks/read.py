"""The network of a trained model: what raising a regulator does to the expected multiplicity of
each gene.

The weight of an edge is the mean over cells and members of the derivative of a signed block's
prediction, the change of its norm in it: of block 1 where the target is a regulator, of block 2
elsewhere. What genes read of the basal gene stays as it is; it is part of the total effect, as is
what goes through other regulators. So the sign of a weight is that of the trained model's own
response, in every edge.

Letters: P members, C cells, N genes, n targets at a time, R regulators, S states.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from grn.cells.cells import Cells
from grn.cells.preprocessing.moments import seen_together
from grn.edges.weights import Network, presence, row_factors, without_self
from grn.evidence.caused import caused_effects
from grn.evidence.levels import state_levels
from grn.evidence.states import States
from grn.model.derivatives import in_parts
from grn.model.regulation import Model
from grn.networks.intervened import Merge
from grn.runtime.processes import ALONE, Processes

CELLS = 1024  # of a state, whose derivatives are averaged
OF_CONTEXT = 64  # of these, for what goes through the basal gene: the mean settles soon


@dataclass(frozen=True)
class Slopes:
    """Of some cells: direct [P, N, R], for a unit of the regulator as the target's block reads it;
    others [N, R], the members' mean of what goes through other regulators and the context, for a
    unit of its multiplicity.
    """

    direct: Tensor
    others: Tensor


@torch.no_grad()
def slopes_of_states(
    model: Model, cells: Cells, states: States, seed: int, processes: Processes = ALONE
) -> list[tuple[Slopes, Tensor]]:
    """Return each state's slopes, and the sds [R] of the regulators as the model reads them, in the
    first process.

    processes: that call this together, with the same model, of which each reads some of the states.
    """
    model = model.eval()
    device, regulators = model.mean.device, model.regulators.cpu().numpy()
    measured = torch.as_tensor(cells.multiplicity[:, regulators].toarray())
    generator, membership = np.random.default_rng(seed), torch.as_tensor(states.membership)
    chosen = [
        np.sort(generator.permutation(np.flatnonzero(states.membership[:, state] > 0))[:CELLS])
        for state in range(len(states))
    ]

    def of_state(state: int) -> tuple[Tensor, ...]:
        rows = chosen[state]
        m = model.inputs(
            measured[rows].to(device), torch.as_tensor(cells.basal[rows], device=device)
        )
        weight = membership[rows, state].to(m)
        weight = weight / weight.sum().clamp(min=1e-9)
        slopes = slopes_of(model, m, state, weight)
        sd = (weight @ (m - weight @ m).square()).sqrt()[:-1]
        return tuple(
            each if processes.world == 1 else each.cpu()
            for each in (slopes.direct, slopes.others, sd)
        )

    read = [
        [each.to(device) for each in state] for state in processes.spread(of_state, len(states))
    ]
    return [(Slopes(direct, others), sd) for direct, others, sd in read]


@torch.no_grad()
def read_network(
    model: Model, cells: Cells, states: States, seed: int, processes: Processes = ALONE
) -> Network:
    """Return the network over all cells and that of each state, on the device of the model; without
    q-values.

    Where there were interventions, it is over the genes of a `Merge`. seed: of the choice of cells,
    where there are many.
    processes: of which this is the first; the others call `slopes_of_states`.
    """
    device, regulators = model.mean.device, model.regulators.cpu().numpy()
    size = states.membership.sum(0, dtype=np.float64)
    share = torch.as_tensor(size / size.sum()).to(model.mean)
    caused = None if cells.interventions is None else caused_effects(cells, states)
    merge = Merge.of(cells, regulators, caused)
    slopes, sds = zip(*slopes_of_states(model, cells, states, seed, processes), strict=True)
    of_states = torch.stack(sds)
    usual = (share @ of_states.square()).sqrt()
    between = level_correlation(
        state_levels(cells.multiplicity, states.membership), regulators, size / size.sum()
    )
    between = without_self(between, regulators) if len(states) > 1 else np.zeros_like(between)
    mean = Slopes(
        sum(part * each.direct for part, each in zip(share, slopes, strict=True)),
        sum(part * each.others for part, each in zip(share, slopes, strict=True)),
    )
    owner = states.membership.argmax(1)
    both = [
        seen_together(cells.multiplicity[owner == state], regulators, device)
        for state in range(len(states))
    ]
    both = [without_self(each, regulators) for each in both]
    network = _network(model, mean, usual, between, np.stack(both).sum(0, dtype=np.int32), merge)
    if len(states) == 1:
        return network
    units = usual * presence(of_states, usual)
    networks = {}
    for name, slopes_in_state, unit, seen in zip(states.names, slopes, units, both, strict=True):
        networks[name] = _network(model, slopes_in_state, unit, between, seen, merge)
    return replace(network, of_states=networks)


def slopes_of(model: Model, m: Tensor, state: int, share: Tensor) -> Slopes:
    """Return the slopes in cells m [C, R + 1] of one state, each of which counts its share [C]."""
    first, second = model.blocks
    regulators, members = len(model.counting), model.config.members
    states = m.new_zeros(len(m), len(model.share))
    states[:, state] = 1
    among = in_parts(model, first, m, state, share)  # [P, R, R]
    corrected = model.corrected(m, model.among(m, states) if model.layered else None, states)
    direct = in_parts(model, second, corrected, state, share)  # [P, T, R]

    all_direct = m.new_zeros(members, model.genes, regulators)
    all_direct[:, model.regulators] = among
    all_direct[:, model.targets] = direct
    counting = model.counting if model.layered else torch.zeros_like(model.counting)
    # through the other regulators
    through = direct @ ((counting / model.unit[:-1])[:, None] * among)
    some = slice(None, None, -(-len(m) // OF_CONTEXT))
    context = through_context(model, m[some])
    others = m.new_zeros(model.genes, regulators)
    others[model.targets] = (through + context).mean(0)
    return Slopes(all_direct, others)


def through_context(model: Model, m: Tensor) -> Tensor:
    """Return what a unit of each regulator adds to the targets through the basal gene, the mean
    over cells: [P, T, R].

    A target reads what the basal gene hands on linearly, and that is a function of the regulators.
    """
    with torch.enable_grad():
        seen = model.seen(m).detach().requires_grad_()
        summary = model.basal.summary(seen).mean(1)  # [P, Z]
        one_each = torch.eye(summary.shape[1]).to(summary)[:, None].expand(-1, len(summary), -1)
        slope = torch.stack(
            [
                torch.autograd.grad(summary, seen, one, retain_graph=True)[0].sum(1)
                for one in one_each
            ]
        )
    return model.basal.gate[:, None, None] * (model.basal.query @ slope[..., :-1].movedim(0, 1))


def _network(
    model: Model,
    slopes: Slopes,
    units: Tensor,
    between: np.ndarray,
    cells: np.ndarray,
    merge: Merge | None = None,
) -> Network:
    """Return the network of slopes, for `units` [R] of each regulator."""
    regulators = model.regulators.cpu().numpy()
    weights, observed = slopes.direct * units, None
    if merge is not None:
        merged = merge.map(model.mean, model.sd, units, model.regulators)
        observed = merge.observed(weights.mean(0).float().cpu().numpy())
        weights, between, cells = merged(weights), merge.columns(between), merge.columns(cells)
    mean = weights.mean(0)
    factor = row_factors(mean)
    spread = weights.std(0) if len(weights) > 1 else torch.zeros_like(mean)
    # A target's direct effect for a unit of the multiplicity, of which block 2 reads a part.
    direct = slopes.direct.mean(0)
    direct = torch.where(
        model.is_regulator[:, None],
        direct,
        direct * ((1 - model.counting) / model.unit[:-1] if model.layered else 1 / model.unit[:-1]),
    )
    others = slopes.others
    if merge is not None:
        direct = merged(direct * units)
        others = merged(others * units)
        units = units.new_ones(len(merge.first))
        regulators = merge.regulators
    indirect = others.abs() / (others.abs() + direct.abs()).clamp(min=1e-30)
    total = (direct + others) * units

    def table(values: Tensor) -> np.ndarray:
        return without_self(values.float().cpu().numpy(), regulators)

    return Network(
        weight=table(mean * factor),
        sd=table(spread * factor),
        total=table(total * row_factors(total)),
        indirect=table(indirect),
        between=between,
        cells=cells,
        observed=observed,
    )


def level_correlation(levels: np.ndarray, regulators: np.ndarray, cells: np.ndarray) -> np.ndarray:
    """Return the correlation of each gene's levels [S, N] with those of each regulator over states
    with shares [S]: [N, R].
    """
    centred = (levels - cells @ levels) * np.sqrt(cells)[:, None]
    size = np.sqrt(np.square(centred).sum(0))
    unit = centred / np.where(size > 1e-9, size, 1)
    return (unit.T @ unit[:, regulators]).astype(np.float32)


@torch.no_grad()
def read_cell(model: Model, cells: Cells, states: States, cell: int) -> np.ndarray:
    """Return the weights in one cell, float32 [N, R].

    They are the derivatives at the cell's own multiplicities, for a usual sd of each regulator
    within states; 0 for a regulator that the cell lacks. A cell that belongs to several states in
    part has the mean of their effects. Knock-offs, which know many cells, say nothing here.

    cell: its position.
    """
    model = model.eval()
    device, regulators = model.mean.device, model.regulators.cpu().numpy()
    measured = torch.as_tensor(cells.multiplicity[[cell]][:, regulators].toarray(), device=device)
    m = model.inputs(measured, torch.as_tensor(cells.basal[[cell]], device=device))
    total = torch.zeros(model.genes, len(regulators), device=device)
    for state in np.flatnonzero(states.membership[cell] > 0).tolist():
        of_state = slopes_of(model, m, state, m.new_ones(1)).direct.mean(0)
        total += float(states.membership[cell, state]) * of_state
    total = total * (measured[0] > 0)
    return without_self((total * row_factors(total)).float().cpu().numpy(), regulators)
