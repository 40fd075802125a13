"""Folds of cells: which cells are held out together."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from grn.evidence.folds import group_folds


@given(groups=st.lists(st.integers(-1, 9), min_size=2, max_size=60), wanted=st.integers(2, 12))
def test_no_group_is_in_two_folds_and_no_fold_is_empty(groups, wanted):
    groups = np.array([10, *groups])
    folds = min(wanted, len(set(groups)))
    found = group_folds(groups, folds)
    assert set(found) == set(range(folds))
    assert all(len(set(found[groups == group])) == 1 for group in groups)


def test_folds_are_as_even_as_the_groups_allow():
    groups = np.repeat([0, 1, 2, 3, 4, 5], [50, 30, 30, 20, 10, 10])
    assert sorted(np.bincount(group_folds(groups, 3))) == [50, 50, 50]


def test_the_first_fold_is_the_one_nearest_to_an_equal_share():
    groups = np.repeat([0, 1, 2], [500, 300, 5])
    assert np.bincount(group_folds(groups, 3)).tolist()[0] == 300
