"""Differences between states count as regulation where their levels follow regulators, and not where they are
composition."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from grn.regulation import levels as module
from grn.regulation.cell_table import CellTable
from grn.regulation.levels import levels_of, state_levels
from grn.regulation.penalties import RIDGE

REGULATORS, GENES, EACH = 6, 46, 60


@pytest.fixture
def cells(make_table):
    def drawn(*, follows: float, composition: float, within: float = 1.0, seed: int = 0, states: int = 8) -> CellTable:
        """Levels of the targets: `follows` times what the slopes make of those of the regulators, and own ones of sd
        `composition`. Within states, targets follow the regulators `within` times."""
        generator = np.random.default_rng(seed)
        slopes = generator.normal(size=(GENES, REGULATORS)) * (generator.random((GENES, REGULATORS)) < 0.5)
        state = np.arange(states * EACH) % states
        levels, own = generator.normal(size=(states, REGULATORS)), generator.normal(size=(states, GENES))
        around = generator.normal(size=(len(state), REGULATORS))
        values = (follows * levels @ slopes.T + composition * own)[state] + within * around @ slopes.T
        values += 0.7 * generator.normal(size=values.shape)
        values[:, :REGULATORS] = levels[state] + around
        return make_table(values + 20, state, range(REGULATORS))

    return drawn


def fold(table: CellTable) -> np.ndarray:
    return np.random.default_rng(0).permutation(len(table)) % 5


@pytest.mark.parametrize("seed", range(3))
def test_levels_that_follow_their_regulators_count(cells, seed):
    table = cells(follows=1, composition=0, seed=seed)
    found = levels_of(table, fold(table))
    assert found.level_error < 0.6 and found.pooled_error == pytest.approx(found.within_error, abs=0.01)
    assert found.count and "differences between states count" in found.summary()


@pytest.mark.parametrize("seed", range(3))
def test_levels_of_composition_do_not(cells, seed):
    """Slopes through them predict other states worse than nothing would, and cells of one state worse than slopes of
    differences within it."""
    table = cells(follows=0, composition=3, seed=seed)
    found = levels_of(table, fold(table))
    assert found.level_error > 1 and found.pooled_error > found.within_error + 0.05
    assert not found.count and "may be composition" in found.summary()


@pytest.mark.parametrize("composition", [0, 3])
def test_no_gene_explains_itself_where_every_gene_regulates(cells, composition):
    """Else nothing would be left over, and levels of composition would count."""
    table = cells(follows=1 - composition / 3, composition=composition)
    found = levels_of(replace(table, regulators=np.arange(GENES)), fold(table))
    assert found.within_error > 0.05 and found.count == (composition == 0)
    alone = replace(table, multiplicity=table.multiplicity[:, :1], regulators=np.arange(1))
    assert levels_of(alone, fold(table)) is None


def test_slopes_of_other_cells_judge_held_out_ones(cells):
    """With the targets of held-out cells shuffled, no slope predicts them: the strongest penalty is the best."""
    table = cells(follows=1, composition=0, states=2)
    own = fold(table)
    values = table.multiplicity.toarray()
    order = np.random.default_rng(1).permutation(np.flatnonzero(own == 0))
    values[own == 0, REGULATORS:] = values[order, REGULATORS:]
    shuffled = levels_of(replace(table, multiplicity=sp.csr_matrix(values)), own)
    assert levels_of(table, own).within_error < 0.5 and shuffled.within_error > 0.95


def test_one_state_has_no_levels_and_many_regulators_no_time(cells, monkeypatch):
    table = cells(follows=1, composition=0)
    assert levels_of(replace(table, states=np.ones((len(table), 1), np.float32)), fold(table)) is None
    monkeypatch.setattr(module, "MOST", REGULATORS - 1)
    assert levels_of(table, fold(table)) is None


def test_level_errors_are_those_of_a_regression_on_the_other_cells(cells):
    """One state left out after the other, by scikit-learn, with soft memberships as weights of the cells."""
    from sklearn.linear_model import Ridge

    table = cells(follows=1, composition=1, states=3)
    membership = 0.8 * table.states + 0.2 / 3
    together = replace(table, states=membership, pooled=True)
    x, y = together.inputs[:, :-1].double(), together.targets(np.arange(REGULATORS, GENES)).double()
    error = variance = 0.0
    for own in membership.astype(np.float64).T:
        change = [np.average(each, axis=0, weights=own) - np.average(each, axis=0, weights=1 - own) for each in (x, y)]
        ridge = Ridge(alpha=30.0).fit(x, y, sample_weight=1 - own)
        error += own.sum() * np.square(change[1] - change[0] @ ridge.coef_.T).sum()
        variance += own.sum() * np.square(change[1]).sum()
    found = module._level_error(x, y, torch.as_tensor(membership).double(), 30.0)
    assert found == pytest.approx(error / variance, rel=1e-4)
    chosen = levels_of(replace(table, states=membership), fold(table)).level_error
    every = [
        module._level_error(x - x.mean(0), y - y.mean(0), torch.as_tensor(membership).double(), lam) for lam in RIDGE
    ]
    assert min(abs(chosen - each) for each in every) < 1e-3


def test_state_levels_are_means_weighted_by_membership():
    """Sparse or dense; a state without cells has the level 0."""
    values = np.array([[1.0, 0], [3, 2], [5, 4]])
    states = np.array([[1, 0, 0], [0.5, 0.5, 0], [0, 1, 0]])
    expected = [[2.5 / 1.5, 1 / 1.5], [6.5 / 1.5, 5 / 1.5], [0, 0]]
    np.testing.assert_allclose(state_levels(sp.csr_matrix(values), states), expected)
    found = state_levels(torch.as_tensor(values), torch.as_tensor(states))
    np.testing.assert_allclose(found.numpy(), expected)
