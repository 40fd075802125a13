"""AnnData's own formats: .h5ad files and .zarr folders."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
from anndata import AnnData

from grn.cells.readers.matrix import refuse_wrong_pointers
from grn.cells.readers.zarr_texts import refuse_false_numbers
from grn.config.schema import DataConfig
from grn.errors import DataError, one_line
from grn.io.atomic import damaged_h5ad, read_anndata, refuse_endless

LARGE = ("/X", "/raw/X", "/layers/", "/obsm/", "/obsp/")  # what grows with the cells, and is no table


def read_h5ad(path: Path, config: DataConfig) -> AnnData:
    """The AnnData in an .h5ad file; with data.backed its X stays in the file. Raises DataError for a damaged file."""
    adata = read_anndata(path, backed=config.backed)
    try:
        with h5py.File(path) as file:
            _refuse_damaged_tables(path, file)
    except (MemoryError, DataError):
        raise
    except Exception as problem:
        raise damaged_h5ad(path, problem) from problem
    return adata


@contextmanager
def h5ad_in_file(path: Path, config: DataConfig) -> Iterator[AnnData]:
    """The AnnData in an .h5ad file, whose matrices stay in the file, which is open within the context.

    X, .raw, layers, obsm and obsp then hold h5py.Dataset, or AnnData's CSRDataset or CSCDataset. Files from before
    AnnData 0.8 are read whole. Raises DataError for a damaged file.
    """
    from anndata.experimental import read_dispatched

    path.open("rb").close()  # where reading is forbidden, this error names the file; HDF5's own does not
    refuse_endless(path)
    try:
        file = h5py.File(path, "r")
    except Exception as problem:
        raise damaged_h5ad(path, problem) from problem
    with file:
        try:
            modern = file.attrs.get("encoding-type") == "anndata"
            if modern:
                _refuse_damaged_tables(path, file)
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", message=".* names are not unique")  # data.duplicates decides
                    adata = read_dispatched(file, _read_small)
        except (MemoryError, PermissionError, DataError):
            raise
        except Exception as problem:
            raise damaged_h5ad(path, problem) from problem
        yield adata if modern else read_h5ad(path, config)


def _read_small(read: Any, name: str, stored: Any, iospec: Any) -> Any:
    """Called by AnnData for every part of a file: large matrices are left in it."""
    if not stored.name.startswith(LARGE):
        return read(stored)
    if iospec.encoding_type in ("csr_matrix", "csc_matrix"):
        from anndata.io import sparse_dataset

        matrix = sparse_dataset(stored)
        refuse_wrong_pointers(matrix)
        return matrix
    of_numbers = isinstance(stored, h5py.Dataset) and stored.ndim == 2 and stored.dtype.kind in "fiub"
    return stored if of_numbers and iospec.encoding_type == "array" else read(stored)


def _refuse_damaged_tables(path: Path, file: h5py.File) -> None:
    """Raises DataError for what AnnData reads without complaint."""
    if "varp/grn" in file and "uns/grn/sign" in file:
        raise DataError(f"{path} is a network that grn wrote, and not cells; give a file with cells.")
    if "var" not in file:  # AnnData numbers the genes
        raise DataError(f"{path} has no table var, which names the genes; it is damaged: copy or write it again.")
    for table in (file[name] for name in ("obs", "var") if name in file):
        for column in table.values() if isinstance(table, h5py.Group) else ():
            if isinstance(column, h5py.Dataset) and not column.ndim:  # AnnData would repeat it for every row
                raise DataError(f"{path} has a single value in {column.name}; it is damaged: copy or write it again.")


PARTS = (("tables", "a SpatialData", "table"), ("mod", "a MuData", "rna"))  # where others keep AnnData, and how called


def read_zarr_folder(path: Path, config: DataConfig) -> AnnData:
    """The AnnData in a .zarr folder. Raises DataError where it is damaged or a chunk of its values is missing."""
    import anndata
    import zarr

    for folder, _, names in os.walk(path):
        if strange := next((name for name in names if not os.path.isfile(os.path.join(folder, name))), None):
            raise DataError(f"{path} holds {strange}, which is no file; copy or write the folder again.")
    try:
        store = zarr.open_group(path, mode="r")
    except PermissionError:
        raise
    except Exception:  # of many types, by Zarr's version
        raise DataError(
            f"{path} cannot be read as an AnnData .zarr folder: it is none; copy or write it again."
        ) from None
    for part, kind, key in PARTS:
        if part in store and "obs" not in store:
            raise DataError(
                f"{path} holds {kind}, of which AnnData are parts; read it, and write the part with the counts "
                f'({part}["{key}"]) by itself: .write_h5ad(FILE).'
            )
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".* names are not unique")  # data.duplicates decides
            _refuse_lost_names(path, store)
            refuse_false_numbers(path, store)
            adata = anndata.read_zarr(store)
        for array in _value_arrays(store):
            if lost := _lost(array):
                raise DataError(
                    f"{path} lacks {lost} of the {array.nchunks} chunks of {array.path}, which would be read as zeros; "
                    "copy or write the folder again (as a sparse matrix or .h5ad, if all these values are really 0)."
                )
    except (MemoryError, PermissionError, DataError):  # the first two are faults of the machine: cli/exit_codes.py
        raise
    except Exception as problem:  # a damaged folder fails anywhere between Zarr, NumPy, pandas and AnnData
        raise DataError(
            f"{path} cannot be read as an AnnData .zarr folder ({one_line(problem)}); it is damaged, incomplete or of "
            "another format: copy or write it again."
        ) from problem
    return adata


def _lost(array) -> int:
    """How many chunks of an array are missing."""
    return array.nchunks - array.nchunks_initialized


def _refuse_lost_names(path: Path, store) -> None:
    """Raises DataError for missing chunks of names, which would be read as empty, and of the codes of categories.

    Zarr leaves out chunks of zeros, so codes may be missing where all these cells have the first category: where all
    are missing, AnnData would have written this category alone.
    """
    import zarr

    for table in (store[name] for name in ("obs", "var") if isinstance(store.get(name), zarr.Group)):
        index = str(table.attrs.get("_index", "_index"))
        arrays = {
            name.removesuffix("/values"): array  # texts that may be missing are a group of values and a mask
            for name, array in table.members(max_depth=None)
            if isinstance(array, zarr.Array) and not name.endswith("/mask")
        }
        for name, array in arrays.items():
            if not _lost(array):
                continue
            codes = name.endswith("/codes") and _lost(array) == array.nchunks
            categories = arrays.get(f"{name.removesuffix('/codes')}/categories") if codes else None
            several = categories is not None and categories.size > 1
            if several or (array.size > 1 and (name == index or name.endswith("/categories"))):
                raise DataError(
                    f"{path} lacks {_lost(array)} of the {array.nchunks} chunks of "
                    f"{array.path.removesuffix('/values')}, so that names or labels are lost; copy or write the folder "
                    "again."
                )


def _value_arrays(store) -> Iterator:
    """The arrays of X, .raw and the layers."""
    import zarr

    for name in ("X", "raw/X", "layers"):
        found = store.get(name)
        if isinstance(found, zarr.Array):
            yield found
        elif isinstance(found, zarr.Group):
            for _, member in found.members(max_depth=None):
                if isinstance(member, zarr.Array):
                    yield member
