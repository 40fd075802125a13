"""Differences between states count as regulation where their levels follow regulators, and not
where they are composition.
"""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.linear_model import Ridge

from grn.evidence import levels as module
from grn.evidence.cell_table import CellTable
from grn.evidence.levels import levels_of, state_levels

REGULATORS, GENES, EACH = 6, 46, 60


@pytest.fixture
def cells(make_table):
    def drawn(
        *, follows: float, composition: float, noise: float = 0.7, seed: int = 0, states: int = 8
    ) -> CellTable:
        """Levels of the targets: `follows` times what the slopes make of those of the regulators,
        and own ones of sd `composition`. Within states, targets follow the regulators, beside
        noise.
        """
        generator = np.random.default_rng(seed)
        slopes = generator.normal(size=(GENES, REGULATORS)) * (
            generator.random((GENES, REGULATORS)) < 0.5
        )
        state = np.arange(states * EACH) % states
        levels = generator.normal(size=(states, REGULATORS))
        own = generator.normal(size=(states, GENES))
        around = generator.normal(size=(len(state), REGULATORS))
        values = (follows * levels @ slopes.T + composition * own)[state] + around @ slopes.T
        values += noise * generator.normal(size=values.shape)
        values[:, :REGULATORS] = levels[state] + around
        return make_table(values + 20, state, range(REGULATORS))

    return drawn


def fold(table: CellTable) -> np.ndarray:
    return np.random.default_rng(0).permutation(len(table)) % 5


@pytest.mark.parametrize("seed", range(3))
def test_levels_that_follow_their_regulators_count(cells, seed):
    """Where there is little within states, so that they tell of slopes what cells of one state
    hardly do.
    """
    table = cells(follows=1, composition=0, noise=3.0, seed=seed)
    found = levels_of(table, fold(table))
    assert found.part > 0 and found.part == found.best and found.with_part < found.without


@pytest.mark.parametrize("seed", range(3))
def test_levels_of_composition_do_not(cells, seed):
    """Slopes through them predict cells of one state worse than slopes of differences within it."""
    table = cells(follows=0, composition=3, noise=3.0, seed=seed)
    found = levels_of(table, fold(table))
    assert found.part == 0 and found.with_part > found.without - 0.001


@pytest.mark.parametrize("composition", [0, 3])
def test_no_gene_explains_itself_where_every_gene_regulates(cells, composition):
    """Else nothing would be left over, and levels of composition would count."""
    table = cells(follows=1 - composition / 3, composition=composition, noise=1.0)
    found = levels_of(replace(table, regulators=np.arange(GENES)), fold(table))
    assert found.without > 0.05 and (found.part > 0) == (composition == 0)
    alone = replace(table, multiplicity=table.multiplicity[:, :1], regulators=np.arange(1))
    assert levels_of(alone, fold(table)) is None


def test_slopes_of_other_cells_judge_held_out_ones(cells):
    """With the targets of held-out cells shuffled, no slope predicts them: the strongest penalty is
    the best.
    """
    table = cells(follows=1, composition=0, states=2)
    own = fold(table)
    values, state = table.multiplicity.toarray(), table.states.argmax(1)
    generator = np.random.default_rng(1)
    for each in range(5):
        for one in (0, 1):  # within its state
            rows = np.flatnonzero((own == each) & (state == one))
            values[rows, REGULATORS:] = values[generator.permutation(rows), REGULATORS:]
    shuffled = levels_of(replace(table, multiplicity=sp.csr_matrix(values)), own)
    assert levels_of(table, own).without < 0.5 and shuffled.without > 0.95


def by_ridge(x: np.ndarray, y: np.ndarray, penalty: float) -> np.ndarray:
    """Slopes [K, n] by scikit-learn, with the penalty in units of the root mean square of each
    input.
    """
    unit = np.sqrt(np.square(x).mean(0)).clip(1e-6)
    fit = Ridge(alpha=penalty, fit_intercept=False, solver="svd").fit(x / unit, y)
    return fit.coef_.T / unit[:, None]


def read_and_asked(table: CellTable) -> tuple[np.ndarray, np.ndarray]:
    """What the targets are predicted from, and the targets."""
    targets = table.targets(np.arange(REGULATORS, GENES))
    return table.inputs.double().numpy(), targets.double().numpy()


def levels_in(values: np.ndarray, state: np.ndarray, part: float) -> tuple[np.ndarray, np.ndarray]:
    """Values without the levels of their states but for a part; and these levels [S, ...]."""
    level = np.stack([values[state == one].mean(0) for one in range(state.max() + 1)])
    return values - level[state] + part * (level[state] - values.mean(0)), level


@pytest.mark.parametrize("part", [0.0, 0.4, 1.0])
def test_errors_of_unseen_cells_are_those_of_ridge_with_a_part_of_the_means_left_in(cells, part):
    """By scikit-learn, cell by cell, each cell from the means of its own state."""
    table = cells(follows=0.5, composition=1, states=3)
    both, state, judged = read_and_asked(table), table.states.argmax(1), fold(table) == 2
    learned, unseen = (
        module.OfStates.of(*(torch.as_tensor(each[rows]) for each in (*both, state)), 3)
        for rows in (~judged, judged)
    )
    of = [levels_in(each[~judged], state[~judged], part) for each in both]
    x, y = ((each - level[state])[judged] for each, (_, level) in zip(both, of, strict=True))
    slopes = (by_ridge(of[0][0], of[1][0], lam) for lam in module.PENALTIES)
    errors = [np.square(y - x @ each).sum() for each in slopes]
    assert learned.held_out(unseen, part) == pytest.approx(min(errors), rel=1e-6)


@pytest.mark.parametrize("part", [0.0, 0.4, 1.0])
def test_errors_of_states_that_are_left_out_are_those_of_ridge_on_the_other_states(cells, part):
    """By scikit-learn, cell by cell; a state is predicted from the mean of the others, and not by
    its depth. States are of different sizes.
    """
    table = cells(follows=0.5, composition=1, states=4)
    table = table.some(np.flatnonzero(np.arange(len(table)) % 7 > table.states.argmax(1)))
    (x, y), state = read_and_asked(table), table.states.argmax(1)
    x[:, -1] += np.random.default_rng(0).normal(size=len(x))
    summed = module.OfStates.of(*(torch.as_tensor(each) for each in (x, y, state)), 4)
    total, by_means = np.zeros((len(module.PENALTIES), y.shape[1])), np.zeros(y.shape[1])
    for one in range(4):
        own, rest = state == one, state != one
        others = np.unique(state[rest], return_inverse=True)[1]
        known = [levels_in(each[rest], others, part)[0] for each in (x, y)]
        asked, true = x[own] - x[rest].mean(0), y[own] - y[rest].mean(0)
        asked[:, -1] -= asked[:, -1].mean()
        for row, penalty in enumerate(module.PENALTIES):
            total[row] += np.square(true - asked @ by_ridge(*known, penalty)).sum(0)
        by_means += np.square(true).sum(0)
    np.testing.assert_allclose(summed.left_out(part)[0], total[total.mean(1).argmin()], rtol=1e-6)
    np.testing.assert_allclose(summed.by_means(), by_means, rtol=1e-6)


def test_one_state_has_no_levels_and_many_regulators_no_time(cells, monkeypatch):
    table = cells(follows=1, composition=0)
    assert (
        levels_of(replace(table, states=np.ones((len(table), 1), np.float32)), fold(table)) is None
    )
    monkeypatch.setattr(module, "MOST", REGULATORS - 1)
    assert levels_of(table, fold(table)) is None


def test_state_levels_are_means_weighted_by_membership():
    """Sparse or dense; a state without cells has the level 0."""
    values = np.array([[1.0, 0], [3, 2], [5, 4]])
    states = np.array([[1, 0, 0], [0.5, 0.5, 0], [0, 1, 0]])
    expected = [[2.5 / 1.5, 1 / 1.5], [6.5 / 1.5, 5 / 1.5], [0, 0]]
    np.testing.assert_allclose(state_levels(sp.csr_matrix(values), states), expected)
    np.testing.assert_allclose(state_levels(values, states), expected)
