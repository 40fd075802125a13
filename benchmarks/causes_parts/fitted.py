"""What grn learns from cells: a network, and of a screen's predictions of interventions.

A training takes minutes, so that both are kept in a folder, where one is named.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
from causes_parts.networks_of import Observed
from interventions import CELLS, STEPS, Ours, Screen
from scipy import sparse

from grn.cells.load import load_cells
from grn.cells.readers.registry import MEMORY
from grn.config.files import change_config
from grn.evidence.states import states_of
from grn.features.perturb.perturbed import Plan, perturb_cells
from grn.networks.build import network_of
from grn.runtime.messages import silent
from grn.training.run import fit_cells

ALL_EDGES = {"network.false_discovery": False, "network.top_k": None}


@dataclass(frozen=True)
class Fitted:
    """edges: source, target, weight, caused, ... of every candidate pair.

    changes: gene, target, change: of the mean log multiplicity of control cells after the loss of
        `target`; size: by which genes are ranked.
    """

    edges: pd.DataFrame
    changes: pd.DataFrame

    def change(self, target: str, genes: list[str]) -> np.ndarray:
        """Return the predicted changes [N] after the loss of a gene."""
        found = self.changes[self.changes["target"] == target].set_index("gene")
        return found["change"].reindex(genes).to_numpy(float)


def fitted(
    screen: Screen, left: str, seed: int, regulators: list[str], cache: Path | None
) -> Fitted:
    """Train on all replicates but `left`, or read what was kept of such a training."""
    files = [] if cache is None else [cache / f"{left}-{seed}-{name}.csv" for name in TABLES]
    if files and all(file.exists() for file in files):
        return Fitted(*map(_kept, files))
    found = _trained(screen, screen.replicate != left, seed, regulators)
    for file, table in zip(files, (found.edges, found.changes), strict=False):
        file.parent.mkdir(parents=True, exist_ok=True)
        table.to_csv(file, index=False)
    return found


TABLES = ("edges", "changes")


def _kept(file: Path) -> pd.DataFrame:
    return pd.read_csv(file, keep_default_na=False, na_values=[""])  # a gene may be called NA


def _trained(screen: Screen, training: np.ndarray, seed: int, regulators: list[str]) -> Fitted:
    model = Ours(screen, training, seed, regulators)
    subject = model.subject
    config = change_config(subject.config, ALL_EDGES)
    edges, _ = network_of(
        config.network, config.trainer, subject.trained, subject.cells, subject.states, silent
    ).tables(config.network)
    controls = np.flatnonzero(subject.cells.interventions.control)
    rows = np.random.default_rng(0).permutation(controls)[:CELLS]
    changes = [
        perturb_cells(subject, Plan(knock_out=(target,)), rows, STEPS).table.assign(target=target)
        for target in screen.targets
    ]
    return Fitted(edges, pd.concat(changes, ignore_index=True))


def fitted_observed(observed: Observed, seed: int, cache: Path | None) -> pd.DataFrame:
    """Return the network of cells whose groups are types, or read what was kept of it."""
    file = None if cache is None else cache / f"{observed.name}-{seed}-edges.csv"
    if file is not None and file.exists():
        return _kept(file)
    adata = anndata.AnnData(sparse.csr_matrix(observed.counts.astype(np.float32)))
    adata.obs_names = [f"cell {number}" for number in range(len(observed.counts))]
    adata.var_names = observed.genes
    adata.obs["cell_type"] = pd.Categorical(observed.group)
    fields = {"path": MEMORY, "genes": "all", "label_key": "cell_type"}
    fields |= {"regulators": observed.regulators}
    trainer = {"trainer.seed": seed, "trainer.accelerator": "cpu"}
    config = change_config(
        None, {f"data.{field}": each for field, each in fields.items()} | trainer | ALL_EDGES
    )
    cells, _ = load_cells(config.data, seed=seed, adata=adata)
    states = states_of(cells, seed)
    trained = fit_cells(config, cells, states, silent)
    edges, _ = network_of(config.network, config.trainer, trained, cells, states, silent).tables(
        config.network
    )
    if file is not None:
        edges.to_csv(file, index=False)
    return edges
