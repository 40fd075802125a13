"""Knock-off regulators: what they keep, what they lose, and what a fit with them finds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse

from grn.networks.evidence.false_discovery import edge_evidence
from grn.regulation import knockoffs
from grn.regulation.cell_table import CellTable
from grn.regulation.knockoffs import fit_with_knockoffs, independent_shares

CELLS, GENES, STATES = 600, 24, 3
REGULATORS = np.array([0, 2, 4, 5])
PLANTED = {10: (0, 1.0), 11: (2, -1.0), 12: (4, 1.0), 13: (5, -1.0), 14: (0, -1.0), 15: (2, 1.0)}


def cells(planted: bool) -> tuple[sparse.csr_matrix, np.ndarray, np.ndarray]:
    """Multiplicities [C, N], basal [C], cell_types [C]; the regulators are correlated with each other."""
    generator = np.random.default_rng(4)
    values = generator.standard_normal((CELLS, GENES))
    values[:, REGULATORS] += 0.5 * generator.standard_normal((CELLS, 1))
    if planted:
        for target, (regulator, sign) in PLANTED.items():
            values[:, target] += 1.5 * sign * values[:, regulator]
    basal = 1 + 0.2 * generator.standard_normal(CELLS)
    cell_types = generator.integers(0, STATES, CELLS)
    return sparse.csr_matrix((values + 6).clip(0).astype(np.float32)), basal.astype(np.float32), cell_types


@pytest.fixture(scope="module")
def table(make_table):
    def of(planted: bool, states: bool = True, up: float = 0.0) -> CellTable:
        """up: how much higher all genes are in each further type."""
        multiplicity, basal, cell_types = cells(planted)
        known = cell_types if states else np.zeros(CELLS, int)
        values = multiplicity.toarray() + up * cell_types[:, None]
        return make_table(values, known, REGULATORS, basal=basal)

    return of


@pytest.fixture(scope="module")
def fitted(table):
    """With a fit of each set of cells, as a function of whether edges are planted."""
    fits = {planted: fit_with_knockoffs(table(planted), seed=1) for planted in (True, False)}
    return fits.__getitem__


@pytest.fixture(scope="module")
def regulators():
    multiplicity, basal, cell_types = cells(False)
    values = multiplicity[:, REGULATORS].toarray()
    values[:, 1] += 2 * cell_types  # follows the cell type
    values[:, 2] += 3 * basal  # follows the depth
    return values, basal, cell_types


@pytest.mark.parametrize("seed", [0, 1, 42])
def test_knockoffs_are_no_copies_of_cells_that_were_drawn_with_the_same_seed(seed):
    """Their noise would be that of the cells, if both were the first numbers of default_rng(seed)."""
    drawn = np.random.default_rng(seed).standard_normal((400, 5))
    found = knockoffs.knockoffs(drawn, np.ones(400), np.zeros(400, int), knockoffs.own_generator(seed))
    of_own = [np.corrcoef(drawn[:, j], found[:, j])[0, 1] for j in range(5)]
    assert np.abs(of_own).max() < 0.3  # 6 standard errors; 0.7 with the same numbers


def test_knockoffs_keep_each_types_values_and_depth(regulators):
    values, basal, cell_types = regulators
    before = values.copy()
    drawn = knockoffs.knockoffs(values, basal, cell_types, np.random.default_rng(0))
    np.testing.assert_array_equal(values, before)
    for cell_type in np.unique(cell_types):
        own = cell_types == cell_type
        np.testing.assert_array_equal(np.sort(drawn[own], 0), np.sort(values[own], 0))
    correlation = [np.corrcoef(table[:, 2], basal)[0, 1] for table in (values, drawn)]
    assert correlation[1] == pytest.approx(correlation[0], abs=0.1)
    again = knockoffs.knockoffs(values, basal, cell_types, np.random.default_rng(0))
    np.testing.assert_array_equal(drawn, again)


def test_knockoffs_correlate_as_their_regulators_do():
    generator = np.random.default_rng(0)
    values = generator.standard_normal((4000, 5)) + generator.standard_normal((4000, 1))
    drawn = knockoffs.knockoffs(values, np.ones(4000), np.zeros(4000, int), generator)
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


def is_planted() -> np.ndarray:
    edges = np.zeros((GENES, len(REGULATORS)), dtype=bool)
    for target, (regulator, _) in PLANTED.items():
        edges[target, np.searchsorted(REGULATORS, regulator)] = True
    return edges


def test_planted_edges_have_small_q_and_the_others_large(fitted):
    """Over all states, and in each; so do confidences."""
    edges = is_planted()
    together, of_states = edge_evidence(fitted(True), REGULATORS)
    assert len(of_states) == STATES
    for each in (together, *of_states):
        q = each.q
        assert q.shape == (GENES, len(REGULATORS)) and (q >= 0).all() and (q <= 1).all()
        assert (q[edges] < 0.25).all() and (q[edges] < np.median(q[~edges])).all()
        assert (q[REGULATORS, range(len(REGULATORS))] == 1).all()
        assert each.confidence[edges].min() > np.median(each.confidence[~edges])


def test_without_regulation_nothing_is_found(fitted):
    others = np.setdiff1d(np.arange(GENES), REGULATORS)  # the regulators still correlate with each other
    fit = fitted(False)
    real, null = (each[:, others].abs().mean().item() for each in (fit.slopes, fit.null_slopes))
    assert real == pytest.approx(null, rel=0.4)
    together, _ = edge_evidence(fit, REGULATORS)
    assert (together.q[others] > 0.1).all()


def test_levels_of_states_pass_for_regulation_only_without_the_states(table):
    """Regulators and other genes are higher in some types, and no regulator does anything."""
    others, found = np.setdiff1d(np.arange(GENES), REGULATORS), []
    for states in (True, False):
        fit = fit_with_knockoffs(table(False, states, up=3.0), seed=1)
        # Raw slopes per unit: what regulators explain beyond their knock-offs.
        real, null = (each[:, others].mean(0).square().sum() for each in (fit.slopes, fit.null_slopes))
        found.append(float(real / null))
    within, across = found
    assert within < 2 < across


def test_knockoffs_change_no_target_and_no_regulator(monkeypatch, table):
    """Regulators and knock-offs side by side, centred within states."""
    seen, real_fit = [], knockoffs.slopes_of_states

    def recorded(x, y, *rest, **options):
        seen.append((x, y))
        assert options == {"copies": 2}
        return real_fit(x, y, *rest, **options)

    monkeypatch.setattr(knockoffs, "slopes_of_states", recorded)
    known = table(True)
    fit_with_knockoffs(known, seed=1)
    values, states = known.multiplicity.toarray(), known.states
    ((x, of_values),) = seen
    expected = (values - values.mean(0)) / sds_within(values, states)
    np.testing.assert_allclose(of_values.read(slice(None)).numpy(), expected, rtol=1e-3, atol=1e-3)
    regulators = (values / sds_within(values, states))[:, REGULATORS]
    levels = states @ ((states.T @ regulators) / states.sum(0)[:, None])
    real, knockoff = x[:, :4].numpy(), x[:, 4:].numpy()
    np.testing.assert_allclose(real, regulators - levels, rtol=1e-3, atol=1e-4)
    for state in range(STATES):
        own = states[:, state] > 0
        np.testing.assert_allclose(np.sort(knockoff[own], 0), np.sort(real[own], 0), rtol=1e-3, atol=1e-3)
    assert np.abs(real - knockoff).mean() > 0.3


def test_shares_and_sds_are_those_of_the_states_and_a_fit_repeats(table, fitted):
    known, fit = table(True), fitted(True)
    np.testing.assert_allclose(fit.share.numpy(), known.states.mean(0), rtol=1e-6)
    values = known.multiplicity.toarray()
    values = (values / sds_within(values, known.states))[:, REGULATORS]
    sds = np.stack([values[known.states[:, k] > 0].std(0) for k in range(STATES)])
    np.testing.assert_allclose(fit.sds.numpy(), sds, rtol=1e-3)
    np.testing.assert_allclose(fit.usual.numpy(), 1, rtol=1e-3)
    assert torch.equal(fit_with_knockoffs(known, seed=1).null_slopes, fit.null_slopes)
    assert not torch.equal(fit_with_knockoffs(known, seed=2).null_slopes, fit.null_slopes)


def sds_within(values: np.ndarray, states: np.ndarray) -> np.ndarray:
    """[N]: of values [C, N] around the means of their states [C, K], the units of genes."""
    return (values - states @ ((states.T @ values) / states.sum(0)[:, None])).std(0)
