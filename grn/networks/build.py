"""The network of cells: fits the regulation layers, reads the network, applies its prior, and makes its tables.

`grn train`, `grn.network` and `grn.read_network` all build it here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData
from torch import Tensor

import grn
from grn.cells.cells import Cells
from grn.cells.loading.batches import is_packed
from grn.config.files import load_config
from grn.config.schema import Config
from grn.devices import own_device
from grn.io.run_folder import CONFIG, config_of, refuse_cut_off
from grn.messages import Say, silent
from grn.model.saved import TrainedModel
from grn.networks.cells_of_run import cells_of_run, states_of_run
from grn.networks.file_formats import edge_table, edges_by_type, network_anndata, write_network
from grn.networks.in_context import network_in_context, summary
from grn.networks.prior import Prior, held_out, prior_of
from grn.networks.prior import summary as prior_summary
from grn.networks.readouts.sampling import even_rows
from grn.networks.run_readouts import WHOLE_MODEL, read_networks
from grn.networks.weights import Network
from grn.process_memory import give_back
from grn.regulation.fit import ChosenPenalties, FittedRegulation, fit_regulation
from grn.regulation.states import States
from grn.threads import threads_for

SIGNIFICANT = 0.05  # q-value up to which edges are counted


def fit_layers(
    config: Config,
    cells: Cells,
    states: States,
    rows: np.ndarray,
    *,
    mean: Tensor,
    sd: Tensor,
    say: Say,
    penalties: ChosenPenalties | None = None,
) -> FittedRegulation:
    """`fit_regulation` with the prior network of the configuration. Raises what that does, and DataError."""
    prior = None if config.network.prior is None else prior_of(config.network, cells).strength
    settings, regulators = config.regulation, len(mean) if cells.regulators is None else len(cells.regulators)
    with threads_for(settings.batch_size * settings.heads * len(mean) * regulators):
        return fit_regulation(config, cells, states, rows, mean=mean, sd=sd, say=say, penalties=penalties, prior=prior)


@dataclass(frozen=True)
class WithPrior:
    """network: with its prior applied.   prior: None without one.   errors: of the prior on held-out cells."""

    network: Network
    prior: Prior | None
    errors: dict[str, float]

    @classmethod
    def of(cls, network: Network, config: Config, cells: Cells, regulators: np.ndarray, say: Say) -> WithPrior:
        """Says what the prior and the knock-offs know of the network. regulators: vocabulary positions [R]."""
        prior, errors = None, {}
        if config.network.prior is not None:
            prior = prior_of(config.network, cells)
            network = prior.applied(network)
            errors = held_out(prior, cells, regulators, config.trainer.seed)
            for line in prior_summary(prior, errors):
                say(line)
        if network.q is not None:
            for line in summary(network):
                say(line)
        return cls(network, prior, errors)

    def tables(self, config: Config, cells: Cells, regulators: np.ndarray) -> tuple[pd.DataFrame, pd.DataFrame]:
        """The edges over all cells, and those of each state."""
        settings, genes = config.network, cells.vocabulary
        q_values = settings.false_discovery is not False
        edges, by_type = (
            table(self.network, genes, regulators, settings.top_k, q_values=q_values)
            for table in (edge_table, edges_by_type)
        )
        if self.prior is not None:
            edges, by_type = (self.prior.candidates(table, genes, regulators) for table in (edges, by_type))
        return edges, by_type


def edges_of_regulation(
    config: Config, fitted: FittedRegulation, cells: Cells, states: States, *, mean: Tensor, sd: Tensor, say: Say
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The effects of fitted regulation layers as tables: over all cells, and of each state. No model is needed."""
    found = network_in_context(
        fitted.regulation,
        cells,
        states,
        mean=mean,
        sd=sd,
        seed=config.trainer.seed,
    )
    regulators = fitted.regulation.regulators.numpy()
    return WithPrior.of(found, config, cells, regulators, say).tables(config, cells, regulators)


def network_of_model(
    config: Config, trained: TrainedModel, cells: Cells, states: States, say: Say
) -> tuple[AnnData, pd.DataFrame, pd.DataFrame]:
    """The network of a trained model: as AnnData, its edges over all cells, and those of each state.

    states: those that the model's regulation was fitted with.
    """
    settings, regulators = config.network, trained.regulators
    trained.model.to(own_device(config.trainer))
    networks = read_networks(
        trained,
        cells,
        states,
        readout=settings.readout,
        most_cells=settings.cells,
        seed=config.trainer.seed,
        top_k=settings.top_k,
        packed=is_packed(config.data.bags, len(cells.vocabulary)),
        say=say,
    )
    give_back()  # what the knock-offs used makes room for the tables
    found = WithPrior.of(networks.chosen, config, cells, regulators, say)
    regulation, prior, chosen = trained.model.regulation, found.prior, found.network
    about: dict[str, Any] = {
        "model_hash": trained.hash,
        "version": grn.__version__,
        "parameters": {
            "members": config.regulation.members,
            "cells": len(cells),
            "bags": bags_read(config, trained, cells),
            "top_k": settings.top_k or 0,
            "seed": config.trainer.seed,
        },
    }
    if regulation is not None and regulation.level_error is not None:
        about["level_error"] = regulation.level_error
    if prior is not None:
        about["prior"] = {"use": prior.use, "pairs": prior.listed, "held_out_error": found.errors}
    if chosen.q is not None:
        about["found"] = found_edges(chosen)
    adata = network_anndata(
        replace(networks, chosen=chosen),
        settings.readout,
        genes=cells.vocabulary,
        regulators=regulators,
        states=states,
        multiplicity=cells.multiplicity,
        top_k=settings.top_k,
        var_names=cells.var_names,
        about=about,
    )
    return (adata, *found.tables(config, cells, regulators))


def write_network_files(
    config: Config, trained: TrainedModel, cells: Cells, folder: Path, say: Say, *, states: States
) -> pd.DataFrame:
    """Writes network.h5ad, edges.parquet and edges_by_type.parquet into `folder`; returns the edge table."""
    adata, edges, by_type = network_of_model(config, trained, cells, states, say)
    write_network(folder, adata, edges, by_type)
    return edges


def read_again(
    run: Path, changes: dict[str, Any], *, adata: AnnData | None = None, say: Say = silent
) -> tuple[AnnData, pd.DataFrame, pd.DataFrame]:
    """`network_of_model` of a finished run with other settings of its section `network`.

    changes: fields by name.   adata: the run's cells, if they were in memory. Raises RunFolderError, ConfigError,
    DataError, VocabularyMismatch; also where the cells are no longer those that the run was trained on.
    """
    file = config_of(run, needed=(CONFIG,))
    refuse_cut_off(run, ("model",))
    trained = TrainedModel.load(run / "model")
    if changes.get("readout", "effect") != "effect":
        changes = {**changes, "false_discovery": "null"}  # q-values are about effects alone
    config = load_config(file, [f"network.{name}={value}" for name, value in changes.items()])
    cells = cells_of_run(run, config, trained, adata)
    return network_of_model(config, trained, cells, states_of_run(run, cells, config.trainer.seed, trained), say)


def found_edges(network: Network) -> pd.DataFrame:
    """Columns label, edges: how many have a q-value of at most SIGNIFICANT, over all cells and in each state."""
    assert network.q is not None
    every = {"all cells": network.q, **network.type_q}
    labels = pd.Series(list(every), dtype=object)  # plain strings, which every version of h5ad can hold
    found = pd.DataFrame({"label": labels, "edges": [int((q <= SIGNIFICANT).sum()) for q in every.values()]})
    return found.set_index(pd.Index([str(number) for number in range(len(found))], dtype=object))


def bags_read(config: Config, trained: TrainedModel, cells: Cells) -> int:
    """How many bags the read-out reads: all cells where it reads the regulation layer alone.

    Of the whole model it reads about `network.cells` bags, as evenly over the cell types as masks allow (sample_cells).
    """
    settings = config.network
    if settings.cells == "all":
        return len(cells)
    if settings.readout in WHOLE_MODEL:
        return settings.cells
    if trained.model.regulation is not None:
        return len(cells)
    return len(even_rows(cells.labels, settings.cells, config.trainer.seed))
