"""What the product was before one model: ridge regression within the states of cells (their types, where they are
known), with shared slopes, a deviation for each state, and penalties that held-out cells choose.

    y_i = sum_j (beta_ij + sum_z p_z delta_ijz) x_j          p_z: how much the cell belongs to state z

is one ridge regression with the features [x, rho x p_1, ..., rho x p_K]: beta is penalised by lambda_i, the deviations
by lambda_i / rho^2. Whether states deviate is decided once for all targets. Where they do, the fit is the mean of one
with a small and one with a large rho. Effects are of a usual sd of each regulator, with rows balanced as those of grn
are. It reads cells, labels and depth as grn does, so it needs this project.

Letters: C cells, N genes, R regulators, K states.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from ours import Networks, adata_of, configuration
from sets import NetworkSet

from grn.cells.load import load_cells
from grn.networks.weights import balanced, presence
from grn.regulation.cell_table import CellTable
from grn.regulation.linear import slopes_on, without
from grn.regulation.regressions import columns_of, held_out_penalties, sampled
from grn.regulation.states import states_of
from peers.peer import edge_table

SETTINGS = {"revision": 1}
RATIO = 1.2  # rho, where states deviate
FREEDOM = (1.0, 2.5)  # times rho: the ratios that a fit is the mean of
TOLERANCE = 0.25  # standard errors within which the fit with deviations counts as equally good


def infer(one: NetworkSet, seed: int, device: str = "cpu") -> pd.DataFrame:
    return infer_in_context(one, seed, device).overall


def infer_in_context(one: NetworkSet, seed: int, device: str = "cpu") -> Networks:
    """Networks of a set and of its cell types, or of the states that are found in a set without labels."""
    cells, _ = load_cells(configuration(one, seed, device, {}).data, seed=seed, adata=adata_of(one))
    states = states_of(cells, seed)
    table = CellTable.of(cells, np.arange(len(cells)), states.membership, device=device)
    rows = sampled(table, seed)
    own = torch.as_tensor(table.regulators, device=table.device)
    membership, depth = table.membership[rows].double(), table.inputs[rows, -1:].double()
    several = membership.shape[1] > 1
    x = without(membership)(table.inputs[rows, :-1].double())
    y = columns_of(table, rows, x).each(without(membership))

    def features(ratio: float) -> torch.Tensor:
        shares = torch.cat([torch.ones_like(membership[:, :1]), ratio * membership], 1) if ratio else None
        return x if shares is None else (shares[:, :, None] * x[:, None]).flatten(1)

    penalty, error = held_out_penalties(table, x, y, rows, seed)
    ratio = 0.0
    if several:
        with_states, other = held_out_penalties(table, features(RATIO), y, rows, seed)
        worse = other - error
        if float(worse.mean()) <= TOLERANCE * float(worse.std(correction=0)) / len(worse) ** 0.5:
            penalty, ratio = with_states, RATIO
    rest = without(torch.cat([membership, depth - depth.mean()], 1))
    slopes = 0.0
    for factor in FREEDOM if ratio else (1.0,):
        found = slopes_on(rest(features(factor * ratio)), y.each(rest), own, factor * penalty if ratio else penalty)
        shared, *deviations = found.unflatten(1, (-1, x.shape[1])).unbind(1)
        of_states = [shared + factor * ratio * each for each in deviations] or [shared] * membership.shape[1]
        slopes = slopes + torch.stack(of_states) / (len(FREEDOM) if ratio else 1)

    share = membership.sum(0) / membership.sum()
    sds = ((membership / membership.sum(0).clamp(min=1e-9)).mT @ x.square()).sqrt()
    usual = (share @ sds.square()).sqrt()
    regulators = [cells.vocabulary[gene] for gene in table.regulators]

    def edges(weight: torch.Tensor) -> pd.DataFrame:
        return edge_table(balanced(weight).mT.cpu().numpy(), cells.vocabulary, regulators)

    units = usual * presence(sds, usual)
    by_type = {name: edges(slopes[k] * units[k]) for k, name in enumerate(states.names)} if several else {}
    return Networks(edges(torch.einsum("k,kir->ir", share, slopes) * usual), by_type, states)
