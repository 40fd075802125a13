"""AnnData files (.h5ad)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
from anndata import AnnData

from grn.cells.readers.matrix import refuse_wrong_pointers
from grn.config.schema import DataConfig
from grn.errors import DataError
from grn.io.h5ad import damaged_h5ad, read_anndata

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
