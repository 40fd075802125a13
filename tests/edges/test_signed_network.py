"""Edge lists and blocks of a network agree with its matrix."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from anndata import AnnData
from scipy import sparse

from grn.edges.signed_network import (
    SignedNetwork,
    edge_list,
    open_network,
    read_about,
    sign_has_meaning,
    signed_network,
    weights_in,
)
from grn.runtime.errors import DataError

GENES = pd.Index([f"G{number}" for number in range(30)])


def random_network(types: int = 3) -> SignedNetwork:
    generator = np.random.default_rng(0)

    def weights() -> sparse.csr_matrix:
        dense = generator.normal(size=(30, 30)) * (np.arange(30) < 20)  # columns: 20 regulators
        np.fill_diagonal(dense, 0)
        return sparse.csr_matrix(dense)

    return SignedNetwork(
        GENES,
        weights(),
        {f"T/{number}": weights() for number in range(types)},
        {"sign": "positive"},
    )


def test_the_edge_list_is_the_matrix_sorted_by_magnitude():
    network = random_network()
    edges = edge_list(network.weights, GENES)
    assert len(edges) == network.weights.nnz
    assert (edges["weight"].abs().diff().dropna() <= 0).all()
    again = np.zeros((30, 30))
    again[GENES.get_indexer(edges["target"]), GENES.get_indexer(edges["source"])] = edges["weight"]
    np.testing.assert_array_equal(again, network.weights.toarray())


@pytest.mark.parametrize("positions", [np.uint8, np.uint32, np.int64])
def test_weights_have_any_positions_that_anndata_stores(positions):
    expected = random_network().weights
    stored = expected.copy()
    stored.indices = stored.indices.astype(positions)
    cells = AnnData(np.zeros((1, 30), np.float32), varp={"grn": stored})
    found = weights_in(cells, "grn")
    np.testing.assert_array_equal(found.toarray(), expected.toarray())
    assert found.indices.dtype.kind == "i"


def test_what_signs_mean_is_read_without_the_matrices(tiny_run, tmp_path):
    path = tiny_run / "network.h5ad"
    about = read_about(path)[1]
    assert about["sign"] == open_network(path).about["sign"] and sign_has_meaning(about["sign"])
    AnnData(np.zeros((1, 2), np.float32)).write_h5ad(tmp_path / "cells.h5ad")
    assert read_about(tmp_path / "cells.h5ad")[1] == {}
    (tmp_path / "cut.h5ad").write_bytes(path.read_bytes()[:5000])
    with pytest.raises(DataError, match=r"cut\.h5ad cannot be read as \.h5ad") as caught:
        read_about(tmp_path / "cut.h5ad")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("other", [pd.DataFrame(), AnnData(np.zeros((1, 2), np.float32))])
def test_what_is_not_a_network_is_refused_with_where_to_find_one(other):
    with pytest.raises(DataError, match=r"holds no network.*run\.network"):
        signed_network(other)
