"""Which genes vary more than counting explains."""

import numpy as np
import pytest
from scipy import sparse

from grn.cells.preprocessing import moments
from grn.cells.preprocessing.moments import residual_variance, variance


def counts(seed: int = 0) -> sparse.csr_matrix:
    """300 cells of different depths, 80 genes of different means; 7, 30 and 31 differ between halves of the cells."""
    generator = np.random.default_rng(seed)
    rates = generator.gamma(5, 0.2, (300, 1)) * generator.gamma(0.5, 4, (1, 80))
    rates[:, [7, 30, 31]] = 2
    rates[:150, [7, 30, 31]] = 0.5
    return sparse.csr_matrix(generator.poisson(rates).astype(np.float32))


def test_the_genes_that_differ_between_cells_are_found():
    assert set(np.argsort(-residual_variance(counts()))[:3]) == {7, 30, 31}


def test_counting_noise_has_variance_one_whatever_the_mean():
    found = np.delete(residual_variance(counts()), [7, 30, 31])
    assert 0.8 < np.median(found[found > 0.3]) < 1.2


def test_blocks_change_nothing(monkeypatch):
    whole = residual_variance(counts())
    monkeypatch.setattr(moments, "BLOCK", 300 * 7)
    np.testing.assert_allclose(residual_variance(counts()), whole, rtol=1e-6)


def test_scanpy_gives_the_same():
    scanpy = pytest.importorskip("scanpy")
    table = scanpy.experimental.pp.highly_variable_genes(
        scanpy.AnnData(counts()), flavor="pearson_residuals", n_top_genes=10, inplace=False
    )
    np.testing.assert_allclose(residual_variance(counts()), table["residual_variances"], rtol=1e-4)


def test_genes_and_cells_without_counts_are_not_variable():
    empty = counts().tolil()
    empty[:, 4] = 0
    empty[9] = 0
    found = residual_variance(empty.tocsr())
    assert found[4] == 0
    assert np.isfinite(found).all()


def test_variance_of_expression():
    values = counts()
    np.testing.assert_allclose(variance(values), values.toarray().var(axis=0), rtol=1e-4)
