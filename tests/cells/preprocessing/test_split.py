"""Every cell in exactly one part."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grn.cells.preprocessing.split import split_cells
from grn.errors import ConfigError, DataError

seeds = st.integers(0, 2**31)
fractions = st.tuples(st.floats(0.05, 0.45), st.floats(0.05, 0.45))


def parts(split) -> list[np.ndarray]:
    return [split.train, split.validation, split.test]


@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=6), fractions=fractions, seed=seeds)
def test_each_cell_is_in_one_part_and_each_type_of_three_in_all(sizes, fractions, seed):
    labels = np.repeat(np.arange(-1, len(sizes) - 1), [*sizes[:-1], sizes[-1] + 3])  # -1: cells without a label
    split = split_cells(labels, None, *fractions, seed)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts(split))), np.arange(labels.size))
    for label in np.unique(labels):
        found = [int((labels[part] == label).sum()) for part in parts(split)]
        if sum(found) >= 3:
            assert min(found) >= 1
        else:
            assert found == [sum(found), 0, 0]


@given(groups=st.lists(st.integers(0, 9), min_size=30, max_size=60), fractions=fractions, seed=seeds)
def test_a_group_is_whole_in_one_part(groups, fractions, seed):
    groups = np.array([0, 1, 2, *groups])
    split = split_cells(np.zeros(groups.size, int), groups, *fractions, seed)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts(split))), np.arange(groups.size))
    owners = [set(groups[part]) for part in parts(split)]
    assert all(owners)
    assert sum(map(len, owners)) == len(set(groups))


@given(seed=seeds)
def test_the_shares_are_those_asked_for(seed):
    labels = np.repeat([0, 1, 2], [500, 300, 200])
    split = split_cells(labels, None, 0.1, 0.2, seed)
    assert [part.size for part in parts(split)] == [700, 100, 200]
    np.testing.assert_array_equal(np.bincount(labels[split.test]), [100, 60, 40])


def test_the_seed_decides():
    labels = np.zeros(50, int)
    one, same, other = (split_cells(labels, None, 0.1, 0.2, seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.test, same.test)
    assert set(one.test) != set(other.test)
    groups = np.arange(50) // 2
    one, same, other = (split_cells(labels, groups, 0.1, 0.2, seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.test, same.test)
    assert set(one.test) != set(other.test)


def test_fractions_of_zero_leave_parts_empty():
    split = split_cells(np.zeros(10, int), None, 0.0, 0.0, 0)
    assert [part.size for part in parts(split)] == [10, 0, 0]
    split = split_cells(np.zeros(10, int), np.arange(10) // 5, 0.0, 0.5, 0)
    assert [part.size for part in parts(split)] == [5, 0, 5]


def test_cells_that_cannot_be_split_are_refused():
    with pytest.raises(ConfigError, match="leave no cell for training"):
        split_cells(np.zeros(10, int), None, 0.5, 0.5, 0)
    with pytest.raises(
        DataError, match=r"number of groups .* is 2, but the split needs 3; .* null, or data.test_fraction: 0\.$"
    ):
        split_cells(np.zeros(10, int), np.arange(10) % 2, 0.1, 0.2, 0)
    with pytest.raises(DataError, match="No cell is left for validation: 4 cells with 2 labels"):
        split_cells(np.array([0, 0, 1, 1]), None, 0.1, 0.2, 0)
    with pytest.raises(DataError, match="no cells"):
        split_cells(np.array([], int), None, 0.1, 0.2, 0)
