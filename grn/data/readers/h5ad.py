"""AnnData files (.h5ad)."""

from __future__ import annotations

from pathlib import Path

from anndata import AnnData

from grn.config.schema import DataConfig
from grn.files import read_anndata


def read_h5ad(path: Path, config: DataConfig) -> AnnData:
    """The AnnData in an .h5ad file; with data.backed its X stays in the file. Raises DataError for a damaged file."""
    return read_anndata(path, backed=config.backed)
