"""Mean, sd and variability of genes."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from grn.cells.preprocessing import moments
from grn.cells.preprocessing.moments import mean_and_sd, residual_variance, variance, varying


def test_mean_and_sd_are_those_of_the_dense_table(monkeypatch):
    monkeypatch.setattr(moments, "PIECE", 7)
    values = sp.random(31, 9, 0.4, format="csr", dtype=np.float32, random_state=1)
    values.data[::5] = 0  # zeros may be stored
    mean, sd = mean_and_sd(values)
    dense = values.toarray().astype(np.float64)
    np.testing.assert_allclose(mean, dense.mean(0), rtol=1e-6)
    np.testing.assert_allclose(sd, dense.std(0), rtol=1e-6)
    np.testing.assert_allclose(variance(values), dense.var(0), rtol=1e-4)


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 2.7182817, 3e4])
def test_a_gene_that_is_the_same_in_every_cell_does_not_vary_and_has_an_sd_of_1(value):
    values = np.full((100, 2), value, np.float32)
    values[0, 1] += 1
    assert varying(sp.csr_matrix(values)).tolist() == [False, True]
    assert mean_and_sd(sp.csr_matrix(values))[1][0] == 1
    # Sums of float32 would be off by more than what tells rounding from variation.
    assert not varying(sp.csr_matrix(np.full((105, 3), np.log1p(np.float32(2))))).any()


def test_residual_variance_is_that_of_scanpy_and_one_for_counting_noise(monkeypatch):
    """300 cells of different depths, 80 genes of different means; 7, 30 and 31 differ between
    halves of the cells.
    """
    scanpy = pytest.importorskip("scanpy")
    generator = np.random.default_rng(0)
    rates = generator.gamma(5, 0.2, (300, 1)) * generator.gamma(0.5, 4, (1, 80))
    rates[:, [7, 30, 31]] = 2
    rates[:150, [7, 30, 31]] = 0.5
    counts = generator.poisson(rates).astype(np.float32)
    counts[:, 4] = 0
    values = sp.csr_matrix(counts)
    options = {"flavor": "pearson_residuals", "n_top_genes": 10, "inplace": False}
    table = scanpy.experimental.pp.highly_variable_genes(scanpy.AnnData(values), **options)
    found = residual_variance(values)
    np.testing.assert_allclose(found, table["residual_variances"].fillna(0), rtol=1e-4)
    assert set(np.argsort(-found)[:3]) == {7, 30, 31} and found[4] == 0
    noise = np.delete(found, [7, 30, 31])
    assert 0.8 < np.median(noise[noise > 0.3]) < 1.2
    monkeypatch.setattr(moments, "BLOCK", 300 * 7)
    np.testing.assert_allclose(residual_variance(values), found, rtol=1e-6)
