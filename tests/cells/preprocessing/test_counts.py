"""Where counts are read from, and the messages for values that cannot be counts."""

import numpy as np
import pytest
from anndata import AnnData
from scipy import sparse

from grn.cells.preprocessing.counts import read_expression
from grn.config.schema import DataConfig
from grn.errors import ConfigError, DataError


def config(**fields) -> DataConfig:
    return DataConfig(path="cells.h5ad", **fields)


def log_normalised(counts) -> sparse.csr_matrix:
    values = sparse.csr_matrix(counts, dtype=np.float64)
    return values.multiply(1e4 / values.sum(axis=1)).tocsr().log1p()


def test_the_origin_of_the_counts_is_a_sentence(adata):
    adata.layers["umi"] = adata.X
    assert read_expression(adata, config()).origin == "Counts are read from X."
    assert read_expression(adata, config(counts="layer:umi")).origin == "Counts are read from layer 'umi'."


def test_raw_brings_its_own_genes(adata):
    adata.raw = adata
    part = adata[:, ["gene3", "gene0"]].copy()
    part.X = np.full(part.shape, 0.5)
    found = read_expression(part, config(counts="raw"))
    assert list(found.var.index) == list(adata.var_names)
    assert (found.values != adata.X).nnz == 0


@pytest.mark.parametrize(
    ("value", "words"),
    [(-1, "is negative"), (np.nan, "is not finite"), (np.inf, "is not finite"), (2.5, "is not a whole number")],
)
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix, sparse.csc_matrix])
def test_a_value_that_is_not_a_count_is_named_with_its_cell_and_gene(adata, value, words, form):
    counts = adata.X.toarray()
    counts[5, 7] = value
    adata.X = form(counts)
    with pytest.raises(DataError, match=rf"{value} for gene gene7 in cell cell5, which {words}"):
        read_expression(adata, config())


def test_log_values_given_as_counts_name_the_alternatives(adata):
    adata.layers["umi"] = adata.X.copy()
    adata.layers["scaled"] = adata.X.toarray() - 1
    adata.raw = adata
    adata.X = log_normalised(adata.X)
    with pytest.raises(DataError, match=r"\(it looks log-normalised\); set data\.counts: raw or layer:umi\.$"):
        read_expression(adata, config())


def test_halves_of_counts_are_no_logarithms(adata):
    adata.X = adata.X / 2
    with pytest.raises(DataError, match=r"which is not a whole number; ") as raised:
        read_expression(adata, config())
    assert "log-normalised" not in str(raised.value)


def test_log_values_alone_offer_to_recover(adata):
    adata.X = log_normalised(adata.X)
    with pytest.raises(DataError, match=r"set data\.counts: recover"):
        read_expression(adata, config())


def test_values_without_counts_anywhere_offer_expression(adata):
    adata.X = np.random.default_rng(0).gamma(1, 1, adata.shape)
    with pytest.raises(DataError, match=r"give data with counts, or set data\.values: expression"):
        read_expression(adata, config())


@pytest.mark.parametrize(
    ("counts", "words"),
    [("raw", r"no \.raw; set data\.counts to one of: X, layer:umi"), ("layer:ump", "no layer 'ump'.*layer:umi")],
)
def test_a_missing_matrix_names_those_that_exist(adata, counts, words):
    adata.layers["umi"] = adata.X
    with pytest.raises(DataError, match=words):
        read_expression(adata, config(counts=counts))


def test_an_unknown_choice_is_an_error_of_the_configuration(adata):
    with pytest.raises(ConfigError, match="'umi'; it must be X, raw, layer:NAME or recover"):
        read_expression(adata, config(counts="umi"))


def test_a_matrix_of_zeros_is_refused(adata):
    adata.X = adata.X * 0
    with pytest.raises(DataError, match="X holds no value above 0"):
        read_expression(adata, config())


def test_expression_is_used_as_it_is(adata):
    adata.X = log_normalised(adata.X).astype(np.float32)
    found = read_expression(adata, config(values="expression"))
    np.testing.assert_array_equal(found.values.toarray(), adata.X.toarray())


def test_negative_expression_is_refused_with_advice(adata):
    values = adata.X.toarray()
    values[3, 2] = -0.5
    adata.X = values
    with pytest.raises(
        DataError, match=r"-0\.5 for gene gene2 in cell cell3, but multiplicities cannot be negative; use"
    ):
        read_expression(adata, config(values="expression"))


def test_missing_expression_is_refused(adata):
    values = adata.X.toarray()
    values[3, 2] = np.nan
    adata.X = values
    with pytest.raises(DataError, match=r"nan for gene gene2 in cell cell3, which is not finite"):
        read_expression(adata, config(values="expression"))


def test_counts_that_need_no_recovery_are_named(adata):
    adata.layers["umi"] = adata.X.copy()
    adata.X = adata.X * 60  # above 50: too large for log values
    with pytest.raises(DataError, match=r"X is not log1p of counts.*; set data\.counts: X or layer:umi\.$"):
        read_expression(adata, config(counts="recover"))
    del adata.layers["umi"]
    adata.X = adata.X + sparse.csr_matrix(adata.X > 0) * 0.5
    with pytest.raises(DataError, match=r"set data\.counts to a matrix that holds counts, or data\.values: expression"):
        read_expression(adata, config(counts="recover"))


def test_recover_contradicts_expression(adata):
    with pytest.raises(ConfigError, match="recover computes counts"):
        read_expression(adata, config(values="expression", counts="recover"))


@pytest.mark.parametrize("value", [np.nan, np.inf, -2.0])
def test_expression_is_not_suggested_for_values_that_it_would_refuse(adata, value):
    counts = adata.X.toarray()
    counts[1, 2] = value
    adata.X = sparse.csr_matrix(counts)
    with pytest.raises(DataError, match="; correct it, or give data with counts"):
        read_expression(adata, DataConfig(path="x"))


def test_values_that_no_count_can_have_are_refused_before_they_become_infinite():
    values = np.random.default_rng(0).poisson(2.0, (5, 4)).astype(np.float64)
    values[1, 2] = 1e300
    with pytest.raises(DataError, match=r"it has 1e\+300 for gene 2 in cell 1, which is too large for a count"):
        read_expression(AnnData(values), DataConfig(path="x"))


@pytest.mark.parametrize("factor", [1e300, 1e20, 1e-300])
def test_expression_too_far_from_1_to_compute_with_is_refused(adata, factor):
    adata.X = adata.X.astype(np.float64) * factor
    with pytest.raises(DataError, match=r"The largest value of X is .*, too far from 1 .*; divide all values by one"):
        read_expression(adata, config(values="expression"))
