"""data.path: what opens, and what does not."""

import sys
import types

import h5py
import numpy as np
import pytest

from grn.cells.load import load_cells
from grn.cells.readers.registry import open_source
from grn.config.schema import DataConfig
from grn.runtime.errors import DataError


def test_pbmc3k_keeps_labelled_cells_in_the_order_of_the_counts(adata, monkeypatch):
    processed = adata[["cell7", "cell3", "cell20"]].copy()
    processed.obs["louvain"] = ["B", "NK", "T"]
    stub = types.ModuleType("scanpy")
    stub.datasets = types.SimpleNamespace(pbmc3k=lambda: adata, pbmc3k_processed=lambda: processed)
    monkeypatch.setitem(sys.modules, "scanpy", stub)
    cells = open_source(DataConfig(path="scanpy:pbmc3k"))
    assert list(cells.obs["louvain"].items()) == [("cell3", "NK"), ("cell7", "B"), ("cell20", "T")]
    np.testing.assert_array_equal(
        cells.X.toarray(), adata[["cell3", "cell7", "cell20"]].X.toarray()
    )


def test_a_file_without_x_names_the_other_matrices_and_one_without_genes_is_refused(adata, write):
    adata.layers["umi"] = adata.X
    adata.X = None
    config = DataConfig(path=write(adata))
    with pytest.raises(DataError, match=r"has no X; set data\.counts to layer:umi"):
        load_cells(config)
    assert len(load_cells(config.model_copy(update={"counts": "layer:umi"}))[0]) == 40
    with h5py.File(config.path, "r+") as file:
        del file["var"]
    with pytest.raises(DataError, match="has no table var"):
        load_cells(config)
