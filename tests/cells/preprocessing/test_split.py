"""Every cell in exactly one part."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from grn.cells.preprocessing.split import copies_of, is_copy, joined, split_cells
from grn.runtime.errors import UserError

seeds = st.integers(0, 2**31)
fractions = st.floats(0.05, 0.9)


def parts(split, cells: int) -> list[np.ndarray]:
    """The training and the test cells, which together are all."""
    found = [split.train, split.test]
    np.testing.assert_array_equal(np.sort(np.concatenate(found)), np.arange(cells))
    return found


@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=6), fraction=fractions, seed=seeds)
def test_each_cell_is_in_one_part_and_each_type_of_three_in_both(sizes, fraction, seed):
    # -1: cells without a label
    labels = np.repeat(np.arange(-1, len(sizes) - 1), [*sizes[:-1], sizes[-1] + 3])
    both = parts(split_cells(labels, None, fraction, seed), labels.size)
    for label in np.unique(labels):
        found = [int((labels[part] == label).sum()) for part in both]
        if sum(found) >= 3:
            assert min(found) >= 1
        else:
            assert found == [sum(found), 0]


@pytest.mark.parametrize("of_copies", [False, True])
@given(groups=st.lists(st.integers(0, 9), min_size=30, max_size=60), fraction=fractions, seed=seeds)
def test_a_group_and_copies_of_a_cell_are_whole_in_one_part(groups, fraction, seed, of_copies):
    groups = np.array([0, 1, 2, *groups])
    _, first, place = np.unique(groups, return_index=True, return_inverse=True)
    given = (None, fraction, seed, first[place]) if of_copies else (groups, fraction, seed)
    split = split_cells(np.zeros(groups.size, int), *given)
    owners = [set(groups[part]) for part in parts(split, groups.size)]
    assert all(owners) and sum(map(len, owners)) == len(first)


@given(seed=seeds)
def test_the_shares_are_those_asked_for(seed):
    labels = np.repeat([0, 1, 2], [500, 300, 200])
    split = split_cells(labels, None, 0.2, seed)
    assert [part.size for part in parts(split, 1000)] == [800, 200]
    np.testing.assert_array_equal(np.bincount(labels[split.test]), [100, 60, 40])


@pytest.mark.parametrize("groups", [None, np.arange(50) // 2])
def test_nothing_is_held_out_where_nothing_is_asked_for(groups):
    assert split_cells(np.zeros(50, int), groups, 0.0, 0).test.size == 0


def test_copies_of_a_cell_are_found():
    """Equal cells with few genes, and a few of many, are chance."""
    generator = np.random.default_rng(0)
    once = sparse.csr_matrix(generator.poisson(2.0, (200, 50)).astype(np.float32))
    few_genes = sparse.csr_matrix(np.eye(10, 40, dtype=np.float32).repeat(10, 0))
    for values in (once, sparse.vstack([once, once[:1]], format="csr"), few_genes):
        assert copies_of(values) is None
    order = generator.permutation(600)
    copies = copies_of(sparse.vstack([once, once, once], format="csr")[order])
    assert is_copy(copies).all() and len(np.unique(copies)) == 200
    assert all(len(np.unique(copies[order % 200 == cell])) == 1 for cell in range(200))
    found = joined(np.array([7, 7, -1, -1, 2, 2]), np.array([0, 1, 0, 3, 4, 5]))
    assert len(set(found[:4])) == 1 and len(set(found)) == 2, (
        "groups with copies of one cell are one group"
    )
    assert joined(copies, None) is joined(None, copies) is copies


@pytest.mark.parametrize(
    ("labels", "groups", "fraction", "field"),
    [
        (np.zeros(10, int), np.zeros(10, int), 0.2, "data.group_key"),
        (np.array([0, 1, 2, 3]), None, 0.2, "data.label_key"),
    ],
)
def test_cells_that_cannot_be_split_are_refused(labels, groups, fraction, field):
    with pytest.raises(UserError) as caught:
        split_cells(labels, groups, fraction, 0)
    assert caught.value.field == field
