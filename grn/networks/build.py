"""The network of a run: read from its trained model, with what knock-offs and a prior say of it, as
tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData

import grn
from grn.cells.cells import Cells
from grn.cells.genes import programmes
from grn.config.files import change_config, load_config
from grn.config.schema import Config, NetworkConfig, TrainerConfig
from grn.edges.weights import Network, seen_enough
from grn.evidence.caused import caused_effects, units_in_words
from grn.evidence.cell_table import CellTable
from grn.evidence.effects import Effects, effects_of
from grn.evidence.prior import Prior, prior_of
from grn.evidence.prior import summary as prior_summary
from grn.evidence.q_values import (
    SIGNIFICANT,
    Evidence,
    edge_evidence,
    evidence_of,
    evidence_of_states,
    found_edges,
    most_certain,
    vetoed,
    with_evidence,
)
from grn.evidence.q_values import summary as evidence_summary
from grn.evidence.states import States
from grn.model.regulation import Model
from grn.model.saved import TrainedModel
from grn.networks.attention import SIGN
from grn.networks.attention_of_run import attention_again, attention_of_model
from grn.networks.cells_of_run import cells_of_run, states_of_run
from grn.networks.intervened import Merge, compared, in_words, order_of
from grn.networks.one_layer import LayerChoice, read_layer
from grn.networks.read import read_network, slopes_of_states
from grn.networks.run_files import (
    edge_table,
    edges_by_type,
    edges_of,
    network_anndata,
    refuse_unknown_type,
    write_network,
)
from grn.runtime.devices import own_device
from grn.runtime.messages import Say, silent
from grn.runtime.process_memory import give_back
from grn.runtime.processes import ALONE, Processes
from grn.runtime.run_folder import CONFIG, config_of, refuse_cut_off


@dataclass(frozen=True)
class ReadNetwork:
    """A network, and what it was made of.

    network: with its evidence and its prior applied.
    prior: or None.
    genes: of its rows.
    regulators [R]: the row of each column's gene.
    found: see `found_edges`; None without knock-offs.
    upstream: see `order_of`; None without interventions.
    """

    network: Network
    prior: Prior | None
    genes: tuple[str, ...]
    regulators: np.ndarray
    found: pd.DataFrame | None = None
    upstream: pd.DataFrame | None = None

    def tables(self, settings: NetworkConfig) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return the edges over all cells, and those of each state."""
        given = self.network, self.genes, self.regulators, settings.top_k
        least = settings.least_cells
        edges, by_type = (table(*given, least_cells=least) for table in (edge_table, edges_by_type))
        if self.prior is None:
            return edges, by_type
        return self.prior.candidates(edges, *given[1:3]), self.prior.candidates(
            by_type, *given[1:3]
        )


def first_evidence(
    network: NetworkConfig, trainer: TrainerConfig, cells: Cells, states: States, say: Say
) -> Evidence | None:
    """Return the evidence of knock-offs for the edges over all cells, or None where
    `network.false_discovery` is off.

    It needs no model, so `grn train` computes it first and says what is certain. Of a screen it
    says nothing: there, interventions come first.
    """
    if not network.false_discovery:
        return None
    table = CellTable.of(
        cells, np.arange(len(cells)), states.membership, device=own_device(trainer)
    )
    evidence = evidence_of(table, seed=trainer.seed, least_cells=network.least_cells)
    if cells.interventions is None:
        merge = Merge.of(cells, table.regulators)
        if merge is None:
            say(most_certain(evidence, cells.vocabulary, table.regulators))
        else:
            say(most_certain(merge.evidence(evidence), merge.names, merge.regulators))
    return evidence


def help_to_read(
    network: NetworkConfig,
    trainer: TrainerConfig,
    model: Model,
    cells: Cells,
    states: States,
    processes: Processes,
) -> None:
    """Compute some of the states for the first process, which calls `network_of` with the same
    model meanwhile.
    """
    seed, device = trainer.seed, own_device(trainer)
    slopes_of_states(model.to(device), cells, states, seed, processes)
    if network.false_discovery:
        table = CellTable.of(cells, np.arange(len(cells)), states.membership, device=device)
        evidence_of_states(table, seed=seed, least_cells=network.least_cells, processes=processes)


def network_of(
    network: NetworkConfig,
    trainer: TrainerConfig,
    trained: TrainedModel,
    cells: Cells,
    states: States,
    say: Say,
    first: Evidence | None = None,
    processes: Processes = ALONE,
    fold: np.ndarray | None = None,
) -> ReadNetwork:
    """Return the network of a trained model over its cells.

    states: those that it was trained with.
    first: the evidence over all cells, if it is known already.
    processes: of which this is the first; see `help_to_read`.
    fold [C]: which members have not learned from a cell, for effects (`effects_of`); None: without
        them.
    """
    seed, device = trainer.seed, own_device(trainer)
    trained.model.to(device)
    merge = Merge.of(cells, trained.regulators)
    weights = read_network(trained.model, cells, states, seed, processes)
    if fold is not None:
        weights = with_effects(weights, effects_of(trained.model, cells, states, fold), merge)
    weights = seen_enough(weights, network.least_cells)
    evidence = None
    if network.false_discovery:
        table = CellTable.of(cells, np.arange(len(cells)), states.membership, device=device)
        least_cells = network.least_cells
        together, of_states = edge_evidence(
            table, seed=seed, least_cells=least_cells, together=first, processes=processes
        )
        if merge is not None:
            together = merge.evidence(together)
            of_states = [merge.evidence(each) for each in of_states]
        weights, evidence = with_evidence(weights, together, of_states), (together, of_states)
        give_back()
    prior = None
    if network.prior is not None:
        prior = prior_of(network, cells)
        if merge is not None:
            prior = replace(prior, factor=merge.columns(prior.factor))
        weights = prior.applied(weights)
        say(prior_summary(prior))
    certain = None if evidence is None else found_edges(weights, *evidence)
    for line in [] if certain is None else evidence_summary(certain):
        say(line)
    if evidence is not None:
        for line in vetoed(weights, evidence[0]):
            say(line)
    if merge is None:
        return ReadNetwork(weights, prior, cells.vocabulary, trained.regulators, certain)
    if not merge.intervened:
        return ReadNetwork(weights, prior, merge.names, merge.regulators, certain)
    caused = caused_effects(cells, states)
    weights, upstream = merge.with_caused(weights, caused), order_of(caused, merge.intervened)
    units = units_in_words(caused, merge.intervened, named=bool(cells.donors))
    for line in [*compared(weights), units, *in_words(upstream)]:
        say(line)
    return ReadNetwork(weights, prior, merge.names, merge.regulators, certain, upstream)


def with_effects(network: Network, effects: Effects, merge: Merge | None) -> Network:
    """Return the network with effects over all cells and in each state; a regulator's are those of
    its messenger.
    """

    def table(values: np.ndarray) -> np.ndarray:
        return values if merge is None else merge.observed(values)

    states = zip(network.of_states.items(), effects.of_states, strict=False)
    of_states = {
        name: replace(of, effect=table(of_effect.effect), effect_se=table(of_effect.error))
        for (name, of), of_effect in states
    }
    return replace(
        network, effect=table(effects.effect), effect_se=table(effects.error), of_states=of_states
    )


def network_of_model(
    network: NetworkConfig,
    trainer: TrainerConfig,
    trained: TrainedModel,
    cells: Cells,
    states: States,
    say: Say,
    first: Evidence | None = None,
    processes: Processes = ALONE,
    fold: np.ndarray | None = None,
) -> tuple[AnnData, pd.DataFrame, pd.DataFrame]:
    """Return the network of a trained model: as AnnData, its edges over all cells, and those of
    each state.

    first, processes, fold: see `network_of`.
    """
    if not trained.model.regulates:
        return attention_of_model(network, trainer, trained, cells)
    read = network_of(network, trainer, trained, cells, states, say, first, processes, fold)
    rows = np.flatnonzero(np.isin(np.array(cells.vocabulary, object), np.array(read.genes, object)))
    every = len(rows) == len(cells.vocabulary)
    about: dict[str, Any] = {
        "model_hash": trained.hash,
        "version": grn.__version__,
        "parameters": {
            "members": trained.model.config.members,
            "cells": len(cells),
            "donors": len(cells.donors),
            "top_k": network.top_k or 0,
            "seed": trainer.seed,
        },
    }
    if cells.hint:
        about["hint"] = cells.hint
    if read.prior is not None:
        about["prior"] = {"use": read.prior.use, "pairs": read.prior.listed}
    if read.found is not None:
        about["found"] = read.found
    if read.upstream is not None:
        about["upstream"] = read.upstream.set_index(read.upstream.index.map(str))
    adata = network_anndata(
        read.network,
        genes=read.genes,
        regulators=read.regulators,
        states=states,
        multiplicity=cells.multiplicity if every else cells.multiplicity[:, rows],
        top_k=network.top_k,
        var_names=None if cells.var_names is None else [cells.var_names[row] for row in rows],
        about=about,
    )
    edges, by_type = read.tables(network)
    if read.found is not None and (
        line := programmes.sentence(edges["target"][edges["q_value"] <= SIGNIFICANT])
    ):
        say(line)
    return adata, edges, by_type


def write_network_files(
    network: NetworkConfig,
    trainer: TrainerConfig,
    trained: TrainedModel,
    cells: Cells,
    folder: Path,
    say: Say,
    *,
    states: States,
    first: Evidence | None = None,
    processes: Processes = ALONE,
    fold: np.ndarray | None = None,
) -> pd.DataFrame:
    """Write network.h5ad, edges.parquet and edges_by_type.parquet into `folder`; return the edge
    table.

    first, processes, fold: see `network_of`.
    """
    adata, edges, by_type = network_of_model(
        network, trainer, trained, cells, states, say, first, processes, fold
    )
    write_network(folder, adata, edges, by_type)
    return edges


def opened(run: Path) -> tuple[Config, TrainedModel]:
    """Return the configuration of a finished run, and its model."""
    file = config_of(run, needed=(CONFIG,))
    refuse_cut_off(run, ("model",))
    # first: what a run lacks says more than what its configuration lacks
    trained = TrainedModel.load(run / "model")
    return load_config(file), trained


def read_again(
    run: Path, trained: TrainedModel | None = None, adata: AnnData | None = None
) -> AnnData:
    """All pairs of a finished run's network, read again from its model, or from `trained`, which
    may have been changed.

    adata: the run's cells, if they were in memory.
    Raises RunFolderError, ConfigError, DataError, VocabularyMismatch; also where the cells are no
    longer those that the run was trained on.
    """
    config, saved = opened(run)
    trained = saved if trained is None else trained
    cells = cells_of_run(run, config, saved, adata)
    states = states_of_run(run, cells, config.trainer.seed, saved)
    config = change_config(config, {"network.top_k": None})
    return network_of_model(config.network, config.trainer, trained, cells, states, silent)[0]


def read_layer_again(
    run: Path,
    choice: LayerChoice,
    *,
    cell_type: str | None,
    adata: AnnData | None,
    cells: Sequence[str] | None = None,
) -> tuple[pd.DataFrame, str]:
    """Return the edges (source, target, weight) of one block of a finished run, and what their
    signs mean.

    Over all states, or in that of the label `cell_type` alone. cells: names of cells, for a layer
    of the transformer in these; so is every layer of a model without signed blocks read. Other
    arguments and errors as for `read_again`.
    """
    config, trained = opened(run)
    if cells is not None or not trained.model.regulates:
        return attention_again(run, config, trained, choice, cell_type, adata, cells), SIGN
    choice.check(trained.model)
    all_cells = cells_of_run(run, config, trained, adata)
    states = states_of_run(run, all_cells, config.trainer.seed, trained)
    if cell_type is not None:
        refuse_unknown_type(cell_type, states.names if len(states) > 1 else ())
    chosen = range(len(states)) if cell_type is None else [states.names.index(cell_type)]
    trained.model.to(own_device(config.trainer))
    weight = read_layer(trained.model, choice, all_cells, states, chosen)
    return edges_of(weight, trained.vocabulary, trained.regulators), choice.meaning
