"""Means over bags and cell types, against means by hand."""

import numpy as np
import pytest

from grn.networks.readouts import whole_model
from grn.networks.readouts.whole_model import PairMean, average

NO_SELF = np.empty(0, dtype=int)


@pytest.fixture(autouse=True)
def unbalanced(monkeypatch):
    """Means as they are; balancing has a test of its own (test_weights.py)."""
    monkeypatch.setattr(whole_model, "balanced", lambda weight: weight)


def pair_mean(values, readable=None) -> PairMean:
    """values [B, N, R]."""
    values = np.asarray(values, dtype=float)
    mean = PairMean(*values.shape[1:])
    known = np.ones(values.shape, bool) if readable is None else np.asarray(readable)
    mean.add(values, known, slice(0, values.shape[2]))
    return mean


def test_pair_means_leave_unreadable_values_out():
    mean = pair_mean([[[1.0, np.nan]], [[3.0, 5.0]], [[8.0, 7.0]]], [[[1, 0]], [[1, 1]], [[0, 1]]])
    np.testing.assert_array_equal(mean.mean(), [[2.0, 6.0]])


def test_pairs_that_no_bag_could_read_are_nan():
    np.testing.assert_array_equal(pair_mean([[[1.0, 2.0]]], [[[True, False]]]).mean(), [[1.0, np.nan]])


def test_columns_and_batches_add_up():
    values = np.arange(24.0).reshape(4, 2, 3)
    mean = PairMean(2, 3)
    for bags in (slice(0, 1), slice(1, 4)):
        for columns in (slice(0, 2), slice(2, 3)):
            part = values[bags][:, :, columns]
            mean.add(part, np.ones(part.shape, bool), columns)
    np.testing.assert_allclose(mean.mean(), values.mean(0))


def test_types_are_weighted_by_their_number_of_cells():
    """Type 0: mean 2 of 30 cells; type 1: mean -6 of 10 cells. In units of 10."""
    means = {0: pair_mean([[[1.0]], [[3.0]]]), 1: pair_mean([[[-6.0]], [[-6.0]]])}
    found = average(means, {0: 30, 1: 10}, np.array([[10.0]]), NO_SELF)
    assert found.weight.tolist() == [[0.0]]
    found = average(means, {0: 50, 1: 10}, np.array([[10.0]]), NO_SELF)
    np.testing.assert_allclose(found.weight, [[10 * (50 * 2 - 10 * 6) / 60]])
    assert {label: weight.tolist() for label, weight in found.by_type.items()} == {
        "0": [[20.0]],
        "1": [[-60.0]],
    }
    assert found.confidence.tolist() == [[0.5]], "two of the four bags are positive, as the mean is"


def test_unlabelled_cells_count_without_being_a_type():
    means = {-1: pair_mean([[[4.0]]]), 2: pair_mean([[[1.0]]])}
    found = average(means, {-1: 1, 2: 2}, np.ones((1, 1)), NO_SELF)
    np.testing.assert_allclose(found.weight, [[2.0]])
    assert list(found.by_type) == ["2"]


def test_a_pair_that_is_unreadable_in_a_type_takes_its_mean_over_the_others():
    """[target 0: readable in both; target 1: only in type 1; target 2: nowhere]."""
    first = pair_mean([[[1.0], [99.0], [99.0]]], [[[True], [False], [False]]])
    second = pair_mean([[[3.0], [5.0], [99.0]]], [[[True], [True], [False]]])
    found = average({0: first, 1: second}, {0: 1, 1: 3}, np.ones((3, 1)), NO_SELF)
    np.testing.assert_allclose(found.weight, [[2.5], [5.0], [0.0]])
    np.testing.assert_allclose(found.by_type["0"], [[1.0], [5.0], [0.0]])
    np.testing.assert_allclose(found.by_type["1"], [[3.0], [5.0], [0.0]])


def test_self_pairs_are_no_edges():
    means = {0: pair_mean(np.ones((1, 3, 2)))}
    found = average(means, {0: 1}, np.ones((3, 2)), np.array([0, 2]))
    assert found.weight.tolist() == found.by_type["0"].tolist() == [[0, 1], [1, 1], [1, 0]]


def test_confidence_is_the_share_of_bags_with_the_sign_of_the_mean():
    values = np.array([[[-5.0]], [[1.0]], [[1.0]], [[-5.0]], [[-1.0]]])
    found = average({0: pair_mean(values)}, {0: 1}, np.ones((1, 1)), NO_SELF)
    np.testing.assert_allclose(found.confidence, [[3 / 5]])
    readable = np.array([[[True]], [[False]], [[True]], [[True]], [[False]]])
    found = average({0: pair_mean(values, readable)}, {0: 1}, np.ones((1, 1)), NO_SELF)
    np.testing.assert_allclose(found.confidence, [[2 / 3]])
