"""AnnData's own formats: .h5ad files and .zarr folders."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
from anndata import AnnData

from grn.cells.genes.names import is_numbered
from grn.cells.readers import reading
from grn.cells.readers.matrix import DENSE, check_pointers
from grn.cells.simulated.cells import TRUTH
from grn.config.schema import DataConfig
from grn.runtime.errors import DataError

# parts that grow with the cells and are no tables
LARGE = ("/X", "/raw/X", "/layers/", "/obsm/", "/obsp/")
# key in uns of the function that reads the names of cells, where these are not in obs
NAMES = "grn_names"
Columns = Callable[[str], bool]
UNREAD = ("/obsm", "/varm", "/obsp", "/varp", "/raw/varm")  # what training does not need


def read_h5ad(path: Path, config: DataConfig) -> AnnData:
    """Read an .h5ad file into memory. Raises DataError for a damaged file."""
    import anndata

    with _reading_h5ad(path):
        with h5py.File(path, "r") as file:
            _refuse_other(path, file)
        return _named(anndata.read_h5ad(path))


def _reading_h5ad(path: Path) -> AbstractContextManager[None]:
    return reading(f"{path} cannot be read as an .h5ad file")


@contextmanager
def h5ad_in_file(
    path: Path, config: DataConfig, *, everything: bool = True, columns: Columns | None = None
) -> Iterator[AnnData]:
    """Open an .h5ad file, whose matrices stay in the file. It is open within the context.

    X, raw, layers, obsm and obsp of the AnnData hold h5py.Dataset, or AnnData's CSRDataset or
    CSCDataset. Files from before AnnData 0.8 are read whole.

    everything: False: obsm, varm, obsp, varp and uns (except planted edges) are not read.
    columns: tells by its name whether a column of obs is read. Other columns hold zeros. Names of
        cells, if they are plain texts, are then empty: `names_of` reads some when they are needed.
        None: all columns and names are read.
    Raises DataError for a damaged file.
    """
    with _reading_h5ad(path):
        # where reading is forbidden, this error names the file; HDF5's own does not
        path.open("rb").close()
        file = h5py.File(path, "r")
    with file:
        with _reading_h5ad(path):
            _refuse_other(path, file)
            modern = file.attrs.get("encoding-type") == "anndata"
            adata = (
                _named(_opened(path, file, everything, columns))
                if modern
                else read_h5ad(path, config)
            )
        yield adata


@contextmanager
def matrix_in_file(path: Path, choice: str) -> Iterator[tuple[Any, pd.DataFrame]]:
    """Open a matrix in a file (see h5ad_in_file) with the table of its genes; nothing else is read.

    path: an .h5ad file of AnnData 0.8 or later, or a .zarr folder.
    choice: of data.counts, except `recover`.
    Raises DataError for a damaged file.
    """
    import zarr
    from anndata.experimental import read_dispatched

    name, var = choice.replace("layer:", "layers/", 1), "var"
    if choice == "raw":
        name, var = "raw/X", "raw/var"
    with reading(f"{path} cannot be read"):
        store = zarr.open_group(path, mode="r") if path.is_dir() else h5py.File(path, "r")
        matrix, genes = (
            read_dispatched(store[part], partial(_read_part, False, None)) for part in (name, var)
        )
        _name_rows(genes)
    try:
        yield matrix, genes
    finally:
        if isinstance(store, h5py.File):
            store.close()


def read_zarr_folder(
    path: Path, config: DataConfig, *, everything: bool = True, columns: Columns | None = None
) -> AnnData:
    """Read a .zarr folder into memory.

    everything: False: what h5ad_in_file leaves out is not read, and matrices stay in the folder.
    columns: see h5ad_in_file; it counts where not everything is read.
    Raises DataError for a damaged folder.
    """
    import anndata
    import zarr

    with reading(f"{path} cannot be read as an AnnData .zarr folder"):
        store = zarr.open_group(path, mode="r")
        _refuse_other(path, store)
        _refuse_lost_chunks(store)
        if everything or store.attrs.get("encoding-type") != "anndata":
            return _named(anndata.read_zarr(store))
        return _named(_opened(path, store, everything, columns))


def names_of(adata: AnnData, rows: Any) -> pd.Index:
    """Return the names of some cells, from the file where they were left there.

    rows: a slice, or sorted positions.
    """
    read = adata.uns.get(NAMES)
    return read(rows) if callable(read) else adata.obs_names[rows]


def _named(adata: AnnData) -> AnnData:
    """Return the AnnData without columns `_index`, which SeuratDisk writes and AnnData cannot."""
    for table in (adata.obs, adata.var, *([] if adata.raw is None else [adata.raw.var])):
        _name_rows(table)
    return adata


def _name_rows(table: pd.DataFrame) -> None:
    """Make a column `_index` the names of the rows where these have numbers for names, else call it
    `names`.
    """
    if "_index" not in table:
        return
    if is_numbered(table.index):
        table.index = pd.Index(table["_index"].astype(str).to_numpy(object))
        del table["_index"]
    else:
        table.rename(columns={"_index": "names"}, inplace=True)


def _opened(path: Path, store: Any, everything: bool, columns: Columns | None) -> AnnData:
    """Return the AnnData of an open file or folder, see h5ad_in_file.

    Names of cells, if none is missing, stay there for `names_of`: to read 5 million of them, and
    for AnnData to look whether two are equal, takes 7 s and .4 GB.
    """
    from anndata.experimental import read_dispatched

    if columns is None or "obs" not in store:
        return read_dispatched(store, partial(_read_part, everything, None))
    index, wanted = store["obs"].attrs["_index"], columns
    names = store["obs"][index]
    if names.attrs.get("encoding-type") == "nullable-string-array" and not names["mask"][:].any():
        names = names["values"]
    read_other = partial(_read_part, everything, lambda name: name == index or wanted(name))
    if names.attrs.get("encoding-type") != "string-array":
        return read_dispatched(store, read_other)

    def read_part(read: Any, name: str, stored: Any, iospec: Any) -> Any:
        unread = stored.name == names.name
        return (
            np.full(names.shape, "", object) if unread else read_other(read, name, stored, iospec)
        )

    def read_names(rows: Any) -> pd.Index:
        with reading(f"{path} cannot be read"):
            return pd.Index(
                (names.asstr() if isinstance(names, h5py.Dataset) else names.oindex)[rows]
            )

    adata = read_dispatched(store, read_part)
    adata.uns[NAMES] = read_names
    return adata


def _read_part(
    everything: bool, columns: Columns | None, read: Any, name: str, stored: Any, iospec: Any
) -> Any:
    """Read a part of a file, unless it is not needed, or is a large matrix, which stays in the
    file. AnnData calls this for every part.

    everything, columns: see h5ad_in_file.
    read, name, stored, iospec: as AnnData gives them.
    """
    if columns is not None and stored.name.startswith("/obs/"):
        # of a column and, of some, of what it consists of
        parts = stored.name.removeprefix("/obs/").split("/")
        if not any(map(columns, accumulate(parts, "{}/{}".format))):
            return np.int8(0)  # in every cell
    if not everything and stored.name in UNREAD:
        return {}
    if not everything and stored.name == "/uns":
        return _planted_edges(stored)
    if not stored.name.startswith(LARGE):
        return read(stored)
    if iospec.encoding_type in ("csr_matrix", "csc_matrix"):
        from anndata.io import sparse_dataset

        matrix = sparse_dataset(stored)
        check_pointers(matrix)
        return matrix
    of_numbers = isinstance(stored, DENSE) and stored.ndim == 2 and stored.dtype.kind in "fiub"
    return stored if of_numbers and iospec.encoding_type == "array" else read(stored)


def _planted_edges(uns: Any) -> dict[str, Any]:
    """Return the planted edges of simulated cells, as uns; {} of other cells."""
    from anndata.io import read_elem

    # training does not need the rest of uns, which may even be damaged
    with suppress(Exception):
        return {TRUTH: read_elem(uns[TRUTH])}
    return {}


def _refuse_other(path: Path, store: Any) -> None:
    """Raise DataError for a network, and for cells whose genes have no names (AnnData would number
    them).
    """
    network = "varp/grn" in store and "uns/grn/sign" in store
    if network or "var" not in store:
        problem = (
            "is a network that grn wrote, and not cells"
            if network
            else "has no table var, which names the genes"
        )
        raise DataError(f"{path} {problem}", field="data.path", advice="give a file with cells")


def _refuse_lost_chunks(store: Any) -> None:
    """Raise ValueError where a chunk of values, names or labels is missing: Zarr would read zeros
    or empty texts in its place.

    Zarr leaves out chunks of zeros, so codes of categories may be missing where all these cells
    have the first category: where all are missing and there are several categories, AnnData would
    have written the first one alone.
    """
    import zarr

    arrays = {
        name: array
        for name, array in store.members(max_depth=None)
        if isinstance(array, zarr.Array)
    }
    for name, array in arrays.items():
        stored = array.shards or array.chunks  # of which each is a file, or a part of none
        files = math.prod(-(-size // part) for size, part in zip(array.shape, stored, strict=True))
        missing = files - array.nchunks_initialized // (
            math.prod(stored) // math.prod(array.chunks)
        )
        if not missing or name.endswith("/mask"):
            continue
        table, _, column = name.rpartition("/")
        if column == "values":  # texts that may be missing are a group of values and a mask
            table, _, column = table.rpartition("/")
        of_values = name == "X" or name.startswith(("X/", "raw/X", "layers/"))
        of_names = column == "categories" or (
            table in store and column == store[table].attrs.get("_index")
        )
        categories = arrays.get(f"{table}/categories", arrays.get(f"{table}/categories/values"))
        of_codes = (
            column == "codes"
            and missing == files
            and categories is not None
            and categories.size > 1
        )
        if of_values or of_codes or (of_names and array.size > 1):
            raise ValueError(
                f"it lacks {missing} of the {files} chunks of {name}, and values or names with them"
            )
