"""The fitted cells as tensors: ranks, standardised targets, and batches of both kinds."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import rankdata

from grn.cells.preprocessing.moments import mean_and_sd
from grn.model.signed.regulation_layer import RegulationLayer
from grn.regulation import cell_table as module
from grn.regulation.cell_table import CellTable, TrainingCells, cell_ranks, centred, sampled, set_units

REGULATORS = np.array([1, 4])
ROWS = np.array([0, 2, 3, 5, 6, 8, 9, 11])


def training_cells(states: bool = True) -> TrainingCells:
    generator = np.random.default_rng(0)
    values = (generator.gamma(2, 1, (12, 6)) * (generator.random((12, 6)) < 0.7)).astype(np.float32)
    multiplicity = sp.csr_matrix(values)
    membership = np.eye(2, dtype=np.float32)[np.arange(12) % 2] if states else None
    basal = generator.uniform(0.5, 1.5, 12).astype(np.float32)
    return TrainingCells(multiplicity, basal, ROWS, REGULATORS, *mean_and_sd(multiplicity[ROWS]), states=membership)


def table_of(cells: TrainingCells) -> tuple[RegulationLayer, CellTable]:
    layer = RegulationLayer(2, 6, torch.as_tensor(REGULATORS), 1, 2, cells.memberships().shape[1])
    set_units(layer, cells)
    return layer, CellTable(layer, cells)


@given(st.integers(0, 500), st.integers(1, 40), st.sampled_from([1, 3, 100]))
def test_ranks_are_those_of_all_cells_up_to_a_constant_of_each_gene(seed, cells, values):
    """Ties, of zeros and of others, share their mean rank; zeros stay zeros, and nothing else becomes one."""
    generator = np.random.default_rng(seed)
    multiplicity = generator.integers(0, values + 1, (cells, 5)).astype(np.float32)
    multiplicity[:, 0] = 0
    multiplicity[:, 1] += 1  # no zeros
    found = cell_ranks(sp.csr_matrix(multiplicity)).toarray()
    difference = found - rankdata(multiplicity, axis=0) / cells
    np.testing.assert_allclose(difference, np.broadcast_to(difference[:1], difference.shape), atol=1e-6)
    np.testing.assert_array_equal(found == 0, multiplicity == 0)
    assert found.dtype == np.float32


@pytest.mark.parametrize("dense", [module.KEPT, 0])
def test_a_batch_has_the_members_own_cells_and_kinds(monkeypatch, dense):
    """Standardised multiplicities for members that predict these, and standardised ranks for the others; the table may
    be kept dense or sparse."""
    monkeypatch.setattr(module, "KEPT", dense)
    cells = training_cells()
    layer, table = table_of(cells)
    rows = torch.tensor([[0, 3, 3], [7, 1, 0]])
    inputs, states, targets = table.batch(rows, torch.tensor([0.0, 1.0]))
    values = cells.multiplicity.toarray()[ROWS]
    ranks = rankdata(values, axis=0)
    sd = ranks.std(0)
    for found, which, kind, scale in (
        (targets[0], rows[0], values - values.mean(0), values.std(0)),
        (targets[1], rows[1], ranks - ranks.mean(0), np.where(sd > 0, sd, 1)),
    ):
        expected = (kind / np.where(scale > 0, scale, 1))[which.numpy()]
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)
    assert (table.values.dense is None) == (dense == 0)
    read = np.column_stack([values[:, REGULATORS], cells.basal[ROWS]])[rows.numpy()]
    np.testing.assert_allclose((inputs * layer.unit).numpy(), read, rtol=1e-5)
    np.testing.assert_array_equal(states.numpy(), cells.states[ROWS][rows.numpy()])
    assert len(table) == len(ROWS)


def test_units_are_the_sds_within_states_and_centres_the_means_of_states():
    cells = training_cells()
    layer, _ = table_of(cells)
    values = np.column_stack([cells.multiplicity.toarray()[:, REGULATORS], cells.basal])[ROWS]
    means = np.stack([values[state == ROWS % 2].mean(0) for state in range(2)])
    np.testing.assert_allclose(layer.unit.numpy(), (values - means[ROWS % 2]).std(0), rtol=1e-4)
    np.testing.assert_allclose((layer.centre * layer.unit).numpy(), means, rtol=1e-5)


def test_no_value_counts_as_more_than_the_limit(monkeypatch):
    """Regulators count as at most LIMIT units above the mean of their state, targets as at most LIMIT sds."""
    cells = training_cells()
    layer, free = table_of(cells)
    monkeypatch.setattr(module, "LIMIT", 0.5)
    _, limited = table_of(cells)
    limit = free.states @ layer.centre + 0.5
    assert 0 < (free.inputs > limit).sum() < free.inputs.numel()
    torch.testing.assert_close(limited.inputs, torch.minimum(free.inputs, limit))
    rows = torch.arange(len(ROWS))
    for kind in ("values", "ranks"):
        targets = getattr(free, kind)(rows)
        assert 0 < (targets > 0.5).sum() < targets.numel()
        torch.testing.assert_close(getattr(limited, kind)(rows), targets.clamp(max=0.5))


def test_differences_within_states_have_no_levels():
    """For memberships of one state; the layer's centres are those of the states."""
    layer, table = table_of(training_cells())
    x, depth, states = centred(layer, table, torch.arange(len(ROWS)))
    assert x.dtype == depth.dtype == states.dtype == torch.float64
    both = torch.cat([x, depth[:, None]], 1)
    torch.testing.assert_close(states.mT @ both, torch.zeros(2, 3).double(), atol=1e-5, rtol=0)
    assert both.std() > 0.3


def test_a_sample_is_sorted_repeatable_and_as_large_as_there_is_room_for(monkeypatch):
    layer, table = table_of(training_cells())
    rows = torch.arange(len(ROWS))
    assert sampled(layer, table, rows, 0) is rows
    monkeypatch.setattr(module, "DENSE", 5 * 6)
    monkeypatch.setattr(module, "LARGE", 4)
    one, other = sampled(layer, table, rows, 0), sampled(layer, table, rows, 1)
    assert len(one) == len(other) == 5 and len(set(one.tolist())) == 5
    assert torch.equal(one, one.sort()[0]) and not torch.equal(one, other)
    assert torch.equal(sampled(layer, table, rows, 0), one)


def test_cells_that_are_not_fitted_are_not_read():
    cells = training_cells()
    values = cells.multiplicity.toarray()
    values[[1, 4, 7, 10]] = np.nan
    poisoned = TrainingCells(
        sp.csr_matrix(values), cells.basal, ROWS, REGULATORS, cells.mean, cells.sd, states=cells.states
    )
    (layer, table), (expected_layer, expected) = table_of(poisoned), table_of(cells)
    rows, kinds = torch.arange(len(ROWS)).expand(2, -1), torch.tensor([0.0, 1.0])
    for found, known in zip(table.batch(rows, kinds), expected.batch(rows, kinds), strict=True):
        assert torch.equal(found, known)
    assert torch.equal(layer.centre, expected_layer.centre) and torch.equal(layer.unit, expected_layer.unit)
