"""AnnData files (.h5ad)."""

from __future__ import annotations

from pathlib import Path

import h5py
from anndata import AnnData

from grn.config.schema import DataConfig
from grn.errors import DataError
from grn.files import read_anndata


def read_h5ad(path: Path, config: DataConfig) -> AnnData:
    """The AnnData in an .h5ad file; with data.backed its X stays in the file. Raises DataError for a damaged file."""
    adata = read_anndata(path, backed=config.backed)
    with h5py.File(path) as file:
        if "var" not in file:  # AnnData reads it without complaint, and numbers the genes
            raise DataError(f"{path} has no table var, which names the genes; it is damaged: copy or write it again.")
        for table in (file["obs"], file["var"]):
            for column in table.values() if isinstance(table, h5py.Group) else ():
                if isinstance(column, h5py.Dataset) and not column.ndim:  # AnnData would repeat it for every row
                    raise DataError(
                        f"{path} has a single value in {column.name}; it is damaged: copy or write it again."
                    )
    return adata
