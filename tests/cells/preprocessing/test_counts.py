"""Where counts are read from, and what is refused in their place."""

import numpy as np
import pytest
from anndata import AnnData
from scipy import sparse

from grn.cells.notes import _of_scale
from grn.cells.preprocessing.counts import choices_that_hold, read_expression
from grn.config.schema import DataConfig
from grn.runtime.errors import DataError


def config(**fields) -> DataConfig:
    return DataConfig(path="cells.h5ad", **fields)


def refused(adata: AnnData, **fields) -> DataError:
    with pytest.raises(DataError) as caught:
        read_expression(adata, config(**fields))
    assert caught.value.field == "data.counts"
    return caught.value


def log_normalised(counts) -> sparse.csr_matrix:
    values = sparse.csr_matrix(counts, dtype=np.float64)
    return values.multiply(1e4 / values.sum(axis=1)).tocsr().log1p()


def test_raw_brings_its_own_genes(adata):
    adata.raw = adata
    part = adata[:, ["gene3", "gene0"]].copy()
    part.X = np.full(part.shape, 0.5)
    found = read_expression(part, config(counts="raw"))
    assert list(found.var.index) == list(adata.var_names)
    assert (found.values != adata.X).nnz == 0


@pytest.mark.parametrize("value", [-1, np.nan, np.inf, 2.5, 2e7, 1e300])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix, sparse.csc_matrix])
@pytest.mark.parametrize("rows", [None, 7])
def test_a_value_that_is_not_a_count_is_named_with_its_cell_and_gene(adata, value, form, rows):
    counts = adata.X.toarray().astype(np.float64)
    counts[5, 7] = value
    adata.X = form(counts)
    with pytest.raises(DataError, match="for gene gene7 in cell cell5") as caught:
        read_expression(adata, config(), rows)
    assert caught.value.field == "data.counts" and f"{value:g}" in caught.value.problem


@pytest.mark.parametrize("rows", [None, 7])
def test_a_single_absurd_count_is_refused_and_one_of_many_large_ones_is_not(adata, rows):
    """A count of 200 000 where the gene's next largest is far below; genes of bulk samples have
    many such counts.
    """
    counts = adata.X.toarray()
    counts[33, 4] = 2e5
    adata.X = sparse.csr_matrix(counts)
    with pytest.raises(DataError, match="200000 for gene gene4 in cell cell33"):
        read_expression(adata, config(), rows)
    for other in ((2, 4), (34, 4)):  # in another piece, and in the same
        again = adata.copy()
        again.X = sparse.csr_matrix(
            counts + 300 * (np.indices(counts.shape) == np.array(other)[:, None, None]).all(0)
        )
        assert read_expression(again, config(), rows).scale.largest == 2e5


def test_log_values_given_as_counts_name_the_alternatives(adata):
    adata.layers["umi"] = adata.X.copy()
    adata.layers["scaled"] = adata.X.toarray() - 1
    adata.raw = adata
    adata.X = log_normalised(adata.X)
    error = refused(adata)
    assert "looks log-normalised" in error.problem
    assert "raw or layer:umi" in error.advice and "scaled" not in error.advice
    assert choices_that_hold(adata, "counts") == ["raw", "layer:umi"]
    assert "raw or layer:umi" in refused(adata, counts="layer:ump").advice
    assert "recover" in refused(AnnData(adata.X)).advice
    assert "data.values to expression" in refused(AnnData(np.sqrt(adata.X.toarray()))).advice


@pytest.mark.parametrize("value", [-0.5, np.nan, np.inf, 1e300, None])
def test_expression_is_used_as_it_is_and_refused_where_it_cannot_be_a_multiplicity(adata, value):
    """None: nothing but zeros."""
    values = log_normalised(adata.X).astype(np.float32).toarray()
    adata.X = values
    np.testing.assert_array_equal(
        read_expression(adata, config(values="expression")).values.toarray(), values
    )
    adata.X = values.astype(np.float64) if value else 0 * values
    adata.X[3, 2] = value or 0
    error = refused(adata, values="expression")
    assert (
        "only zeros" in error.problem
        if value is None
        else "gene gene2 in cell cell3" in error.problem
    )


def told(counts, **options) -> str:
    adata = AnnData(sparse.csr_matrix(np.asarray(counts, np.float32)))
    return " ".join(_of_scale(read_expression(adata, config(), 16, **options).scale, 300.0))


def test_counts_that_are_seldom_what_they_seem_are_named():
    raw = np.random.default_rng(0).poisson(np.random.default_rng(1).gamma(1, 2, 150), (60, 150))
    total = raw.sum(1, keepdims=True)
    assert told(raw) == ""
    assert "nearly the same total" in told(np.round(raw / total * 1e6))
    assert "multiples of its smallest one (10 in" in told(10 * raw)
    assert "multiples of its smallest one" in told(np.round(raw / total * 1e6)[:, :-5]), (
        "rounded CPM of some genes"
    )
    assert "No count is above 1" in told(raw > 0)
    assert told(raw, weights=np.ones(150)) == ""
    assert "300 in training" in told(8 * raw + (raw > 0), weights=np.ones(150))
