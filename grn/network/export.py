"""From a trained model to the files of its network: at the end of a run, and again by `grn export`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

import grn
from grn.config.files import load_config
from grn.config.schema import Config
from grn.data.cells import Cells, load_cells
from grn.data.loading.batches import is_packed
from grn.devices import own_device
from grn.errors import VocabularyMismatch
from grn.files import refuse_used_folder
from grn.messages import Say
from grn.model.saved import TrainedModel
from grn.network.false_discovery import edge_q_values
from grn.network.file_formats import edge_table, network_anndata, write_network
from grn.network.readouts.sampling import even_rows
from grn.network.run_readouts import ATTENTION_CELLS, WHOLE_MODEL, read_networks
from grn.regulation.knockoffs import fit_with_knockoffs
from grn.regulation.training_cells import FitCells
from grn.run_folder import make_run_folder


def write_network_files(config: Config, trained: TrainedModel, cells: Cells, folder: Path, say: Say) -> pd.DataFrame:
    """network.h5ad and edges.parquet; returns the edge table."""
    settings, regulators = config.network, trained.regulators
    trained.model.to(own_device(config.trainer))
    networks = read_networks(
        trained,
        cells.multiplicity,
        cells.labels,
        cells.basal,
        readout=settings.readout,
        cells=settings.cells,
        seed=config.trainer.seed,
        top_k=settings.top_k,
        packed=is_packed(config.data.bags, len(cells.vocabulary)),
        say=say,
    )
    adata = network_anndata(
        networks,
        settings.readout,
        genes=cells.vocabulary,
        regulators=regulators,
        classes=cells.classes,
        labels=cells.labels,
        multiplicity=cells.multiplicity,
        top_k=settings.top_k,
        about={
            "model_hash": trained.hash,
            "version": grn.__version__,
            "parameters": {
                "members": config.regulation.members,
                "bags": bags_read(config, trained, cells),
                "top_k": settings.top_k or 0,
                "seed": config.trainer.seed,
            },
        },
    )
    edges = edge_table(networks.chosen, cells.vocabulary, regulators, settings.top_k)
    write_network(folder, adata, edges)
    if settings.false_discovery:
        q = false_discovery(config, trained, cells, say)
        edges = edge_table(networks.chosen, cells.vocabulary, regulators, settings.top_k, q)
        write_network(folder, adata, edges)
    return edges


def bags_read(config: Config, trained: TrainedModel, cells: Cells) -> int:
    """How many bags the read-out reads: every cell's, where it reads the regulation layer alone.

    Of the whole model about `network.cells`, as evenly over the cell types as masks allow (see sample_cells).
    """
    settings = config.network
    if settings.readout in WHOLE_MODEL:
        return settings.cells
    if trained.model.regulation is not None:
        return len(cells)
    return len(even_rows(cells.labels, min(ATTENTION_CELLS, settings.cells), config.trainer.seed))


def false_discovery(config: Config, trained: TrainedModel, cells: Cells, say: Say) -> np.ndarray:
    """q-values [N, R] of the edges, from a fit of its own with knock-off regulators beside the real ones."""
    everyone = FitCells.of(cells, np.arange(len(cells)), trained.model.mean.cpu(), trained.model.sd.cpu())
    fit = fit_with_knockoffs(
        config.regulation,
        replace(everyone, regulators=trained.regulators),
        penalty=trained.penalty,
        labels=cells.labels,
        seed=config.trainer.seed,
        device=own_device(config.trainer),
    )
    q = edge_q_values(fit, trained.regulators)
    say(f"{int((q <= 0.1).sum())} edges at a false discovery rate of 0.1 (of associations, not of causes).")
    return q


def export(run: Path, output: Path, *, changes: dict | None = None, say: Say = print) -> pd.DataFrame:
    """Read the network of a finished run again, with `changes` to its network section, into the folder `output`."""
    trained = TrainedModel.load(run / "model")
    changes = changes or {}
    if changes.get("readout", "effect") != "effect":
        changes = {**changes, "false_discovery": "false"}  # q-values are about effects alone
    config = load_config(run / "config.yaml", [f"network.{name}={value}" for name, value in changes.items()])
    refuse_used_folder(output)
    cells, _ = load_cells(config.data, property_key=config.objectives.property.key, seed=config.trainer.seed)
    if cells.vocabulary != trained.vocabulary:
        raise VocabularyMismatch(
            f"{config.data.path} no longer has the {len(trained.vocabulary)} genes that {run} was trained on; "
            "restore the data or train again."
        )
    folder = make_run_folder(output, run.name)
    edges = write_network_files(config, trained, cells, folder, say)
    say(f"network.h5ad and edges.parquet are in {folder}")
    return edges
