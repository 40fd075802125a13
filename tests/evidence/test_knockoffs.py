"""Knock-off regulators: what they keep, what they lose, and what a fit with them finds."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from scipy import sparse

from grn.evidence import knockoffs
from grn.evidence.cell_table import CellTable
from grn.evidence.knockoffs import fits_with_knockoffs, independent_shares, strata_of

CELLS, GENES, STATES = 600, 24, 3
REGULATORS = np.array([0, 2, 4, 5])
PLANTED = {10: (0, 1.0), 11: (2, -1.0), 12: (4, 1.0), 13: (5, -1.0), 14: (0, -1.0), 15: (2, 1.0)}


def cells(planted: bool) -> tuple[sparse.csr_matrix, np.ndarray, np.ndarray]:
    """Multiplicities [C, N], basal [C], cell_types [C]; the regulators are correlated with each
    other.
    """
    generator = np.random.default_rng(4)
    values = generator.standard_normal((CELLS, GENES))
    values[:, REGULATORS] += 0.5 * generator.standard_normal((CELLS, 1))
    if planted:
        for target, (regulator, sign) in PLANTED.items():
            values[:, target] += 1.5 * sign * values[:, regulator]
    basal = 1 + 0.2 * generator.standard_normal(CELLS)
    cell_types = generator.integers(0, STATES, CELLS)
    return (
        sparse.csr_matrix((values + 6).clip(0).astype(np.float32)),
        basal.astype(np.float32),
        cell_types,
    )


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
def regulators():
    multiplicity, basal, cell_types = cells(False)
    values = multiplicity[:, REGULATORS].toarray()
    values[:, 1] += 2 * cell_types  # follows the cell type
    values[:, 2] += 3 * basal  # follows the depth
    return values, basal, cell_types


def draws(values, basal, strata):
    """Knock-offs as arrays."""
    given = (
        torch.as_tensor(values),
        torch.as_tensor(basal)[:, None],
        strata,
        torch.Generator().manual_seed(0),
    )
    return (each.numpy() for each in knockoffs.knockoffs(*given))


def test_knockoffs_keep_each_types_values_and_depth(regulators):
    values, basal, cell_types = regulators
    before = values.copy()
    drawn, other = islice(draws(values, basal, cell_types), 2)
    np.testing.assert_array_equal(values, before)
    for cell_type in np.unique(cell_types):
        own = cell_types == cell_type
        np.testing.assert_array_equal(np.sort(drawn[own], 0), np.sort(values[own], 0))
    correlation = [np.corrcoef(table[:, 2], basal)[0, 1] for table in (values, drawn)]
    assert correlation[1] == pytest.approx(correlation[0], abs=0.1)
    again = next(draws(values, basal, cell_types))
    np.testing.assert_array_equal(drawn, again)
    assert (other != drawn).mean() > 0.5


def test_knockoffs_correlate_as_their_regulators_do():
    generator = np.random.default_rng(0)
    values = generator.standard_normal((4000, 5)) + generator.standard_normal((4000, 1))
    drawn = next(draws(values, np.ones(4000), np.zeros(4000, int)))
    both = np.corrcoef(values.T, drawn.T)
    among, across = both[:5, :5], both[:5, 5:]
    np.testing.assert_allclose(both[5:, 5:], among, atol=0.08)
    apart = ~np.eye(5, dtype=bool)
    np.testing.assert_allclose(across[apart], among[apart], atol=0.08)
    assert (across.diagonal() < 0.6).all()


def test_independent_regulators_have_independent_knockoffs_and_twins_none():
    torch.testing.assert_close(
        independent_shares(torch.eye(4).double()), torch.ones(4).double(), rtol=0, atol=1e-6
    )
    twins = torch.tensor([[1, 0.999, 0], [0.999, 1, 0], [0, 0, 1]]).double()
    share = independent_shares(twins)
    assert share[0] < 0.01 and share[2] > 0.9
    assert torch.linalg.eigvalsh(2 * twins - share.diag())[0] > 0


@pytest.mark.parametrize("seed", range(5))
def test_planted_edges_have_larger_slopes_than_other_pairs_and_knock_offs(table, seed):
    """3 to 5 times in 40 draws; no regulator has one on itself."""
    edges = np.zeros((GENES, len(REGULATORS)), dtype=bool)
    for target, (regulator, _) in PLANTED.items():
        edges[target, np.searchsorted(REGULATORS, regulator)] = True
    slopes, null = (each.abs() for each in next(fits_with_knockoffs(table(True), seed=seed)))
    assert slopes[edges].min() > 2.5 * max(slopes[~edges].max(), null.max())
    for each in (slopes, null):
        assert (each[REGULATORS, range(4)] == 0).all()


def test_levels_of_states_pass_for_regulation_only_without_the_states(table):
    """Regulators and other genes are higher in some types, and no regulator does anything."""
    others = np.setdiff1d(np.arange(GENES), REGULATORS)

    def ratio(states: bool) -> float:
        """The squares of real slopes over those of knock-offs."""
        slopes, null = next(fits_with_knockoffs(table(False, states, 3.0), seed=1))
        return float(slopes[others].square().sum() / null[others].square().sum())

    assert 0.5 < ratio(True) < 2 < ratio(False)


def test_strata_are_donors_within_states_where_donors_have_cells_enough(table):
    known = table(True)
    of_states = strata_of(known)
    assert set(of_states) == set(range(STATES))
    donors = np.arange(CELLS) % 2
    strata = strata_of(replace(known, groups=donors))
    assert len(np.unique(strata)) == 2 * STATES
    assert len({*zip(strata, of_states, donors, strict=True)}) == 2 * STATES
    each_by_itself = replace(known, groups=np.arange(CELLS))
    np.testing.assert_array_equal(strata_of(each_by_itself), of_states)


def test_fits_repeat_with_their_seed(table):
    first, again, other = (next(fits_with_knockoffs(table(True), seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(first[1], again[1]) and not torch.equal(first[1], other[1])
