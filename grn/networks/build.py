"""The network of cells: fits the regulation layers, reads the network, applies its prior, and makes its tables.

`grn train`, `grn.network` and `grn.read_network` all build it here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData
from torch import Tensor

import grn
from grn.bags import Bags
from grn.cells.cells import Cells
from grn.cells.loading.batches import is_packed
from grn.config.files import load_config
from grn.config.schema import Config
from grn.devices import own_device
from grn.io.run_folder import CONFIG, config_of, refuse_cut_off
from grn.messages import Say, silent
from grn.model.saved import TrainedModel
from grn.networks.cells_of_run import cells_of_run, states_of_run
from grn.networks.in_context import network_in_context, summary
from grn.networks.prior import Prior, prior_of
from grn.networks.prior import summary as prior_summary
from grn.networks.readouts.one_layer import LayerChoice, meaning_of_signs, read_layer
from grn.networks.readouts.sampling import even_rows
from grn.networks.run_files import edge_table, edges_by_type, network_anndata, refuse_unknown_type, write_network
from grn.networks.run_readouts import WHOLE_MODEL, read_networks, whole_bags
from grn.networks.weights import Network
from grn.process_memory import give_back
from grn.regulation.fit import ChosenPenalties, FittedRegulation, fit_regulation
from grn.regulation.members import RegulationSettings
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
    settings = RegulationSettings.of(config.regulation)
    regulators = len(mean) if cells.regulators is None else len(cells.regulators)
    with threads_for(settings.batch_size * settings.heads * len(mean) * regulators):
        return fit_regulation(config, cells, states, rows, mean=mean, sd=sd, say=say, penalties=penalties, prior=prior)


def with_prior(network: Network, config: Config, cells: Cells, say: Say) -> tuple[Network, Prior | None]:
    """The network with its prior applied, and the prior; says what the prior is, and what the knock-offs know."""
    prior = None
    if config.network.prior is not None:
        prior = prior_of(config.network, cells)
        network = prior.applied(network)
        say(prior_summary(prior))
    for line in [] if network.q is None else summary(network):
        say(line)
    return network, prior


def tables_of(
    network: Network, prior: Prior | None, config: Config, cells: Cells, regulators: np.ndarray
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The edges over all cells, and those of each state."""
    settings, genes = config.network, cells.vocabulary
    q_values = settings.false_discovery is not False
    edges, by_type = (
        table(network, genes, regulators, settings.top_k, q_values=q_values) for table in (edge_table, edges_by_type)
    )
    if prior is None:
        return edges, by_type
    return prior.candidates(edges, genes, regulators), prior.candidates(by_type, genes, regulators)


def edges_of_regulation(
    config: Config, fitted: FittedRegulation, cells: Cells, states: States, *, mean: Tensor, sd: Tensor, say: Say
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The effects of fitted regulation layers as tables: over all cells, and of each state. No model is needed."""
    found = network_in_context(fitted.regulation, cells, states, mean=mean, sd=sd, seed=config.trainer.seed)
    regulators = fitted.regulation.regulators.numpy()
    network, prior = with_prior(found, config, cells, say)
    return tables_of(network, prior, config, cells, regulators)


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
    chosen, prior = with_prior(networks.chosen, config, cells, say)
    regulation = trained.model.regulation
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
        about["prior"] = {"use": prior.use, "pairs": prior.listed}
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
    return (adata, *tables_of(chosen, prior, config, cells, regulators))


def write_network_files(
    config: Config, trained: TrainedModel, cells: Cells, folder: Path, say: Say, *, states: States
) -> pd.DataFrame:
    """Writes network.h5ad, edges.parquet and edges_by_type.parquet into `folder`; returns the edge table."""
    adata, edges, by_type = network_of_model(config, trained, cells, states, say)
    write_network(folder, adata, edges, by_type)
    return edges


def opened(run: Path, changes: dict[str, Any]) -> tuple[Config, TrainedModel]:
    """The configuration of a finished run, with changes to its section `network`, and its model."""
    file = config_of(run, needed=(CONFIG,))
    refuse_cut_off(run, ("model",))
    trained = TrainedModel.load(run / "model")
    return load_config(file, [f"network.{name}={value}" for name, value in changes.items()]), trained


def read_again(
    run: Path, changes: dict[str, Any], *, adata: AnnData | None = None, say: Say = silent
) -> tuple[AnnData, pd.DataFrame, pd.DataFrame]:
    """`network_of_model` of a finished run with other settings of its section `network`.

    changes: fields by name.   adata: the run's cells, if they were in memory. Raises RunFolderError, ConfigError,
    DataError, VocabularyMismatch; also where the cells are no longer those that the run was trained on.
    """
    if changes.get("readout", "effect") != "effect":
        changes = {**changes, "false_discovery": "null"}  # q-values are about effects alone
    config, trained = opened(run, changes)
    cells = cells_of_run(run, config, trained, adata)
    return network_of_model(config, trained, cells, states_of_run(run, cells, config.trainer.seed, trained), say)


def read_layer_again(
    run: Path, choice: LayerChoice, changes: dict[str, Any], *, cell_type: str | None, adata: AnnData | None
) -> tuple[pd.DataFrame, str]:
    """The edges (source, target, weight) of one layer of a finished run's transformer, and what their signs mean.

    Over about `network.cells` cells, evenly by type, or of cells of the label `cell_type` alone. Other arguments and
    errors as for `read_again`.
    """
    config, trained = opened(run, changes)
    model, regulators, seed = trained.model.eval(), trained.regulators, config.trainer.seed
    choice.check(model)
    bags: Iterable[Bags] = ()
    if choice.value != "score":
        model.to(own_device(config.trainer))
        cells = cells_of_run(run, config, trained, adata)
        chosen = np.arange(len(cells))
        if cell_type is not None:
            refuse_unknown_type(cell_type, cells.classes)
            chosen = np.flatnonzero(cells.labels == cells.classes.index(cell_type))
        most = len(cells) if config.network.cells == "all" else config.network.cells
        rows = chosen[even_rows(cells.labels[chosen], most, seed)]
        packed = is_packed(config.data.bags, len(cells.vocabulary))
        bags = whole_bags(model, cells.multiplicity, cells.basal, rows, regulators, packed)
    weight = read_layer(model, choice, bags, regulators)
    unknown = np.broadcast_to(np.float32(np.nan), weight.shape)
    edges = edge_table(Network(weight, {}, unknown), trained.vocabulary, regulators, None)
    return edges[["source", "target", "weight"]], meaning_of_signs(model, choice.value)


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
