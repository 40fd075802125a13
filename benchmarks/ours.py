"""Our own method in the benchmarks of networks: the default configuration, as in `grn train`.

The benchmarks use the read-out `effect`, which depends on the regulation layer alone, so the transformer is not
trained. All else is as in a run: reading the data, choosing the penalty on cells that are not for testing, the fit on
all cells, the edge table.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import scipy.sparse as sp
from sets import NetworkSet

import grn
from grn.config.schema import Config
from grn.data.cells import load_cells
from grn.data.preprocessing.scale import mean_and_sd
from grn.files import write_anndata
from grn.network.file_formats import edge_table
from grn.network.in_context import network_in_context
from grn.regulation.fit import fit_regulation
from grn.regulation.states import cell_states

SETTINGS = {"readout": "effect", "version": grn.__version__, "revision": 4}  # raise revision when the numbers change


def infer(one: NetworkSet, seed: int, device: str) -> pd.DataFrame:
    """source, target, weight of every candidate edge."""
    with tempfile.TemporaryDirectory() as folder:
        config = configuration(one, seed, device, Path(folder) / "cells.h5ad")
        cells, split = load_cells(config.data, seed=seed)
    mean, sd = mean_and_sd(cells.multiplicity[split.train])
    states = cell_states(cells, seed)
    fit = partial(fit_regulation, config, cells, states, mean=mean, sd=sd, say=print)
    regulation = fit(np.arange(len(cells)), earlier=fit(split.train)).regulation.to(device)
    network = network_in_context(regulation, cells, states, mean=mean, sd=sd, seed=seed)
    return edge_table(network, cells.vocabulary, regulation.regulators.cpu().numpy(), None)


def configuration(one: NetworkSet, seed: int, device: str, path: Path) -> Config:
    """The default configuration for a set, whose cells are written to `path`."""
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
