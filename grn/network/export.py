"""From a trained model to network.h5ad and edges.parquet: at the end of a run, and again by `grn export`."""

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
from grn.errors import RunFolderError, VocabularyMismatch
from grn.files import refuse_used_folder
from grn.messages import Say
from grn.model.saved import TrainedModel
from grn.network.false_discovery import edge_q_values
from grn.network.file_formats import edge_table, network_anndata, write_network
from grn.network.readouts.sampling import even_rows
from grn.network.run_readouts import ATTENTION_CELLS, WHOLE_MODEL, read_networks
from grn.regulation.knockoffs import fit_with_knockoffs
from grn.regulation.training_cells import TrainingCells
from grn.run_folder import CONFIG, config_of, make_run_folder


def write_network_files(config: Config, trained: TrainedModel, cells: Cells, folder: Path, say: Say) -> pd.DataFrame:
    """Writes network.h5ad and edges.parquet into `folder`; returns the edge table."""
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
    """How many bags the read-out reads: all cells where it reads the regulation layer alone.

    Of the whole model it reads about `network.cells` bags, as evenly over the cell types as masks allow (sample_cells).
    """
    settings = config.network
    if settings.readout in WHOLE_MODEL:
        return settings.cells
    if trained.model.regulation is not None:
        return len(cells)
    return len(even_rows(cells.labels, min(ATTENTION_CELLS, settings.cells), config.trainer.seed))


def false_discovery(config: Config, trained: TrainedModel, cells: Cells, say: Say) -> np.ndarray:
    """q-values [N, R] of the edges, from a separate fit with knock-off regulators beside the real ones."""
    all_cells = TrainingCells.of(cells, np.arange(len(cells)), trained.model.mean.cpu(), trained.model.sd.cpu())
    fit = fit_with_knockoffs(
        config.regulation,
        replace(all_cells, regulators=trained.regulators),
        penalty=trained.penalty,
        labels=cells.labels,
        seed=config.trainer.seed,
        device=own_device(config.trainer),
    )
    q = edge_q_values(fit, trained.regulators)
    say(f"Found {int((q <= 0.1).sum())} edges at a false discovery rate of 0.1 (of associations, not of causes).")
    return q


def export(run: Path, output: Path, *, changes: dict | None = None, say: Say = print) -> pd.DataFrame:
    """Reads the network of a finished run again and writes it into the folder `output`; returns the edge table.

    changes: fields of the configuration's network section, by name. Raises RunFolderError, ConfigError, DataError, and
    VocabularyMismatch where the cells no longer have the model's genes.
    """
    config_file = config_of(run, needed=(CONFIG,))
    if not (run / "model").exists():
        raise RunFolderError(f"The run in {run} has no model yet; finish it with grn train --resume {run}.")
    trained = TrainedModel.load(run / "model")
    changes = changes or {}
    if changes.get("readout", "effect") != "effect":
        changes = {**changes, "false_discovery": "false"}  # q-values are about effects alone
    config = load_config(config_file, [f"network.{name}={value}" for name, value in changes.items()])
    refuse_used_folder(output)
    cells, _ = load_cells(config.data, property_key=config.objectives.property.key, seed=config.trainer.seed)
    if cells.vocabulary != trained.vocabulary:
        raise VocabularyMismatch(
            f"{config.data.path} no longer has the {len(trained.vocabulary)} genes that {run} was trained on. "
            "Restore the data, or train again."
        )
    folder = make_run_folder(output, run.name)
    edges = write_network_files(config, trained, cells, folder, say)
    say(f"Wrote network.h5ad and edges.parquet in {folder}.")
    return edges
