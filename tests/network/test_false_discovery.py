"""q-values: their order, their range, and what they find with and without true edges."""

from __future__ import annotations

import numpy as np
import pytest

from grn.network.false_discovery import benjamini_hochberg, null_share, p_values, q_values

TARGETS, REGULATORS, EDGES = 100, 20, 150


@pytest.fixture
def weights():
    """Weights, of which the first EDGES (row by row) are strong, and weights of knock-offs."""
    generator = np.random.default_rng(2)
    weight = generator.standard_normal(TARGETS * REGULATORS)
    weight[:EDGES] = np.sign(weight[:EDGES]) * (6 + np.abs(weight[:EDGES]))
    return weight.reshape(TARGETS, REGULATORS), generator.standard_normal((TARGETS, REGULATORS))


def test_q_falls_as_weights_grow_and_lies_in_0_1(weights):
    q = q_values(*weights)
    in_order = q.ravel()[np.argsort(np.abs(weights[0]).ravel())]
    assert (np.diff(in_order) <= 0).all()
    assert q.min() > 0 and q.max() <= 1


def test_strong_edges_are_found_and_hardly_anything_else(weights):
    found = q_values(*weights).ravel() < 0.05
    assert found[:EDGES].all()
    assert found[EDGES:].sum() < 0.1 * EDGES


@pytest.mark.parametrize("seed", range(5))
def test_without_true_edges_hardly_anything_is_found(seed):
    weight, null = np.random.default_rng(seed).standard_normal((2, TARGETS, REGULATORS))
    assert (q_values(weight, null) < 0.1).mean() < 0.005


def test_neither_signs_nor_order_nor_unit_matter(weights):
    weight, null = weights
    generator = np.random.default_rng(3)
    rows, columns = generator.permutation(TARGETS), generator.permutation(REGULATORS)
    moved = q_values(-3 * weight[rows][:, columns], 3 * generator.permutation(null.ravel()).reshape(null.shape))
    np.testing.assert_allclose(moved, q_values(weight, null)[rows][:, columns], rtol=1e-12)


def test_pairs_that_are_no_candidates_change_nothing(weights):
    weight, null = weights
    candidates = np.ones(weight.shape, dtype=bool)
    candidates[:5] = False
    q = q_values(weight, null, candidates)
    assert (q[:5] == 1).all()
    np.testing.assert_array_equal(q[5:], q_values(weight[5:], null[5:]))


def test_a_weight_without_effect_is_never_found():
    weight = np.zeros((4, 3))
    assert (q_values(weight, weight) == 1).all()


def test_the_rate_is_that_of_scipy(weights):
    from scipy.stats import false_discovery_control

    p = p_values(weights[0].ravel(), weights[1].ravel())
    np.testing.assert_allclose(benjamini_hochberg(p), false_discovery_control(p), rtol=1e-12)
    assert null_share(p) == pytest.approx(1 - EDGES / weights[0].size, abs=0.06)
    assert null_share(np.ones(10)) == 1


def test_weights_that_cannot_be_compared_are_refused(weights):
    weight, null = weights
    with pytest.raises(ValueError, match="must be equal"):
        q_values(weight, null[1:])
    with pytest.raises(ValueError, match="finite"):
        q_values(np.where(weight > 6, np.nan, weight), null)
