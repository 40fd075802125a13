"""What the product was before one model: ridge regression within the states of cells (their types, where they are
known), with shared slopes, a deviation for each state, and penalties that held-out cells choose.

The mean of a regression on multiplicities and one on their ranks; effects of a usual sd of each regulator, with rows
balanced as those of grn are. It reads cells, labels and depth as grn does, so it needs this project.
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
from grn.regulation.linear import slopes_of_states
from grn.regulation.regressions import centred, columns_of, held_out_penalties, sampled
from grn.regulation.states import states_of
from peers.peer import edge_table

SETTINGS = {"revision": 1}


def infer(one: NetworkSet, seed: int, device: str = "cpu") -> pd.DataFrame:
    return infer_in_context(one, seed, device).overall


def infer_in_context(one: NetworkSet, seed: int, device: str = "cpu") -> Networks:
    """Networks of a set and of its cell types, or of the states that are found in a set without labels."""
    cells, _ = load_cells(configuration(one, seed, device, {}).data, seed=seed, adata=adata_of(one))
    states = states_of(cells, seed)
    table = CellTable.of(cells, np.arange(len(cells)), states.membership, device=device)
    rows = sampled(table, seed)
    x, depth, membership = centred(table, rows)
    own = torch.as_tensor(table.regulators, device=x.device)
    reads_depth = depth if bool(depth.std() > 0) else None
    y = columns_of(table, rows, x)
    penalties = held_out_penalties(table, x, y, membership, rows, seed)
    slopes = slopes_of_states(x, y, membership, reads_depth, own, penalties)
    share = membership.sum(0) / membership.sum()
    sds = ((membership / membership.sum(0).clamp(min=1e-9)).mT @ x.square()).sqrt()
    usual = (share @ sds.square()).sqrt()
    regulators = [cells.vocabulary[gene] for gene in table.regulators]

    def edges(weight: torch.Tensor) -> pd.DataFrame:
        return edge_table(balanced(weight).mT.cpu().numpy(), cells.vocabulary, regulators)

    units = usual * presence(sds, usual)
    by_type = {name: edges(slopes[k] * units[k]) for k, name in enumerate(states.names)} if len(states) > 1 else {}
    return Networks(edges(torch.einsum("k,kir->ir", share, slopes) * usual), by_type, states)
