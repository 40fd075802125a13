"""Weights of a network: how rows are balanced, and the network of one type."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grn.networks.weights import Network, balanced


def drawn(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(6, 4)) * np.array([[1e-3], [1], [50], [2], [0], [9]])


def test_balanced_rows_are_to_each_other_as_the_roots_of_their_norms_and_keep_their_signs():
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
    assert np.square(found, dtype=float).sum() == pytest.approx(size**2 * np.square(weight).sum(), rel=1e-5)
    np.testing.assert_allclose(found, size * balanced(torch.as_tensor(weight)).numpy(), rtol=1e-5)


def test_the_network_of_a_type_has_what_is_known_of_the_type():
    weight, known = {"a": drawn(2), "b": drawn(3)}, {"a": drawn(4), "b": drawn(5)}
    q, between = {"a": drawn(6), "b": drawn(7)}, drawn(8)
    whole = Network(drawn(9), weight, drawn(10), drawn(11), between, known, drawn(12), q)
    found = whole.of_type("b")
    assert found.weight is found.within is weight["b"] and found.between is between
    assert found.confidence is known["b"] and found.q is q["b"] and not found.by_type
    unknown = Network(drawn(9), weight, whole.confidence).of_type("a")
    assert unknown.within is unknown.between is unknown.q is None and unknown.confidence is whole.confidence
