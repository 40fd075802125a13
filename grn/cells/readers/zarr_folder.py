"""AnnData .zarr folders. Each chunk of an array is a file, and may be missing: the reader checks for that."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

from anndata import AnnData

from grn.cells.readers.zarr_texts import refuse_false_numbers
from grn.config.schema import DataConfig
from grn.errors import DataError, one_line

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
