"""Small expression sets for the tests of the data layer."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from anndata import AnnData
from scipy import sparse

from grn.cells.load import load_cells
from grn.config.schema import DataConfig


@pytest.fixture
def adata() -> AnnData:
    """40 cells of 12 genes: absent genes, a common one, and a different depth in each cell."""
    generator = np.random.default_rng(0)
    rates = generator.gamma(0.5, 4, (1, 12)) * generator.gamma(3, 0.5, (40, 1))
    counts = generator.poisson(rates).astype(np.float32)
    counts[:, 0] = 1 + np.arange(40) % 7
    counts[:, 1] = 1
    labels = np.array(["T/NK cell", "B cell", "CD14+ monocyte"])[np.arange(40) % 3]
    return AnnData(
        sparse.csr_matrix(counts),
        obs=pd.DataFrame({"label": labels}, index=[f"cell{i}" for i in range(40)]),
        var=pd.DataFrame(index=[f"gene{i}" for i in range(12)]),
    )


@pytest.fixture
def write(tmp_path):
    """Writes an AnnData and gives the path for `data.path`."""

    def to_file(adata: AnnData, name: str = "cells.h5ad") -> str:
        path = tmp_path / name
        adata.write_h5ad(path)
        return str(path)

    return to_file


@pytest.fixture
def load(write):
    """Writes an AnnData, and reads its cells and their split."""

    def from_file(adata: AnnData, *, seed: int = 0, **fields):
        return load_cells(DataConfig(path=write(adata), **fields), seed)

    return from_file
