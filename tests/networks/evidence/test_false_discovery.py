"""q-values and confidences: their order, their range, and what they find with and without true edges."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from grn.networks.evidence.false_discovery import (
    benjamini_hochberg,
    edge_evidence,
    local_rates,
    null_share,
    p_values,
    q_values,
    with_evidence,
)
from grn.networks.weights import Network
from grn.regulation.knockoffs import KnockoffFit

TARGETS, REGULATORS, EDGES = 100, 20, 150


@pytest.fixture
def weights():
    """Weights, of which the first EDGES (row by row) are strong, and weights of knock-offs."""
    generator = np.random.default_rng(2)
    weight = generator.standard_normal(TARGETS * REGULATORS)
    weight[:EDGES] = np.sign(weight[:EDGES]) * (6 + np.abs(weight[:EDGES]))
    weights = weight.reshape(TARGETS, REGULATORS), generator.standard_normal((TARGETS, REGULATORS))
    return tuple(map(torch.as_tensor, weights))


def test_q_falls_as_weights_grow_and_lies_in_0_1(weights):
    q = q_values(*weights)
    in_order = q.ravel()[weights[0].abs().ravel().argsort()]
    assert (in_order.diff() <= 0).all()
    assert q.min() > 0 and q.max() <= 1


def test_strong_edges_are_found_and_hardly_anything_else(weights):
    found = q_values(*weights).ravel() < 0.05
    assert found[:EDGES].all()
    assert found[EDGES:].sum() < 0.1 * EDGES


@pytest.mark.parametrize("seed", range(5))
def test_without_true_edges_hardly_anything_is_found(seed):
    weight, null = torch.as_tensor(np.random.default_rng(seed).standard_normal((2, TARGETS, REGULATORS)))
    assert (q_values(weight, null) < 0.1).double().mean() < 0.005


def test_neither_signs_nor_order_nor_unit_matter(weights):
    weight, null = weights
    generator = np.random.default_rng(3)
    rows, columns = generator.permutation(TARGETS), generator.permutation(REGULATORS)
    shuffled = torch.as_tensor(generator.permutation(null.ravel())).reshape(null.shape)
    moved = q_values(-3 * weight[rows][:, columns], 3 * shuffled)
    np.testing.assert_allclose(moved, q_values(weight, null)[rows][:, columns], rtol=1e-12)


def test_pairs_that_are_no_candidates_change_nothing(weights):
    weight, null = weights
    candidates = torch.ones(weight.shape, dtype=torch.bool)
    candidates[:5] = False
    q = q_values(weight, null, candidates)
    assert (q[:5] == 1).all()
    np.testing.assert_array_equal(q[5:], q_values(weight[5:], null[5:]))


def test_the_rate_is_that_of_scipy(weights):
    from scipy.stats import false_discovery_control

    p = p_values(weights[0].ravel(), weights[1].ravel())
    np.testing.assert_allclose(benjamini_hochberg(p), false_discovery_control(p), rtol=1e-12)
    assert null_share(p) == pytest.approx(1 - EDGES / weights[0].numel(), abs=0.06)
    assert null_share(torch.ones(10)) == 1


WEIGHTS = arrays(np.float64, st.integers(1, 40), elements=st.floats(-100, 100, width=16)).map(torch.as_tensor)


@given(WEIGHTS, WEIGHTS)
def test_local_rates_fall_as_weights_grow_and_lie_in_0_1(weight, null):
    rate = local_rates(weight, null)
    assert rate.shape == weight.shape and (rate >= 0).all() and (rate <= 1).all()
    assert (rate[weight.abs().argsort(stable=True)].diff() <= 1e-9).all()
    assert (rate > 0).all(), "no weight is certain"


@given(WEIGHTS, st.randoms(use_true_random=False))
def test_weights_that_are_distributed_as_knock_offs_are_all_false(weight, random):
    null = [random.choice((-1, 1)) * value for value in weight.tolist()]
    random.shuffle(null)
    np.testing.assert_allclose(local_rates(weight, torch.tensor(null, dtype=weight.dtype)), 1, rtol=1e-6)


@given(WEIGHTS, WEIGHTS, st.sampled_from([-8.0, 0.25, 4.0]))
def test_neither_signs_nor_the_unit_change_local_rates(weight, null, unit):
    np.testing.assert_allclose(local_rates(unit * weight, -unit * null), local_rates(weight, null), rtol=1e-9)


def test_local_rates_are_the_share_of_false_edges_around_a_weight():
    """A quarter of the weights have six times the spread of the others and of the knock-offs."""
    generator = np.random.default_rng(4)
    true = np.arange(40_000) < 10_000
    weight = generator.standard_normal(len(true)) * np.where(true, 6, 1)
    rate = local_rates(*map(torch.as_tensor, (weight, generator.standard_normal(len(true))))).numpy()
    for low, high in ((0, 1), (1, 2), (2, 3), (3, 100)):
        own = (np.abs(weight) >= low) & (np.abs(weight) < high)
        assert rate[own].mean() == pytest.approx((~true)[own].mean(), abs=0.1), (low, high)
    assert rate[np.abs(weight) < 1].mean() > 0.8 and rate[np.abs(weight) > 5].max() < 0.05


def knockoff_fit(slopes: np.ndarray, null_slopes: np.ndarray) -> KnockoffFit:
    """Of slopes [K, N, R] in states of equal size, in which all regulators vary alike."""
    ones = torch.ones(slopes.shape[0], slopes.shape[2], dtype=torch.float64)
    share = torch.full((len(slopes),), 1 / len(slopes), dtype=torch.float64)
    return KnockoffFit(torch.as_tensor(slopes), torch.as_tensor(null_slopes), share, ones, ones[0])


def test_states_are_judged_by_their_own_slopes_and_all_cells_by_the_mean():
    """Edges of one state are found in it and not in the others; a regulator that never varies there has none."""
    generator = np.random.default_rng(3)
    slopes, null = generator.standard_normal((2, 3, TARGETS, REGULATORS))
    edges = generator.random((TARGETS, REGULATORS)) < 0.1
    edges[np.arange(REGULATORS), np.arange(REGULATORS)] = False
    slopes[0, edges] += 12
    fit = knockoff_fit(slopes, null)
    fit.sds[1, 0] = 0
    together, of_states = edge_evidence(fit, np.arange(REGULATORS))
    assert (of_states[0].q[edges] < 0.05).mean() > 0.9
    assert (of_states[0].q[~edges] < 0.05).mean() < 0.02 and (of_states[2].q < 0.05).mean() < 0.01
    assert (of_states[1].confidence[:, 0] == of_states[1].confidence.min()).all()
    assert together.confidence[edges].mean() > together.confidence[~edges].mean() + 0.1
    weight = np.ones((TARGETS, REGULATORS))
    one = Network(*[weight] * 6)
    whole = with_evidence(replace(one, of_states=dict.fromkeys("abc", one)), together, of_states)
    assert whole.q is together.q and whole.weight is weight
    assert all(own.q is each.q for own, each in zip(whole.of_states.values(), of_states, strict=True))
    alone = edge_evidence(knockoff_fit(slopes[:1], null[:1]), np.arange(REGULATORS))
    assert alone[1] == [], "one state is all cells"
