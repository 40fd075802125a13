"""Folds of cells: which cells are held out together."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grn.regulation.folds import group_folds, held_out_cells

ROWS = np.arange(100, 140)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


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


@given(st.integers(0, 5), st.integers(2, 12))
def test_no_group_is_both_trained_on_and_held_out(seed, folds):
    groups = np.random.default_rng(seed).integers(0, 7, len(ROWS))
    for training, held_out in zip(*held_out_cells(ROWS, groups, range(4), folds, generator(seed)), strict=True):
        assert len(training) and len(held_out)
        assert sorted([*training.tolist(), *held_out.tolist()]) == ROWS.tolist()
        assert not set(groups[training - 100]) & set(groups[held_out - 100])


@pytest.mark.parametrize("cells", [2, 7, 40])
def test_without_groups_every_member_trains_on_as_many_cells_and_holds_out_its_own(cells):
    training, held_out = held_out_cells(ROWS[:cells], None, range(10), 10, generator())
    assert len(set(map(len, training))) == len(set(map(len, held_out))) == 1
    assert all(not set(t.tolist()) & set(h.tolist()) for t, h in zip(training, held_out, strict=True))
