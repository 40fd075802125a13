"""Mean and sd of genes, those that are the same in every cell among them."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from grn.cells.preprocessing import moments
from grn.cells.preprocessing.moments import mean_and_sd, varying


def test_mean_and_sd_are_those_of_the_dense_table(monkeypatch):
    monkeypatch.setattr(moments, "PIECE", 7)
    values = sp.random(31, 9, 0.4, format="csr", dtype=np.float32, random_state=1)
    values.data[::5] = 0  # zeros may be stored
    mean, sd = mean_and_sd(values)
    dense = values.toarray().astype(np.float64)
    np.testing.assert_allclose(mean, dense.mean(0), rtol=1e-6)
    np.testing.assert_allclose(sd, dense.std(0), rtol=1e-6)


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 2.7182817, 3e4])
def test_a_gene_that_is_the_same_in_every_cell_does_not_vary_and_has_an_sd_of_1(value):
    values = np.full((100, 2), value, np.float32)
    values[0, 1] += 1
    assert varying(sp.csr_matrix(values)).tolist() == [False, True]
    assert mean_and_sd(sp.csr_matrix(values))[1][0] == 1


def test_equal_values_of_many_cells_do_not_vary():
    """Sums of float32 would be off by more than what tells rounding from variation."""
    assert not varying(sp.csr_matrix(np.full((105, 3), np.log1p(np.float32(2))))).any()
