"""Small expression sets for the tests of the data layer."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from anndata import AnnData
from scipy import sparse


def small_counts(cells: int = 40, genes: int = 12, seed: int = 0) -> np.ndarray:
    """Counts with absent genes, a common one and a different depth in each cell."""
    generator = np.random.default_rng(seed)
    rates = generator.gamma(0.5, 4, (1, genes)) * generator.gamma(3, 0.5, (cells, 1))
    counts = generator.poisson(rates).astype(np.float32)
    counts[:, 0] = 1 + np.arange(cells) % 7
    counts[:, 1] = 1
    return counts


def small_adata(cells: int = 40, genes: int = 12, seed: int = 0) -> AnnData:
    labels = np.array(["T/NK cell", "B cell", "CD14+ monocyte"])[np.arange(cells) % 3]
    return AnnData(
        sparse.csr_matrix(small_counts(cells, genes, seed)),
        obs=pd.DataFrame({"label": labels}, index=[f"cell{i}" for i in range(cells)]),
        var=pd.DataFrame(index=[f"gene{i}" for i in range(genes)]),
    )


@pytest.fixture
def adata() -> AnnData:
    return small_adata()


@pytest.fixture
def write(tmp_path):
    """Writes an AnnData and gives the path for `data.path`."""

    def to_file(adata: AnnData, name: str = "cells.h5ad") -> str:
        path = tmp_path / name
        adata.write_h5ad(path)
        return str(path)

    return to_file
