"""Our own method in the benchmark of networks in context: the networks of all cells and of each cell type.

As in `ours.py`: the default configuration, the penalty chosen on cells that are not for testing, the fit on all cells.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import scipy.sparse as sp
from sets import NetworkSet

from grn.config.schema import Config
from grn.data.cells import load_cells
from grn.data.preprocessing.scale import mean_and_sd
from grn.files import write_anndata
from grn.messages import silent
from grn.network.file_formats import edge_table
from grn.network.in_context import network_in_context
from grn.regulation.fit import fit_regulation
from grn.regulation.states import cell_states


@dataclass(frozen=True, eq=False)
class TypedNetworks:
    """overall: an edge table, with q_value where asked for.   by_type: label -> the same."""

    overall: pd.DataFrame
    by_type: dict[str, pd.DataFrame]


def infer_by_type(one: NetworkSet, seed: int, q_values: bool = False) -> TypedNetworks:
    """Networks of a set with cell types. q_values: add their column."""
    with tempfile.TemporaryDirectory() as folder:
        config = configuration(one, seed, Path(folder) / "cells.h5ad")
        cells, split = load_cells(config.data, seed=seed)
    mean, sd = mean_and_sd(cells.multiplicity[split.train])
    states = cell_states(cells, seed)
    fit = partial(fit_regulation, config, cells, states, mean=mean, sd=sd, say=silent)
    regulation = fit(np.arange(len(cells)), earlier=fit(split.train)).regulation
    network = network_in_context(regulation, cells, states, mean=mean, sd=sd, seed=seed)
    listed = (cells.vocabulary, regulation.regulators.numpy(), None)
    by_type = {name: edge_table(network.of_type(name), *listed, q_values=q_values) for name in network.by_type}
    return TypedNetworks(edge_table(network, *listed, q_values=q_values), by_type)


def configuration(one: NetworkSet, seed: int, path: Path) -> Config:
    """The default configuration for a set, whose cells and their types are written to `path`."""
    table = anndata.AnnData(sp.csr_matrix(one.matrix))
    table.obs_names = [f"cell {number}" for number in range(len(one.matrix))]
    table.var_names = list(one.genes)
    table.obs["cell_type"] = pd.Categorical(one.labels)
    write_anndata(path, table)
    data = {"path": str(path), "values": one.values, "genes": "all", "label_key": "cell_type"}
    data |= {"regulators": one.regulators or "all"}
    return Config.model_validate({"data": data, "trainer": {"seed": seed}})
