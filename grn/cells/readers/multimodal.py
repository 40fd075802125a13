"""Containers of several AnnData: MuData files (.h5mu) and SpatialData folders (.zarr), read without
their own libraries.

A MuData file has an AnnData for each kind of data in `mod`, of which the RNA is read, and columns
about all cells in `obs`. A SpatialData folder has its AnnData in `tables`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import pandas as pd
from anndata import AnnData

from grn.cells.genes.feature_types import GENES
from grn.cells.readers import add_note, reading
from grn.config.schema import DataConfig
from grn.runtime.errors import DataError

TABLES = ("tables", "table")  # of SpatialData, and of its versions before 0.1
USUAL = "table"


def read_h5mu(path: Path, config: DataConfig) -> AnnData:
    """Read the RNA of a MuData file, with the columns of obs that are about all kinds of data in
    it.

    Raises DataError.
    """
    from anndata.io import read_elem

    with reading(f"{path} cannot be read as a MuData file"), h5py.File(path, "r") as file:
        kinds = list(file["mod"])
        name = rna_of(path, kinds)
        adata = read_elem(file["mod"][name])
        if not isinstance(adata, AnnData):
            raise ValueError(f"its part {name} is no AnnData")
        if "obs" in file:
            _add_columns(adata, read_elem(file["obs"]), name)
    others = [each for each in kinds if each != name]
    left = f"; {', '.join(others)} {'is' if len(others) == 1 else 'are'} left out" if others else ""
    add_note(adata, f"Cells are read from {name} of {path}{left}.")
    return adata


def rna_of(path: Path, kinds: Sequence[str]) -> str:
    """Return the name of the RNA among the kinds of data of a file; a single kind is taken for it.

    Raises DataError where the names do not tell.
    """
    found = [name for name in kinds if name.casefold() in GENES]
    found = found if len(found) == 1 else list(kinds)
    if len(found) != 1:
        raise DataError(
            f"{path} holds {len(kinds)} kinds of data ({', '.join(kinds)}), and which one is the "
            "RNA is not clear from their names",
            field="data.path",
            advice="call it rna, or write it alone: mudata.read(FILE).mod[NAME].write(NEW)",
        )
    return found[0]


def _add_columns(adata: AnnData, about_all: Any, name: str) -> None:
    """Add the columns of the whole file's obs that the obs of the RNA lacks.

    about_all: obs of the whole file, in which `NAME:type` is the column type of one kind of data.
    name: of the RNA.
    """
    if not isinstance(about_all, pd.DataFrame):
        return
    for column in map(str, about_all):
        own = column.removeprefix(f"{name}:")
        if own not in adata.obs and ":" not in own:
            adata.obs[own] = about_all[column].reindex(adata.obs_names)


def table_within(folder: Path) -> Path:
    """Return the folder of the table in a SpatialData folder; any other folder itself.

    Raises DataError for a folder with several tables, and for one of MuData.
    """
    if (folder / "mod").is_dir():
        raise DataError(
            f"{folder} is a MuData folder of several kinds of data",
            field="data.path",
            advice="give the one of its genes, as mod/rna in it",
        )
    place = next((folder / name for name in TABLES if (folder / name).is_dir()), None)
    if place is None or (folder / "var").is_dir():
        return folder
    names = sorted(each.name for each in place.iterdir() if (each / "var").is_dir())
    if USUAL in names:
        return place / USUAL
    if len(names) == 1:
        return place / names[0]
    held = f"{len(names)} tables ({', '.join(names)})" if names else "no table of cells"
    raise DataError(
        f"{folder} is a SpatialData folder with {held}",
        field="data.path",
        advice=f"give one of them, as {place / (names or ['NAME'])[0]}",
    )


def is_zarr(folder: Path) -> bool:
    """Return whether a folder is a group of Zarr, whatever its name is."""
    return any((folder / name).is_file() for name in ("zarr.json", ".zgroup"))
