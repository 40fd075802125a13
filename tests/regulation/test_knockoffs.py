"""Knock-off regulators: what they keep, what they lose, and what a fit with them finds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse

from grn.config.schema import RegulationConfig
from grn.network.false_discovery import edge_q_values, knockoff_weights, q_values
from grn.regulation import knockoffs
from grn.regulation.knockoffs import METHODS, fit_with_knockoffs, independent_shares, strata
from grn.regulation.training_cells import TrainingCells

CELLS, GENES = 600, 24
REGULATORS = np.array([0, 2, 4, 5])
PLANTED = {10: (0, 1.0), 11: (2, -1.0), 12: (4, 1.0), 13: (5, -1.0), 14: (0, -1.0), 15: (2, 1.0)}
QUICK = RegulationConfig(members=2, heads=1, width=8, steps=150, penalties=[30])


def cells(planted: bool) -> tuple[sparse.csr_matrix, np.ndarray, np.ndarray]:
    """Multiplicities [C, N], basal [C], cell_types [C]; the regulators are correlated with each other."""
    generator = np.random.default_rng(4)
    values = generator.standard_normal((CELLS, GENES))
    values[:, REGULATORS] += 0.5 * generator.standard_normal((CELLS, 1))
    if planted:
        for target, (regulator, sign) in PLANTED.items():
            values[:, target] += 1.5 * sign * values[:, regulator]
    basal = 1 + 0.2 * generator.standard_normal(CELLS)
    cell_types = generator.integers(-1, 2, CELLS)
    return sparse.csr_matrix((values + 6).clip(0).astype(np.float32)), basal.astype(np.float32), cell_types


def fitted(planted: bool, groups: np.ndarray | None = None, **options):
    multiplicity, basal, cell_types = cells(planted)
    mean, sd = (torch.as_tensor(getattr(multiplicity.toarray(), name)(0)) for name in ("mean", "std"))
    weight, rows = np.ones(CELLS, np.float32), np.arange(0, CELLS - 60)
    known = TrainingCells(multiplicity, basal, weight, rows, REGULATORS, mean, sd, groups)
    return fit_with_knockoffs(QUICK, known, labels=cell_types, seed=1, **{"penalty": 30, **options})


@pytest.fixture(scope="module")
def regulators():
    multiplicity, basal, cell_types = cells(False)
    values = multiplicity[:, REGULATORS].toarray()
    values[:, 1] += 2 * cell_types  # follows the cell type
    values[:, 2] += 3 * basal  # follows the depth
    return values, basal, cell_types


def test_strata_hold_every_cell_once_and_one_type_each(regulators):
    _, basal, cell_types = regulators
    found = strata(basal, cell_types)
    np.testing.assert_array_equal(np.sort(np.concatenate(found)), np.arange(CELLS))
    assert all(len(set(cell_types[stratum])) == 1 and len(stratum) >= 20 for stratum in found)
    assert len(strata(basal[:30], np.zeros(30))) == 1  # too few cells to part


def test_shuffled_knockoffs_are_whole_rows_of_their_stratum(regulators):
    values, basal, cell_types = regulators
    drawn = METHODS["shuffled"](values, basal, cell_types, np.random.default_rng(0))
    for stratum in strata(basal, cell_types):
        rows, moved = (sorted(map(tuple, table[stratum].tolist())) for table in (values, drawn))
        assert rows == moved
    assert (drawn != values).any(1).mean() > 0.9


@pytest.mark.parametrize("method", METHODS)
def test_knockoffs_keep_each_types_values_and_depth(regulators, method):
    values, basal, cell_types = regulators
    before = values.copy()
    drawn = METHODS[method](values, basal, cell_types, np.random.default_rng(0))
    np.testing.assert_array_equal(values, before)
    for cell_type in np.unique(cell_types):
        own = cell_types == cell_type
        np.testing.assert_array_equal(np.sort(drawn[own], 0), np.sort(values[own], 0))
    correlation = [np.corrcoef(table[:, 2], basal)[0, 1] for table in (values, drawn)]
    assert correlation[1] == pytest.approx(correlation[0], abs=0.1)
    again = METHODS[method](values, basal, cell_types, np.random.default_rng(0))
    np.testing.assert_array_equal(drawn, again)


def test_knockoffs_correlate_as_their_regulators_do():
    generator = np.random.default_rng(0)
    values = generator.standard_normal((4000, 5)) + generator.standard_normal((4000, 1))
    drawn = METHODS["knockoffs"](values, np.ones(4000), np.zeros(4000, int), generator)
    both = np.corrcoef(values.T, drawn.T)
    among, across = both[:5, :5], both[:5, 5:]
    np.testing.assert_allclose(both[5:, 5:], among, atol=0.08)
    apart = ~np.eye(5, dtype=bool)
    np.testing.assert_allclose(across[apart], among[apart], atol=0.08)
    assert (across.diagonal() < 0.6).all()


def test_independent_regulators_have_independent_knockoffs_and_twins_none():
    np.testing.assert_allclose(independent_shares(np.eye(4)), 1, atol=1e-6)
    twins = np.array([[1, 0.999, 0], [0.999, 1, 0], [0, 0, 1]])
    share = independent_shares(twins)
    assert share[0] < 0.01 and share[2] > 0.9
    assert np.linalg.eigvalsh(2 * twins - np.diag(share))[0] > 0


def test_a_regulator_that_never_varies_has_itself_as_knockoff():
    values = np.ones((100, 3), np.float32)
    values[:, 0] = np.arange(100)
    drawn = METHODS["knockoffs"](values, np.ones(100), np.zeros(100, int), np.random.default_rng(0))
    np.testing.assert_array_equal(drawn[:, 1:], 1)


@pytest.mark.parametrize("method", METHODS)
def test_planted_edges_have_small_q_and_the_others_large(method):
    q = edge_q_values(fitted(True, method=method), REGULATORS)
    assert q.shape == (GENES, len(REGULATORS)) and (q >= 0).all() and (q <= 1).all()
    edges = np.zeros(q.shape, dtype=bool)
    for target, (regulator, _) in PLANTED.items():
        edges[target, np.searchsorted(REGULATORS, regulator)] = True
    assert (q[edges] < 0.25).all() and (q[edges] < np.median(q[~edges])).all()
    assert (q[REGULATORS, range(len(REGULATORS))] == 1).all()


def test_without_regulation_nothing_is_found():
    others = np.setdiff1d(np.arange(GENES), REGULATORS)  # the regulators still correlate with each other
    real, knockoff = knockoff_weights(fitted(False))
    assert np.abs(real[others]).mean() == pytest.approx(np.abs(knockoff[others]).mean(), rel=0.4)
    assert (q_values(real[others], knockoff[others]) > 0.1).all()


def test_knockoffs_change_no_target_and_no_regulator(monkeypatch):
    seen = []
    monkeypatch.setattr(knockoffs, "train_members", lambda layer, table, *rest, **options: seen.append((layer, table)))
    real, knockoff = knockoff_weights(fitted(True))
    (layer, table), values = seen[0], cells(True)[0].toarray()
    expected = ((values - values.mean(0)) / values.std(0))[: CELLS - 60]
    torch.testing.assert_close(table.targets, torch.as_tensor(expected), rtol=1e-4, atol=1e-4)  # of genes alone
    inputs = (table.inputs * layer.unit).numpy()[:, :-1]
    np.testing.assert_allclose(inputs[:, :4], values[: CELLS - 60, REGULATORS], rtol=1e-5)
    np.testing.assert_allclose(np.sort(inputs[:, 4:], 0), np.sort(inputs[:, :4], 0), rtol=1e-5)
    assert real.shape == knockoff.shape == (GENES, len(REGULATORS))


def test_donors_stay_together_in_the_fit_with_knockoffs(monkeypatch):
    seen = []
    monkeypatch.setattr(knockoffs, "train_members", lambda layer, table, known, *rest, **options: seen.append(known))
    groups = np.arange(CELLS) % 3
    fitted(True, groups=groups)
    np.testing.assert_array_equal(seen[0].fitted_groups(), groups[: CELLS - 60])


def test_neither_a_regulator_nor_its_knockoff_regulates_itself():
    for table in knockoff_weights(fitted(True)):
        assert (table[REGULATORS, range(len(REGULATORS))] == 0).all()
        assert np.count_nonzero(table) == table.size - len(REGULATORS)


def test_without_a_penalty_held_out_cells_choose_it():
    # There is one to choose from.
    fits = (fitted(True, penalty=None), fitted(True))
    for chosen, given in zip(*map(knockoff_weights, fits), strict=True):
        np.testing.assert_array_equal(chosen, given)
