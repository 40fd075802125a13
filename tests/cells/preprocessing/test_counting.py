"""The variance that counting causes, against drawn counts."""

import numpy as np
import pytest
from scipy import sparse

from grn.cells.preprocessing.multiplicity import counting_of, to_multiplicity

DRAWS = 200_000


@pytest.mark.parametrize("transform", ["counts", "log1p", "log1p_normalised"])
@pytest.mark.parametrize("mean", [0.1, 1.0, 8.0])
def test_it_is_the_variance_of_repeated_counts(transform, mean):
    """At most by a sixth more (a function that is not linear), and never less than by chance."""
    counts = sparse.csr_matrix(np.random.default_rng(0).poisson(mean, (DRAWS, 1)).astype(np.float32))
    arguments = (transform, np.full(DRAWS, 500.0), 1000.0)
    multiplicity = to_multiplicity(counts, *arguments)
    found = counting_of(*arguments).variance(multiplicity).mean()
    assert 0.98 < found / multiplicity.toarray().var() < 1.17


def test_cells_of_different_sizes_have_units_of_their_own():
    counts = sparse.csr_matrix(np.array([[3.0, 0, 1], [0, 0, 0], [3, 2, 0]], np.float32))
    arguments = ("log1p_normalised", np.array([100.0, 50, 400]), 200.0)
    found = counting_of(*arguments).variance(to_multiplicity(counts, *arguments)).toarray()
    for row, unit in ((0, 2.0), (2, 0.5)):
        for column, count in enumerate(counts.toarray()[row]):
            step = np.log1p(count * unit) - np.log1p((count - 1) * unit) if count else 0
            assert found[row, column] == pytest.approx(count * step**2, rel=1e-5)
    assert not found[1].any()
