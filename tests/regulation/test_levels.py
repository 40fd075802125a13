"""Levels of states: held-out ones are predicted where levels follow regulators, and not where they are composition."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from grn.cells.preprocessing.moments import mean_and_sd
from grn.regulation.cell_table import TrainingCells
from grn.regulation.levels import level_error, state_levels
from grn.regulation.linear import Penalties

REGULATORS, GENES, STATES, EACH = 6, 46, 8, 60
PENALTY = Penalties(torch.full((GENES,), 30.0).double(), 0.0, 1.0)


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
@pytest.mark.parametrize(("within", "most"), [(1, 0.6), (0, 0.8)])
def test_levels_that_follow_their_regulators_are_predicted(within, most, seed):
    """Also where cells within states show noise alone: the other states' levels have a part in the slopes."""
    assert level_error(cells(follows=1, composition=0, within=within, seed=seed), PENALTY) < most


@pytest.mark.parametrize("seed", range(5))
def test_levels_of_composition_are_not_predicted(seed):
    """Slopes through them predict other states worse than nothing would, whatever is true within states."""
    found = level_error(cells(follows=0, composition=3, seed=seed), PENALTY)
    assert found > 1


def test_cells_that_are_not_fitted_are_not_read():
    known = cells(follows=1, composition=0)
    values = known.multiplicity.toarray()
    values[::5] = 1e6
    rows = np.flatnonzero(np.arange(len(values)) % 5)
    fitted = replace(known, rows=rows)
    assert level_error(fitted, PENALTY) == level_error(replace(fitted, multiplicity=sp.csr_matrix(values)), PENALTY)


def test_moments_give_what_a_regression_on_the_cells_gives():
    """One state left out after the other, by scikit-learn, with soft memberships as weights of the cells."""
    from sklearn.linear_model import Ridge

    known = cells(follows=1, composition=1, sizes=(EACH,) * 3)
    membership = 0.8 * known.states + 0.2 / 3
    known = replace(known, states=membership)
    values = (known.multiplicity.toarray().astype(np.float64) - known.mean.numpy()) / known.sd.numpy()
    error = variance = 0.0
    for own in membership.astype(np.float64).T:
        others = np.average(values, axis=0, weights=1 - own)
        difference = np.average(values, axis=0, weights=own) - others
        for gene in range(GENES):
            among = [regulator for regulator in range(REGULATORS) if regulator != gene]
            ridge = Ridge(alpha=30.0).fit(values[:, among], values[:, gene], sample_weight=1 - own)
            error += own.sum() * (difference[gene] - difference[among] @ ridge.coef_) ** 2
            variance += own.sum() * difference[gene] ** 2
    assert level_error(known, PENALTY) == pytest.approx(error / variance, rel=1e-4)


def test_state_levels_are_means_weighted_by_membership():
    """Sparse or dense; a state without cells has the level 0."""
    values = np.array([[1.0, 0], [3, 2], [5, 4]])
    states = np.array([[1, 0, 0], [0.5, 0.5, 0], [0, 1, 0]])
    expected = [[2.5 / 1.5, 1 / 1.5], [6.5 / 1.5, 5 / 1.5], [0, 0]]
    np.testing.assert_allclose(state_levels(sp.csr_matrix(values), states), expected)
    found = state_levels(torch.as_tensor(values), torch.as_tensor(states))
    np.testing.assert_allclose(found.numpy(), expected)
