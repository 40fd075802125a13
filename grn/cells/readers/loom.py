"""Loom files (velocyto, SCope and others): HDF5 with a matrix of genes by cells and attributes of
both.

AnnData's own reader needs loompy, which is no longer maintained, and takes the layer `spliced` for
X.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse

from grn.cells.readers import reading
from grn.config.schema import DataConfig

GENES = (
    "Gene",
    "gene_names",
    "gene_name",
    "Symbol",
    "gene_symbol",
    "var_names",
    "Accession",
    "gene_ids",
)
CELLS = ("CellID", "cell_names", "obs_names", "cell_id", "barcode", "Barcode")
ROWS = 512  # genes that are read at a time


def read_loom(path: Path, config: DataConfig) -> AnnData:
    """Read a Loom file. Layers are kept; attributes with one value a cell or gene go to obs or var.

    Raises DataError.
    """
    with reading(f"{path} cannot be read as a Loom file"), h5py.File(path, "r") as file:
        var = _table(file["row_attrs"], GENES, "genes")
        obs = _table(file["col_attrs"], CELLS, "cells")
        adata = AnnData(_cells_by_genes(file["matrix"]), obs=obs)
        adata.var = var  # afterwards, as AnnData would warn of genes that repeat
        for name, layer in file.get("layers", {}).items():
            adata.layers[name] = _cells_by_genes(layer)
        return adata


def _cells_by_genes(matrix: h5py.Dataset) -> sparse.csr_matrix:
    """Read a matrix of genes by cells as cells by genes."""
    blocks = [
        sparse.csr_matrix(matrix[start : start + ROWS]) for start in range(0, matrix.shape[0], ROWS)
    ]
    return sparse.vstack(blocks, format="csr").T.tocsr()


def _table(attributes: h5py.Group, names: tuple[str, ...], what: str) -> pd.DataFrame:
    """Read attributes as a table of cells or genes.

    names: attributes that may hold the names of the rows; the first one that is there does.
    what: the rows, for messages.
    Raises ValueError where no attribute holds names.
    """
    columns = {name: _values(each) for name, each in attributes.items() if each.ndim == 1}
    name = next((each for each in names if each in columns), None)
    if name is None:
        raise ValueError(f"it has no names of {what}, as an attribute {names[0]}")
    index = pd.Index(columns.pop(name).astype(str), dtype=object)
    return pd.DataFrame(columns, index=index)


def _values(stored: h5py.Dataset) -> np.ndarray[Any, Any]:
    if stored.dtype.kind in "OS":
        return stored.asstr()[:].astype(object)
    return stored[:]
