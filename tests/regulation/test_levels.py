"""Levels of states: held-out ones are predicted where levels follow regulators, and not where they are composition."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from grn.data.preprocessing.scale import mean_and_sd
from grn.regulation.levels import Levels, compare_levels, state_levels
from grn.regulation.linear import Penalties
from grn.regulation.training_cells import TrainingCells

REGULATORS, GENES, STATES, EACH = 6, 46, 8, 60
PENALTY = Penalties(torch.full((GENES,), 30.0).double(), 0.0, 1.0)
MEANT = Penalties(torch.full((GENES,), 30.0).double(), 0.5, 1.0)


def cells(
    *, follows: float, composition: float, within: float = 1.0, seed: int = 0, sizes: tuple[int, ...] = (EACH,) * STATES
) -> TrainingCells:
    """Levels of the targets: `follows` times what the slopes make of those of the regulators, and own ones of sd
    `composition`. Within states, targets follow the regulators `within` times."""
    generator = np.random.default_rng(seed)
    slopes = generator.normal(size=(GENES, REGULATORS)) * (generator.random((GENES, REGULATORS)) < 0.5)
    state = np.repeat(np.arange(len(sizes)), sizes)
    levels = generator.normal(size=(len(sizes), REGULATORS))
    around = generator.normal(size=(len(state), REGULATORS))
    own = generator.normal(size=(len(sizes), GENES))
    values = (follows * levels @ slopes.T + composition * own)[state] + within * around @ slopes.T
    values += 0.7 * generator.normal(size=values.shape)
    values[:, :REGULATORS] = levels[state] + around
    multiplicity = sp.csr_matrix((values + 20).astype(np.float32))
    membership = np.eye(len(sizes), dtype=np.float32)[state]
    rows, basal = np.arange(len(state)), np.ones(len(state), np.float32)
    return TrainingCells(
        multiplicity, basal, rows, np.arange(REGULATORS), *mean_and_sd(multiplicity), states=membership
    )


@pytest.mark.parametrize("seed", range(5))
def test_levels_that_follow_their_regulators_are_predicted(seed):
    found = compare_levels(cells(follows=1, composition=0, seed=seed), PENALTY, MEANT)
    assert found.error is not None and found.error < 0.6


@pytest.mark.parametrize("seed", range(3))
def test_levels_are_predicted_by_slopes_that_the_other_states_levels_have_a_part_in(seed):
    """Cells within states show noise alone, and levels follow nevertheless."""
    found = compare_levels(cells(follows=1, composition=0, within=0, seed=seed), PENALTY, MEANT)
    assert found.error is not None and found.error < 0.8


@pytest.mark.parametrize("seed", range(5))
def test_levels_of_composition_are_not_predicted(seed):
    """Slopes through them predict other states worse than nothing would, whatever is true within states."""
    found = compare_levels(cells(follows=0, composition=3, seed=seed), PENALTY, MEANT)
    assert found.error is not None and found.error > 1


@pytest.mark.parametrize("seed", range(3))
def test_slopes_within_states_have_the_larger_share_where_only_they_carry_over(seed):
    """Where levels and slopes within agree, and where cells within states show noise alone."""
    agree = compare_levels(cells(follows=1, composition=1.5, seed=seed), PENALTY, MEANT).within
    noise = compare_levels(cells(follows=1, composition=0, within=0, seed=seed), PENALTY, MEANT).within
    assert 0 <= noise < 0.3 < agree <= 1


def test_cells_that_are_not_fitted_are_not_read():
    known = cells(follows=1, composition=0)
    values = known.multiplicity.toarray()
    values[::5] = 1e6
    rows = np.flatnonzero(np.arange(len(values)) % 5)
    fitted = replace(known, rows=rows)
    found = [
        compare_levels(each, PENALTY, MEANT) for each in (fitted, replace(fitted, multiplicity=sp.csr_matrix(values)))
    ]
    assert found[0] == found[1]


def test_the_order_of_states_and_their_copies_does_not_matter():
    """Memberships in columns of any order; a state that no cell has adds nothing."""
    known = cells(follows=1, composition=1)
    membership = np.column_stack([known.states[:, ::-1], np.zeros(len(known.basal), np.float32)])
    other = replace(known, states=membership)
    found, again = compare_levels(known, PENALTY, MEANT), compare_levels(other, PENALTY, MEANT)
    assert again.error == pytest.approx(found.error) and again.within == pytest.approx(found.within)


def test_soft_memberships_are_compared_too():
    known = cells(follows=1, composition=0)
    other = replace(known, states=0.9 * known.states + 0.1 / STATES)
    found = compare_levels(other, PENALTY, MEANT)
    assert found.error is not None and found.error < 0.6


def test_one_state_has_nothing_to_compare():
    known = cells(follows=1, composition=0, sizes=(60,))
    assert compare_levels(known, PENALTY, MEANT) == Levels(1.0, 1.0)


def test_state_levels_are_means_weighted_by_membership():
    """Sparse or dense; a state without cells has the level 0."""
    values = np.array([[1.0, 0], [3, 2], [5, 4]])
    states = np.array([[1, 0, 0], [0.5, 0.5, 0], [0, 1, 0]])
    expected = [[2.5 / 1.5, 1 / 1.5], [6.5 / 1.5, 5 / 1.5], [0, 0]]
    np.testing.assert_allclose(state_levels(sp.csr_matrix(values), states), expected)
    found = state_levels(torch.as_tensor(values), torch.as_tensor(states))
    np.testing.assert_allclose(found.numpy(), expected)
