"""Our own method in the benchmarks of networks: the default configuration, as in `grn train`.

The benchmarks use the read-out `effect`, which depends on the regulation layers alone, so the transformer is not
trained. All else is as in a run: reading the data, choosing the penalty on cells that are not for testing, the fit on
all cells, the edge tables.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import scipy.sparse as sp
from sets import NetworkSet
from torch import Tensor

import grn
from grn.cells.cells import Cells
from grn.cells.load import load_cells
from grn.cells.preprocessing.moments import mean_and_sd
from grn.config.schema import Config
from grn.io.h5ad import write_anndata
from grn.messages import Say, silent
from grn.model.signed.regulation import Regulation
from grn.networks.in_context import network_in_context
from grn.networks.run_files import edge_table
from grn.regulation.fit import fit_regulation
from grn.regulation.states import States, states_of

SETTINGS = {"readout": "effect", "version": grn.__version__, "revision": 7}  # raise revision when the numbers change


@dataclass(frozen=True, eq=False)
class Networks:
    """overall: an edge table, with q_value where asked for.   by_type: state -> the same.   states: of the cells."""

    overall: pd.DataFrame
    by_type: dict[str, pd.DataFrame]
    states: States

    def of_labels(self, labels: list[str]) -> dict[str, pd.DataFrame]:
        """Label -> the network of the state that most of its cells belong to, where the states were found."""
        if not self.by_type:
            return dict.fromkeys(labels, self.overall)
        mean = pd.DataFrame(self.states.membership, columns=list(self.states.names)).groupby(np.array(labels)).mean()
        return {str(label): self.by_type[state] for label, state in mean.idxmax(axis=1).items()}


def infer(one: NetworkSet, seed: int, device: str) -> pd.DataFrame:
    """source, target, weight of every candidate edge, among all others that an edge table has."""
    return infer_in_context(one, seed, device, say=print).overall


def infer_in_context(
    one: NetworkSet,
    seed: int,
    device: str = "cpu",
    *,
    q_values: bool = False,
    direct: bool = True,
    say: Say = silent,
) -> Networks:
    """Networks of a set and of its cell types, or of the states that are found in a set without labels.

    q_values: add their column.   direct: direct effects, where counts are known, else total ones.
    """
    cells, states, regulation, units = fitted(one, seed, device, say)
    cells = cells if direct else replace(cells, counting=None)
    network = network_in_context(regulation, cells, states, **units, seed=seed)
    listed = (cells.vocabulary, regulation.regulators.cpu().numpy(), None)
    by_type = {name: edge_table(network.of_type(name), *listed, q_values=q_values) for name in network.by_type}
    return Networks(edge_table(network, *listed, q_values=q_values), by_type, states)


@lru_cache(maxsize=1)
def fitted(one: NetworkSet, seed: int, device: str, say: Say) -> tuple[Cells, States, Regulation, dict[str, Tensor]]:
    """The cells of a set, their states, the regulation fitted to all of them, and mean and sd of each gene."""
    with tempfile.TemporaryDirectory() as folder:
        config = configuration(one, seed, device, Path(folder) / "cells.h5ad")
        cells, split = load_cells(config.data, seed=seed)
    mean, sd = mean_and_sd(cells.multiplicity[split.train])
    states = states_of(cells, seed)
    fit = partial(fit_regulation, config, cells, states, mean=mean, sd=sd, say=say)
    regulation = fit(np.arange(len(cells)), penalties=fit(split.train).penalties).regulation.to(device)
    return cells, states, regulation, {"mean": mean, "sd": sd}


def configuration(one: NetworkSet, seed: int, device: str, path: Path) -> Config:
    """The default configuration for a set, whose cells (and their types, if known) are written to `path`."""
    table = anndata.AnnData(sp.csr_matrix(one.matrix))
    table.obs_names = [f"cell {number}" for number in range(len(one.matrix))]
    table.var_names = list(one.genes)
    data = {"path": str(path), "values": one.values, "genes": "all", "regulators": one.regulators or "all"}
    if one.labels is not None:
        table.obs["cell_type"] = pd.Categorical(one.labels)
        data["label_key"] = "cell_type"
    write_anndata(path, table)
    trainer = {"seed": seed, "accelerator": "gpu" if device == "cuda" else "cpu"}
    return Config.model_validate({"data": data, "trainer": trainer})
