"""Our own method in the benchmarks of networks: the default configuration, as `grn.network` and
`grn.train` have it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
import scipy.sparse as sp
from sets import NetworkSet

import grn
from grn.cells.cells import Cells
from grn.cells.load import load_cells
from grn.cells.preprocessing.split import Split
from grn.cells.readers.registry import MEMORY
from grn.config.files import change_config
from grn.config.schema import Config
from grn.evidence.states import States, states_of
from grn.model.saved import TrainedModel
from grn.networks.build import network_of
from grn.runtime.messages import Say, silent
from grn.training.run import fit_cells, train

SETTINGS = {"version": grn.__version__, "revision": 9}  # raise revision when the numbers change


@dataclass(frozen=True, eq=False)
class Networks:
    """The networks of one run.

    overall: an edge table, with q_value where asked for.
    by_type: state -> the same.
    states: of the cells.
    """

    overall: pd.DataFrame
    by_type: dict[str, pd.DataFrame]
    states: States

    def of_labels(self, labels: list[str]) -> dict[str, pd.DataFrame]:
        """Label -> the network of the state that most of its cells belong to, where the states were
        found.
        """
        if not self.by_type:
            return dict.fromkeys(labels, self.overall)
        mean = (
            pd.DataFrame(self.states.membership, columns=list(self.states.names))
            .groupby(np.array(labels))
            .mean()
        )
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
    say: Say = silent,
    changes: Mapping[str, Any] | None = None,
) -> Networks:
    """Networks of a set and of its cell types, or of the states that are found in a set without
    labels.

    The model is trained on all cells, as in `grn.network`. q_values: add their column, on which no
    weight depends.
    changes: of the default configuration, by dotted name.
    """
    fields = {"network.false_discovery": q_values, "network.top_k": None, **(changes or {})}
    config = configuration(one, seed, device, fields)
    cells, _ = load_cells(config.data, seed=seed, adata=adata_of(one))
    states = states_of(cells, seed)
    model = fit_cells(config, cells, states, say)
    edges, by_type = network_of(config.network, config.trainer, model, cells, states, say).tables(
        config.network
    )
    of_states = {str(name): table for name, table in by_type.groupby("cell_type", observed=True)}
    return Networks(
        edges, {name: table.reset_index(drop=True) for name, table in of_states.items()}, states
    )


def trained(one: NetworkSet, seed: int, device: str = "cpu") -> tuple[TrainedModel, Cells, Split]:
    """A model as `grn.train` trains it, the cells and their split."""
    config = configuration(one, seed, device, {"network.false_discovery": False})
    adata = adata_of(one)
    with tempfile.TemporaryDirectory() as folder:
        result = train(config, Path(folder) / "run", adata=adata, say=silent)
    assert result is not None, "one process"
    return (result.trained, *load_cells(config.data, seed=seed, adata=adata))


def adata_of(one: NetworkSet) -> anndata.AnnData:
    """The cells of a set, and their types in obs["cell_type"], if they are known."""
    adata = anndata.AnnData(sp.csr_matrix(one.matrix))
    adata.obs_names = [f"cell {number}" for number in range(len(one.matrix))]
    adata.var_names = list(one.genes)
    if one.labels is not None:
        adata.obs["cell_type"] = pd.Categorical(one.labels)
    return adata


def configuration(one: NetworkSet, seed: int, device: str, changes: dict[str, Any]) -> Config:
    """The default configuration for a set."""
    fields = {
        "path": MEMORY,
        "values": one.values,
        "genes": "all",
        "regulators": one.regulators or "all",
    }
    fields["label_key"] = None if one.labels is None else "cell_type"
    trainer = {"trainer.seed": seed, "trainer.accelerator": "gpu" if device == "cuda" else "cpu"}
    return change_config(
        None, {f"data.{name}": value for name, value in fields.items()} | trainer | changes
    )
