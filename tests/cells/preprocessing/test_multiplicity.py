"""From counts to multiplicities."""

import numpy as np
import pytest
from scipy import sparse

from grn.cells.preprocessing.multiplicity import median_total, to_multiplicity
from grn.errors import DataError

COUNTS = sparse.csr_matrix(np.array([[1.0, 3, 0], [0, 0, 8], [0, 0, 0]], np.float32))
TOTALS = np.array([4.0, 8, 0])


def test_normalised_cells_have_the_target_total():
    again = np.expm1(to_multiplicity(COUNTS, "log1p_normalised", TOTALS, 6.0).toarray()).sum(axis=1)
    np.testing.assert_allclose(again, [6, 6, 0], rtol=1e-6)


def test_cells_are_scaled_by_the_totals_that_are_given():
    """Genes that do not measure depth are scaled by it, too; their sum may be above the target."""
    found = np.expm1(to_multiplicity(COUNTS, "log1p_normalised", np.array([1.0, 8, 0]), 6.0).toarray())
    np.testing.assert_allclose(found, [[6, 18, 0], [0, 0, 6], [0, 0, 0]], rtol=1e-6)


def test_log1p_and_counts():
    np.testing.assert_allclose(
        to_multiplicity(COUNTS, "log1p", TOTALS).toarray(), np.log1p(COUNTS.toarray()), rtol=1e-6
    )
    np.testing.assert_array_equal(to_multiplicity(COUNTS, "counts", TOTALS).toarray(), COUNTS.toarray())


@pytest.mark.parametrize("transform", ["counts", "log1p", "log1p_normalised"])
def test_zero_stays_zero_and_the_counts_stay_as_they_were(transform):
    before = COUNTS.copy()
    found = to_multiplicity(COUNTS, transform, TOTALS, 6.0)
    np.testing.assert_array_equal(found.toarray() > 0, COUNTS.toarray() > 0)
    assert found.dtype == np.float32 and found.nnz == COUNTS.nnz
    np.testing.assert_array_equal(COUNTS.toarray(), before.toarray())


def test_the_median_is_over_cells_that_have_counts():
    assert median_total(TOTALS) == 6.0


def test_no_counts_at_all_is_refused():
    with pytest.raises(DataError, match="No training cell has a count"):
        median_total(TOTALS[2:])
