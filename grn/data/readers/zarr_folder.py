"""An AnnData .zarr folder, whose pieces are files of their own, which get lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from anndata import AnnData

from grn.errors import DataError, one_line


def read_zarr_folder(path: Path) -> AnnData:
    """The AnnData in a .zarr folder. Raises DataError for one that is damaged or lacks a piece of its values."""
    import anndata
    import zarr

    try:
        store = zarr.open_group(path, mode="r")
        adata = anndata.read_zarr(store)
        for array in _value_arrays(store):
            if array.nchunks_initialized < array.nchunks:
                lost = array.nchunks - array.nchunks_initialized
                raise DataError(
                    f"{path} lacks {lost} of the {array.nchunks} pieces of {array.path}, which would read as zeros; "
                    "copy or write it again (a sparse matrix or .h5ad, where all these values are 0)."
                )
    except (MemoryError, PermissionError, DataError):  # the machine's, not the file's: the boundary has sentences
        raise
    except Exception as problem:  # damage shows anywhere between Zarr, NumPy, pandas and AnnData
        raise DataError(
            f"{path} cannot be read as an AnnData .zarr folder ({one_line(problem)}); it is damaged, incomplete or "
            "something else: copy or write it again."
        ) from problem
    return adata


def _value_arrays(store) -> Iterator:
    """The arrays of X, .raw and the layers."""
    import zarr

    for place in ("X", "raw/X", "layers"):
        found = store.get(place)
        if isinstance(found, zarr.Array):
            yield found
        elif isinstance(found, zarr.Group):
            for _, member in found.members(max_depth=None):
                if isinstance(member, zarr.Array):
                    yield member
