"""From a trained model to network.h5ad and edges.parquet: at the end of a run, and again by `grn export`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

import grn
from grn.cells.cells import Cells
from grn.cells.load import read_columns
from grn.cells.loading.batches import is_packed
from grn.cells.obs import read_labels
from grn.config.files import load_config
from grn.config.schema import Config
from grn.devices import own_device
from grn.errors import ConfigError, DataError
from grn.io.atomic import refuse_used_folder, replacing_folder
from grn.io.run_folder import CONFIG, config_of, refuse_cut_off
from grn.messages import Say
from grn.model.saved import TrainedModel
from grn.networks.cells_of_run import cells_of_run, states_of_run
from grn.networks.file_formats import edge_table, edges_by_type, network_anndata, write_network
from grn.networks.in_context import summary
from grn.networks.prior import held_out, prior_of
from grn.networks.prior import summary as prior_summary
from grn.networks.readouts.sampling import even_rows
from grn.networks.run_readouts import WHOLE_MODEL, Networks, read_networks
from grn.networks.weights import Network
from grn.process_memory import give_back
from grn.regulation.fit import fit_regulation
from grn.regulation.states import States, states_of

FEWEST_CELLS = 10  # of a group, on average, for a network of its own
SIGNIFICANT = 0.05  # q-value up to which edges are counted


def write_network_files(
    config: Config,
    trained: TrainedModel,
    cells: Cells,
    folder: Path,
    say: Say,
    *,
    states: States,
    cell_type: str | None = None,
) -> pd.DataFrame:
    """Writes network.h5ad, edges.parquet and edges_by_type.parquet into `folder`; returns the edge table.

    states: those that the model's regulation was fitted with.   cell_type: the name of a state whose network alone is
    written. Raises DataError where there is none of that name.
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
    prior = None
    if settings.prior is not None:
        prior = prior_of(settings, cells)
        networks = replace(networks, chosen=prior.applied(networks.chosen))
        errors = held_out(prior, cells, regulators, config.trainer.seed)
        for line in prior_summary(prior, errors):
            say(line)
    if networks.chosen.q is not None:
        for line in summary(networks.chosen):
            say(line)
    if cell_type is not None:
        refuse_unknown_type(cell_type, tuple(networks.chosen.by_type))
        networks, states = of_one_type(networks, cell_type), of_one_state(states, cell_type)
    regulation = trained.model.regulation
    levels = {} if regulation is None or regulation.level_error is None else {"level_error": regulation.level_error}
    adata = network_anndata(
        networks,
        settings.readout,
        genes=cells.vocabulary,
        regulators=regulators,
        states=states,
        multiplicity=cells.multiplicity,
        top_k=settings.top_k,
        var_names=cells.var_names,
        about={
            "model_hash": trained.hash,
            "version": grn.__version__,
            "parameters": {
                "members": config.regulation.members,
                "cells": len(cells),
                "bags": bags_read(config, trained, cells),
                "top_k": settings.top_k or 0,
                "seed": config.trainer.seed,
            },
            **levels,
            **({} if prior is None else {"prior": {"use": prior.use, "pairs": prior.listed, "held_out_error": errors}}),
            **({} if cell_type is None else {"cell_type": cell_type}),
            **({} if networks.chosen.q is None else {"found": found_edges(networks.chosen)}),
        },
    )
    listed = (cells.vocabulary, regulators, settings.top_k)
    edges, by_type = (
        table(networks.chosen, *listed, q_values=settings.false_discovery is not False)
        for table in (edge_table, edges_by_type)
    )
    if prior is not None:
        edges, by_type = (prior.candidates(table, cells.vocabulary, regulators) for table in (edges, by_type))
    write_network(folder, adata, edges, by_type)
    return edges


def found_edges(network: Network) -> pd.DataFrame:
    """Columns label, edges: how many have a q-value of at most SIGNIFICANT, over all cells and in each state."""
    assert network.q is not None
    every = {"all cells": network.q, **network.type_q}
    labels = pd.Series(list(every), dtype=object)  # plain strings, which every version of h5ad can hold
    found = pd.DataFrame({"label": labels, "edges": [int((q <= SIGNIFICANT).sum()) for q in every.values()]})
    return found.set_index(pd.Index([str(number) for number in range(len(found))], dtype=object))


def of_one_type(networks: Networks, name: str) -> Networks:
    """The networks of one state alone; the blocks' attention is the same for all."""
    attention = networks.attention
    if attention is not None:
        attention = attention.of_type(name) if name in attention.by_type else None
    return Networks(networks.chosen.of_type(name), attention, networks.layers, networks.mean)


def of_one_state(states: States, name: str) -> States:
    """One state alone. Read-outs of the whole model know labels, which may be none of the states."""
    if name not in states.names:
        return States(np.ones((len(states.membership), 1), np.float32), (name,), states.origin)
    return States(states.membership[:, [states.names.index(name)]], (name,), states.origin)


def refuse_unknown_type(name: str, known: tuple[str, ...]) -> None:
    if not known:
        raise DataError(
            f"--cell-type is {name!r}, but this run has one network for all cells: it has no labels, and no states "
            "were found. Leave out --cell-type, or name groups with --by COLUMN."
        )
    if name not in known:
        raise DataError(f"--cell-type is {name!r}, which has no network; those are {', '.join(map(repr, known))}.")


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


def export(
    run: Path,
    output: Path,
    *,
    changes: dict | None = None,
    cell_type: str | None = None,
    by: str | None = None,
    say: Say = print,
) -> pd.DataFrame:
    """Reads the network of a finished run again and writes it into the folder `output`; returns the edge table.

    changes: fields of the configuration's network section, by name.   cell_type: write the network of this state alone.
    by: a column of obs whose groups are the states, in place of the run's; the regulation is fitted with them, again.
    Raises RunFolderError, ConfigError, DataError, VocabularyMismatch; also where the cells are no longer those that the
    run was trained on.
    """
    config_file = config_of(run, needed=(CONFIG,))
    refuse_cut_off(run, ("model",))
    trained = TrainedModel.load(run / "model")
    changes = changes or {}
    if changes.get("readout", "effect") != "effect":
        changes = {**changes, "false_discovery": "null"}  # q-values are about effects alone
    config = load_config(config_file, [f"network.{name}={value}" for name, value in changes.items()])
    refuse_used_folder(output)
    cells = cells_of_run(run, config, trained)
    states = None
    if by is not None:
        refuse_other_readouts(config)
        states = groups_of(config, cells, by)
        say(f"Fitting the regulation layers again, with {len(states)} groups of {by}: {', '.join(states.names[:12])}.")
        mean, sd = trained.model.mean.cpu(), trained.model.sd.cpu()
        prior = None if config.network.prior is None else prior_of(config.network, cells).strength
        rows = np.arange(len(cells))
        fitted = fit_regulation(config, cells, states, rows, mean=mean, sd=sd, say=say, prior=prior)
        trained.model.regulation = fitted.regulation
    states = states_of_run(run, cells, config.trainer.seed, trained) if states is None else states
    if cell_type is not None and config.network.readout not in WHOLE_MODEL:  # before a folder is made
        refuse_unknown_type(cell_type, states.names if len(states) > 1 else ())
    with replacing_folder(output) as beside:  # whole, or not at all
        edges = write_network_files(config, trained, cells, beside, say, states=states, cell_type=cell_type)
    say(f"Wrote network.h5ad, edges.parquet and edges_by_type.parquet in {output}.")
    return edges


def groups_of(config: Config, cells: Cells, by: str) -> States:
    """The groups of a column of obs as states. A cell without a group belongs to all, in proportion to their cells.

    Raises DataError where obs has no such column, or the column no groups that cells can be compared within.
    """
    column = read_columns(config.data, cells, {by: "--by"})[by]
    labels, names = read_labels(pd.DataFrame({by: column}), by, "give --by another column")
    if len(names) < 2:
        raise DataError(f"Column {by!r} of obs has one group only, {names[0]!r}; give --by a column with two or more.")
    if FEWEST_CELLS * len(names) > len(labels):
        raise DataError(
            f"Column {by!r} of obs has {len(names)} groups for {len(labels)} cells, and a network needs about "
            f"{FEWEST_CELLS} cells each; give --by a column with fewer groups."
        )
    return states_of(replace(cells, labels=labels, classes=names, state=None), config.trainer.seed)


def refuse_other_readouts(config: Config) -> None:
    if config.network.readout != "effect" or not config.regulation.members:
        raise ConfigError(
            f"--by fits the regulation layers and reads their effects, but the read-out is {config.network.readout} "
            f"and regulation.members {config.regulation.members}; leave out --by, or give --readout effect."
        )
