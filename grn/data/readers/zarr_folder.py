"""AnnData .zarr folders. Each chunk of an array is a file, and may be missing: the reader checks for that."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

from anndata import AnnData

from grn.config.schema import DataConfig
from grn.errors import DataError, one_line


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
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".* names are not unique")  # data.duplicates decides
            adata = anndata.read_zarr(store)
        for array in _value_arrays(store):
            if array.nchunks_initialized < array.nchunks:
                lost = array.nchunks - array.nchunks_initialized
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
