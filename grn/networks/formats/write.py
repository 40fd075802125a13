"""One file of a network for another program: `grn export RUN --format NAME`."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData

from grn.bags import Bags
from grn.cells.cells import Cells
from grn.cells.genes import read_gene_list
from grn.cells.loading.batches import is_packed
from grn.config.files import load_config
from grn.devices import own_device
from grn.errors import ConfigError, DataError, RunFolderError
from grn.io.atomic import refuse_unwritable, replacing_file
from grn.io.h5ad import damaged_h5ad
from grn.io.run_folder import CONFIG, config_of, no_such_run, refuse_cut_off, refuse_mixed_parts
from grn.io.tables import does_not_exist, read_edge_table
from grn.messages import Say, silent
from grn.model.saved import TrainedModel
from grn.networks.cells_of_run import cells_of_run
from grn.networks.export import export, refuse_unknown_type
from grn.networks.file_formats import edge_table
from grn.networks.formats.chosen import ChosenEdges, Filters, choose
from grn.networks.formats.registry import check_name, writer
from grn.networks.readouts.blocks.one_layer import LayerChoice, meaning_of_signs, read_layer
from grn.networks.readouts.sampling import even_rows
from grn.networks.run_readouts import whole_bags
from grn.networks.weights import Network

BY_TYPE = "edges_by_type.parquet"


def export_file(
    run: Path,
    output: Path,
    name: str,
    filters: Filters,
    *,
    cell_type: str | None = None,
    changes: dict[str, Any] | None = None,
    by: str | None = None,
    layer: LayerChoice | None = None,
    say: Say = print,
) -> ChosenEdges:
    """Writes the edges of a run (or of a folder of `grn export`) that pass `filters`, in the format `name`, as the file
    `output`; returns them.

    They are read from the folder's tables. changes, by: the network is read again, as in `grn.networks.export.export`,
    and these need the run's cells. layer: the edges are those of one layer of the transformer, read again. Raises
    ConfigError, DataError, RunFolderError; nothing is written then.
    """
    refuse_output(name, output)
    if layer is not None:
        edges, genes, about = layer_edges(run, layer, cell_type, changes or {}, say)
    elif changes or by is not None:
        _refuse_cells(run, changes or {})
        with tempfile.TemporaryDirectory() as home:
            again = Path(home) / "network"
            export(run, again, changes=changes, cell_type=cell_type, by=by, say=_without_last_line(say))
            edges, genes, about = read_edges(again, None)
            about.update(dataset_of(run))
    else:
        edges, genes, about = read_edges(run, cell_type)
    chosen = choose(edges, genes, about, filters, cells=cell_type or str(about.get("cell_type", "all cells")))
    write_file(chosen, output, name, say)
    return chosen


def _refuse_cells(run: Path, changes: dict[str, Any]) -> None:
    """Raises ConfigError where a number of cells is given for a read-out that does not average over cells."""
    config = load_config(config_of(run, needed=(CONFIG,)))
    readout = changes.get("readout", config.network.readout)
    if "cells" in changes and (readout == "effect" or (readout == "attention" and config.regulation.members)):
        raise ConfigError(
            f"--cells is of read-outs that average over cells, and {readout} reads all of them; leave it out, or give "
            "--layer, or --readout knockout or jacobian."
        )


def refuse_output(name: str, output: Path) -> None:
    """Raises ConfigError, RunFolderError where the format is unknown or `output` cannot be made."""
    check_name(name, output)
    if os.path.lexists(output):
        raise RunFolderError(f"{output} already exists and is not overwritten; give --output another name.")
    refuse_unwritable(output)


def write_file(chosen: ChosenEdges, output: Path, name: str, say: Say = silent) -> None:
    """Writes the chosen edges as the file `output`, completely or not at all, and says what they are."""
    with replacing_file(output) as beside:
        writer(name)(chosen, beside)
    edges = chosen.edges
    up = int((edges["weight"] > 0).sum())
    for role, absent in (("regulators", chosen.absent), ("targets", chosen.absent_targets)):
        if absent:
            named = ", ".join(map(repr, absent[:3])) + (", ..." if len(absent) > 3 else "")
            say(f"{len(absent)} of the {role} that were asked for have no edge in this network: {named}.")
    signs = f", {up} up and {len(edges) - up} down" if chosen.signed else ""
    say(
        f"Wrote {len(edges)} edges{signs}, from {edges['source'].nunique()} regulators to "
        f"{edges['target'].nunique()} targets ({chosen.cells}), as {output}."
    )


PARTS = ("edges.parquet", "network.h5ad")


def read_edges(folder: Path, cell_type: str | None) -> tuple[pd.DataFrame, list[str], dict]:
    """The edge table of a folder of `grn train` or `grn export`, all genes, and what the weights mean (uns["grn"]).

    cell_type: of this type alone. Raises RunFolderError, DataError.
    """
    if not folder.exists():
        raise RunFolderError(no_such_run(folder, "give a run folder."))
    refuse_cut_off(folder, PARTS)
    for name in PARTS:
        if not (folder / name).is_file():
            raise RunFolderError(
                f"{folder} holds no network: it has no {name}", advice="give the folder of a finished run"
            )
    refuse_mixed_parts(folder)
    genes, about = _genes_and_meaning(folder / "network.h5ad")
    about.update(dataset_of(folder))
    if cell_type is None:
        return read_edge_table(folder / "edges.parquet"), genes, about
    if not (folder / BY_TYPE).is_file():
        raise RunFolderError(f"{folder} has no {BY_TYPE}; restore it, or train again.")
    known = read_edge_table(folder / BY_TYPE, columns=["cell_type"])["cell_type"].unique()
    refuse_unknown_type(cell_type, tuple(map(str, known)))
    found = read_edge_table(folder / BY_TYPE, filters=[("cell_type", "==", cell_type)])
    return found.drop(columns="cell_type").reset_index(drop=True), genes, about


def layer_edges(
    run: Path,
    choice: LayerChoice,
    cell_type: str | None,
    changes: dict[str, Any],
    say: Say,
    adata: AnnData | None = None,
) -> tuple[pd.DataFrame, list[str], dict]:
    """The edges of one layer, all genes, and what the weights mean: over about `network.cells` cells, evenly by type.

    cell_type: over the cells of this label alone. changes: fields of the network section. adata: the run's cells in
    memory. Raises UserError.
    """
    file = config_of(run, needed=(CONFIG,))
    config = load_config(file, [f"network.{field}={value}" for field, value in changes.items()])
    refuse_cut_off(run, ("model",))
    trained = TrainedModel.load(run / "model")
    model = trained.model.eval()
    choice.check(model)
    bags: Iterable[Bags] = ()
    if choice.needs_cells:
        model.to(own_device(config.trainer))
        cells = cells_of_run(run, config, trained, adata)
        rows = _rows(cells, cell_type, config.network.cells, config.trainer.seed)
        say(f"Reading layer {choice.layer} over {len(rows)} cells.")
        packed = is_packed(config.data.bags, len(cells.vocabulary))
        bags = whole_bags(model, cells.multiplicity, cells.basal, rows, trained.regulators, packed)
    elif cell_type is not None:
        raise ConfigError("--value score is the same for all cells; leave out --cell-type, or give --value weight.")
    weight = read_layer(model, choice, bags, trained.regulators)
    nothing = np.full((1, 1), np.nan, np.float32)
    unknown = np.broadcast_to(nothing, weight.shape)
    edges = edge_table(Network(weight, {}, unknown), trained.vocabulary, trained.regulators, None)
    about = {
        "readout": f"layer {choice.layer}, {choice.value}",
        "sign": meaning_of_signs(model, choice.value),
        "orientation": "row = target, column = regulator",
        "model_hash": trained.hash,
        **({} if choice.head is None else {"head": choice.head}),
        **dataset_of(run),
    }
    return edges, list(trained.vocabulary), about


def _rows(cells: Cells, cell_type: str | None, most: int | str, seed: int) -> np.ndarray:
    """About `most` cells, evenly by label; of one label where it is given. Raises DataError where there is none."""
    number = most if isinstance(most, int) else len(cells)  # all
    if cell_type is None:
        return even_rows(cells.labels, number, seed)
    refuse_unknown_type(cell_type, cells.classes)
    members = np.flatnonzero(cells.labels == cells.classes.index(cell_type))
    return members[even_rows(np.zeros(len(members), int), number, seed)]


def _genes_and_meaning(path: Path) -> tuple[list[str], dict]:
    """Names of the genes and uns["grn"] of a network.h5ad; its matrices are not read. Raises DataError."""
    import h5py
    from anndata.io import read_elem

    try:
        with h5py.File(path) as file:
            if "uns/grn" not in file:
                raise DataError(f"{path} holds no network of grn: uns['grn'] is missing; restore it, or train again.")
            return list(map(str, read_elem(file["var"]).index)), dict(read_elem(file["uns/grn"]))
    except DataError:
        raise
    except Exception as problem:
        raise damaged_h5ad(path, problem) from problem


def dataset_of(run: Path) -> dict[str, str]:
    """The stem of the name of the run's cells, as `dataset_id`; nothing for a folder of `grn export`."""
    config = run / CONFIG
    return {"dataset_id": Path(load_config(config).data.path).stem} if config.is_file() else {}


def chosen_genes(choice: Sequence[str] | str | os.PathLike[str] | None, option: str) -> list[str] | None:
    """Names of genes: a list of them, a file with one a line, or names with commas between them; `option` named them.

    Raises DataError for a file without genes, and for an empty list.
    """
    if choice is None:
        return None
    if isinstance(choice, (str, os.PathLike)):
        text = os.fspath(choice)
        if Path(text).is_file():
            return read_gene_list(text, option)
        if re.search(r"[/\\]|\.(txt|csv|tsv|gz|list)$", text):  # a file, and no name
            raise DataError(does_not_exist(Path(text), f"give {option} names, or a file with one a line."))
        choice = re.split("[,;]", text)
    if not isinstance(choice, Iterable):
        raise DataError(f"{option} is {choice!r}; give a list of names, or a file with one a line.")
    names = [str(name).strip() for name in choice if str(name).strip()]
    if not names:
        raise DataError(f"{option} names no gene; give names with commas between them, or a file with one a line.")
    return names


def _without_last_line(say: Say) -> Say:
    """The files in between are nobody's."""
    return lambda line: None if line.startswith("Wrote network.h5ad") else say(line)
