"""One file of a network for another program: `grn export RUN --format NAME`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from grn.config.files import load_config
from grn.data.preprocessing.genes import read_gene_list
from grn.errors import DataError, RunFolderError
from grn.files import damaged_h5ad, refuse_unwritable, replacing_file
from grn.messages import Say, silent
from grn.network.export import export, refuse_unknown_type
from grn.network.formats.chosen import ChosenEdges, Filters, choose
from grn.network.formats.registry import check_name, writer
from grn.run_folder import CONFIG

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
    say: Say = print,
) -> ChosenEdges:
    """Writes the edges of a run (or of a folder of `grn export`) that pass `filters`, in the format `name`, as the file
    `output`; returns them.

    They are read from the folder's tables. changes, by: the network is read again, as in `grn.network.export.export`,
    and these need the run's cells. Raises ConfigError, DataError, RunFolderError; nothing is written then.
    """
    refuse_output(name, output)
    if changes or by is not None:
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
    signs = f", {up} up and {len(edges) - up} down" if chosen.signed else ""
    say(
        f"Wrote {len(edges)} edges{signs}, from {edges['source'].nunique()} regulators to "
        f"{edges['target'].nunique()} targets ({chosen.cells}), as {output}."
    )


def read_edges(folder: Path, cell_type: str | None) -> tuple[pd.DataFrame, list[str], dict]:
    """The edge table of a folder of `grn train` or `grn export`, all genes, and what the weights mean (uns["grn"]).

    cell_type: of this type alone. Raises RunFolderError, DataError.
    """
    if not folder.exists():
        raise RunFolderError(f"{folder} does not exist; give a run folder.")
    for name in ("edges.parquet", "network.h5ad"):
        if not (folder / name).is_file():
            raise RunFolderError(f"{folder} holds no network: it has no {name}; give the folder of a finished run.")
    genes, about = _genes_and_meaning(folder / "network.h5ad")
    about.update(dataset_of(folder))
    if cell_type is None:
        return pd.read_parquet(folder / "edges.parquet"), genes, about
    if not (folder / BY_TYPE).is_file():
        raise RunFolderError(f"{folder} has no {BY_TYPE}; write its network again with grn export.")
    known = pd.read_parquet(folder / BY_TYPE, columns=["cell_type"])["cell_type"].unique()
    refuse_unknown_type(cell_type, tuple(map(str, known)))
    found = pd.read_parquet(folder / BY_TYPE, filters=[("cell_type", "==", cell_type)])
    return found.drop(columns="cell_type").reset_index(drop=True), genes, about


def _genes_and_meaning(path: Path) -> tuple[list[str], dict]:
    """Names of the genes and uns["grn"] of a network.h5ad; its matrices are not read. Raises DataError."""
    import h5py
    from anndata.io import read_elem

    try:
        with h5py.File(path) as file:
            return list(map(str, read_elem(file["var"]).index)), dict(read_elem(file["uns/grn"]))
    except Exception as problem:
        raise damaged_h5ad(path, problem) from problem


def dataset_of(run: Path) -> dict[str, str]:
    """The stem of the name of the run's cells, as `dataset_id`; nothing for a folder of `grn export`."""
    config = run / CONFIG
    return {"dataset_id": Path(load_config(config).data.path).stem} if config.is_file() else {}


def chosen_regulators(choice: Sequence[str] | str | os.PathLike[str] | None) -> list[str] | None:
    """Names of regulators: a list of them, a file with one a line, or names with commas between them.

    Raises DataError for a file without genes, and for an empty list.
    """
    if choice is None:
        return None
    if isinstance(choice, (str, os.PathLike)):
        text = os.fspath(choice)
        if Path(text).is_file():
            return read_gene_list(text, "--regulators")
        choice = text.split(",")
    names = [str(name).strip() for name in choice if str(name).strip()]
    if not names:
        raise DataError("--regulators names no gene; give names with commas between them, or a file with one a line.")
    return names


def _without_last_line(say: Say) -> Say:
    """The files in between are nobody's."""
    return lambda line: None if line.startswith("Wrote network.h5ad") else say(line)
