"""The size of cells that nobody has read: the same as that of the AnnData in every format that tells it."""

import gzip

import numpy as np
import pandas as pd
import pytest
from anndata import AnnData
from scipy import sparse
from scipy.io import mmwrite

from grn.cells.size import DENSE_SHARE, Size, size_of_source
from grn.config.schema import DataConfig

CELLS, GENES = 9, 5


@pytest.fixture
def adata() -> AnnData:
    counts = np.random.default_rng(0).poisson(0.7, (CELLS, GENES)).astype(np.float32)
    obs = pd.DataFrame({"type": pd.Categorical(["a", "b", "c"] * 3)}, index=[f"c{cell}" for cell in range(CELLS)])
    return AnnData(
        sparse.csr_matrix(counts), obs=obs, layers={"twice": 2 * counts}, var=pd.DataFrame(index=list("vwxyz"))
    )


def size_at(path, **fields) -> Size | None:
    return size_of_source(DataConfig(path=str(path), label_key="type", **fields))


@pytest.mark.parametrize("ending", ["h5ad", "zarr"])
def test_of_anndata(adata, tmp_path, ending):
    getattr(adata, f"write_{ending}")(tmp_path / f"cells.{ending}")
    expected = Size(CELLS, GENES, adata.X.nnz, labels=3)
    assert size_at(tmp_path / f"cells.{ending}") == expected
    assert size_of_source(DataConfig(path="memory:", label_key="type"), adata) == expected


def test_a_dense_matrix_is_read_whole_unless_it_is_backed(adata, tmp_path):
    adata.write_h5ad(tmp_path / "cells.h5ad")
    found = size_at(tmp_path / "cells.h5ad", counts="layer:twice")
    assert found == Size(CELLS, GENES, int(DENSE_SHARE * CELLS * GENES), CELLS * GENES * 4, 3)
    assert size_at(tmp_path / "cells.h5ad", counts="layer:twice", backed=True).whole == 0


@pytest.mark.parametrize("packed", [False, True])
def test_of_a_10x_folder(adata, tmp_path, packed):
    mmwrite(tmp_path / "matrix.mtx", sparse.coo_matrix(adata.X.T), comment="a comment")
    if packed:
        content = (tmp_path / "matrix.mtx").read_bytes()
        (tmp_path / "matrix.mtx").unlink()
        (tmp_path / "matrix.mtx.gz").write_bytes(gzip.compress(content))
    assert size_at(tmp_path) == Size(CELLS, GENES, adata.X.nnz)


def test_what_cannot_be_told_is_left_to_the_reader(tmp_path):
    (tmp_path / "cells.h5ad").write_bytes(b"no HDF5")
    (tmp_path / "cells.csv").write_text("cell,a\nb,1\n")
    (tmp_path / "empty").mkdir()
    for path in ("cells.h5ad", "cells.csv", "empty", "none.h5ad"):
        assert size_at(tmp_path / path) is None
    assert size_at("simulated:") is None
