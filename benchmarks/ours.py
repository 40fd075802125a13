"""Our own method in the benchmarks of networks: the default configuration, as in `grn train`.

The benchmarks use the read-out `effect`, which depends on the regulation layer alone, so the transformer is not
trained. All else is as in a run: reading the data, choosing the penalty on cells that are not for testing, the fit on
all cells, the edge table.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from sets import NetworkSet

import grn
from grn.config.schema import Config
from grn.data.cells import load_cells
from grn.data.preprocessing.scale import mean_and_sd
from grn.files import write_anndata
from grn.network.file_formats import edge_table
from grn.network.readouts.effect import effect_network
from grn.network.readouts.regulation_attention import attention_network
from grn.regulation.fit import fit_regulation_layer

READOUTS = ("effect", "attention")
SETTINGS = {"readout": "effect", "version": grn.__version__, "revision": 3}  # raise revision when the numbers change


def infer(one: NetworkSet, seed: int, device: str) -> pd.DataFrame:
    """source, target, weight of every candidate edge."""
    return networks(one, seed, device)[SETTINGS["readout"]]


def networks(one: NetworkSet, seed: int, device: str) -> dict[str, pd.DataFrame]:
    """Read-out of the regulation layer -> source, target, weight of every candidate edge."""
    with tempfile.TemporaryDirectory() as folder:
        config = configuration(one, seed, device, Path(folder) / "cells.h5ad")
        cells, split = load_cells(config.data, seed=seed)
    mean, sd = mean_and_sd(cells.multiplicity[split.train])
    fit = fit_regulation_layer(config, cells, split.train, mean=mean, sd=sd, say=print)
    all_cells = np.arange(len(cells))
    fit = fit_regulation_layer(config, cells, all_cells, mean=mean, sd=sd, say=print, penalty=fit.penalty)
    layer = fit.layer.to(device)
    regulators = layer.regulators.cpu().numpy()
    measured = torch.as_tensor(cells.multiplicity[:, regulators].toarray(), device=device)
    cell = measured, torch.as_tensor(cells.basal, device=device), torch.as_tensor(cells.labels, device=device)
    found = {"effect": effect_network(layer, *cell), "attention": attention_network(layer, *cell)}
    return {name: edge_table(each, cells.vocabulary, regulators, None) for name, each in found.items()}


def configuration(one: NetworkSet, seed: int, device: str, path: Path) -> Config:
    """The default configuration for a set, whose cells are written to `path`."""
    table = anndata.AnnData(sp.csr_matrix(one.matrix))
    table.obs_names = [f"cell {number}" for number in range(len(one.matrix))]
    table.var_names = list(one.genes)
    write_anndata(path, table)
    data = {"path": str(path), "values": one.values, "genes": "all", "regulators": one.regulators or "all"}
    trainer = {"seed": seed, "accelerator": "gpu" if device == "cuda" else "cpu"}
    return Config.model_validate({"data": data, "trainer": trainer})
