"""Our own method in the benchmark of networks in context: the networks of all cells and of each cell type.

As in `ours.py`: the default configuration, the penalty chosen on cells that are not for testing, the fit on all cells.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from sets import NetworkSet

from grn.config.schema import Config
from grn.data.cells import Cells, load_cells
from grn.data.preprocessing.scale import mean_and_sd
from grn.files import write_anndata
from grn.messages import silent
from grn.network.false_discovery import edge_q_values
from grn.network.file_formats import edge_table
from grn.network.readouts.effect import effect_network
from grn.network.weights import Network
from grn.regulation.fit import fit_regulation_layer
from grn.regulation.knockoffs import fit_with_knockoffs
from grn.regulation.training_cells import TrainingCells


@dataclass(frozen=True, eq=False)
class TypedNetworks:
    """overall: columns source, target, weight, and q_value where asked for.   by_type: label -> the first three."""

    overall: pd.DataFrame
    by_type: dict[str, pd.DataFrame]


def infer_by_type(one: NetworkSet, seed: int, q_values: bool = False) -> TypedNetworks:
    """Networks of a set with cell types. q_values: fits once more, with knock-offs."""
    with tempfile.TemporaryDirectory() as folder:
        config = configuration(one, seed, Path(folder) / "cells.h5ad")
        cells, split = load_cells(config.data, seed=seed)
    mean, sd = mean_and_sd(cells.multiplicity[split.train])
    fit = fit_regulation_layer(config, cells, split.train, mean=mean, sd=sd, say=silent)
    all_cells = np.arange(len(cells))
    fit = fit_regulation_layer(config, cells, all_cells, mean=mean, sd=sd, say=silent, penalty=fit.penalty)
    regulators = fit.layer.regulators.cpu().numpy()
    measured = torch.as_tensor(cells.multiplicity[:, regulators].toarray())
    found = effect_network(fit.layer, measured, torch.as_tensor(cells.basal), torch.as_tensor(cells.labels))
    q = None
    if q_values:
        fitted = TrainingCells.of(cells, all_cells, mean, sd)
        knockoffs = fit_with_knockoffs(
            config.regulation, fitted, penalty=fit.penalty, labels=cells.labels, seed=seed, method="knockoffs"
        )
        q = edge_q_values(knockoffs, regulators)
    return TypedNetworks(edge_table(found, cells.vocabulary, regulators, None, q), by_type(found, cells, regulators))


def by_type(found: Network, cells: Cells, regulators: np.ndarray) -> dict[str, pd.DataFrame]:
    return {
        cells.classes[number]: edge_table(Network(weight, {}, found.confidence), cells.vocabulary, regulators, None)[
            ["source", "target", "weight"]
        ]
        for number, weight in found.by_type.items()
    }


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
