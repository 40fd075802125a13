"""Weights of a network: how rows are balanced, and what regulators that hardly vary count."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grn.edges.weights import Network, balanced, presence, seen_enough


def drawn(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(6, 4)) * np.array(
        [[1e-3], [1], [50], [2], [0], [9]]
    )


def test_balanced_rows_are_as_the_roots_of_their_norms_and_keep_their_signs():
    weight = drawn()
    found = balanced(torch.as_tensor(weight)).numpy()
    norm, root = np.linalg.norm(found, axis=1), np.linalg.norm(weight, axis=1) ** 0.5
    np.testing.assert_allclose(norm / norm[1], root / root[1], rtol=1e-5)
    np.testing.assert_array_equal(np.sign(found), np.sign(weight))
    for row in (0, 1, 2, 3, 5):
        np.testing.assert_allclose(found[row] / norm[row], weight[row] / root[row] ** 2, rtol=1e-5)
    assert (found[4] == 0).all() and found.dtype == np.float32


@given(st.floats(1e-6, 1e6))
def test_balancing_keeps_the_sum_of_squares_and_the_unit(size):
    """So effects that are nearly zero everywhere stay nearly zero."""
    weight = drawn(1)
    found = balanced(torch.as_tensor(size * weight)).numpy()
    assert np.square(found, dtype=float).sum() == pytest.approx(
        size**2 * np.square(weight).sum(), rel=1e-5
    )
    np.testing.assert_allclose(found, size * balanced(torch.as_tensor(weight)).numpy(), rtol=1e-5)


def test_a_regulator_that_hardly_varies_in_a_state_counts_less():
    """From half its usual sd on it counts whole; one that never varies anywhere counts nothing."""
    found = presence(
        torch.tensor([[0.0, 0.25, 0.5, 2.0, 0.0]]), torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0])
    )
    assert found.tolist() == [[0, 0.5, 1, 1, 0]]


def test_a_pair_that_few_cells_have_together_has_no_weight():
    """Over all cells, or in a state; what the data say of it stays."""
    cells, values = np.array([[0, 9], [10, 30], [50, 11]]), np.full((3, 2), 0.7)
    own = Network(*[values] * 5, cells - 9)
    found = seen_enough(Network(*[values] * 5, cells, of_states={"a": own}), 10)
    for one, seen in ((found, cells >= 10), (found.of_states["a"], cells >= 19)):
        for name in ("weight", "sd", "total", "indirect"):
            np.testing.assert_array_equal(getattr(one, name), np.where(seen, 0.7, 0))
        assert one.between is values
    assert found.cells is cells
