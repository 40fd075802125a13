"""The fitted cells in the model's units: inputs, targets, and the levels that states keep for
themselves.
"""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from grn.cells.load import load_cells
from grn.cells.preprocessing.multiplicity import Counting
from grn.evidence import cell_table as module
from grn.evidence.cell_table import CellTable
from grn.model.regulation import DEPTH

REGULATORS = [1, 4]
STATE = np.arange(12) % 2
GENERATOR = np.random.default_rng(0)
VALUES = GENERATOR.gamma(2, 1, (12, 6)) * (GENERATOR.random((12, 6)) < 0.7) + STATE[:, None]
BASAL = GENERATOR.uniform(0.5, 1.5, 12)
NOISE = GENERATOR.random((12, 2))


@pytest.fixture(params=[0.0, 0.6, 1.0], ids=["states", "in part", "pooled"])
def table(make_table, request) -> CellTable:
    noise = sp.csr_matrix(NOISE.astype(np.float32))
    return make_table(VALUES, STATE, REGULATORS, basal=BASAL, noise=noise, levels=request.param)


def means(values: np.ndarray) -> np.ndarray:
    return np.stack([values[state == STATE].mean(0) for state in (0, 1)])


def test_units_are_sds_around_levels_of_states_as_far_as_differences_do_not_count(table):
    """So that a regulator that differs between states is penalised as others are."""
    part = table.levels
    around = VALUES - (part * VALUES.mean(0) + (1 - part) * means(VALUES)[STATE])
    np.testing.assert_allclose(table.sd, around.std(0), rtol=1e-5)
    np.testing.assert_allclose(table.mean, VALUES.mean(0), rtol=1e-6)
    np.testing.assert_allclose(table.spread, VALUES.std(0), rtol=1e-5)
    assert table.depth == pytest.approx((BASAL.mean(), BASAL.std()))
    np.testing.assert_allclose(
        table.counting, NOISE.mean(0) / around.std(0)[REGULATORS] ** 2, rtol=1e-5
    )
    assert replace(table, noise=None).counting is None
    assert replace(table, basal=np.ones(12, np.float32)).depth == (1, 1)


def test_inputs_and_targets_are_in_these_units_and_absent_regulators_are_0(table):
    sd, near = table.sd.numpy(), {"rtol": 1e-4, "atol": 1e-4}
    depth = DEPTH + (BASAL - BASAL.mean()) / BASAL.std()
    expected = np.column_stack([VALUES[:, REGULATORS] / sd[REGULATORS], depth])
    np.testing.assert_allclose(table.inputs, expected, **near)
    standard, some = (VALUES - VALUES.mean(0)) / sd, [5, 0]
    np.testing.assert_allclose(table.targets(np.array(some)), standard[:, some], **near)
    columns = table.columns(torch.zeros(1).double())
    assert columns.shape == (12, 6) and columns.read(slice(1, 3)).dtype == torch.float64
    np.testing.assert_allclose(columns.read(torch.tensor([3])), standard[:, [3]], **near)


def test_states_have_means_of_their_own_of_some_cells_as_each_member_knows(table):
    rows = np.array([0, 1, 2, 5, 8, 11])
    centre, level = table.means(rows)
    assert centre.shape == (2, 3) and level.shape == (2, 6)
    m, standard = table.inputs.numpy()[rows], table.targets(slice(None)).numpy()[rows]
    for state in (0, 1):
        own = STATE[rows] == state
        np.testing.assert_allclose(centre[state], m[own].mean(0), rtol=1e-4)
        np.testing.assert_allclose(level[state], standard[own].mean(0), rtol=1e-4, atol=1e-4)


def test_levels_of_states_are_their_means_as_far_as_differences_do_not_count(table):
    """The rest of the way they are the mean of all cells, whose cells each state has a share of."""
    states = np.stack([np.arange(12) < 3, np.arange(12) >= 3], 1).astype(np.float32)
    uneven = replace(table, states=states)
    m, part = uneven.inputs.numpy(), table.levels
    expected = [part * m.mean(0) + (1 - part) * m[own].mean(0) for own in states.T > 0]
    np.testing.assert_allclose(uneven.mixed @ uneven.means()[0], expected, rtol=1e-5)
    np.testing.assert_allclose(uneven.mixed.sum(1), 1, rtol=1e-6)


def test_no_value_counts_as_more_than_the_limit_above_the_mean(table, monkeypatch):
    monkeypatch.setattr(module, "LIMIT", 0.5)
    limited = replace(table)
    own = torch.tensor(REGULATORS)
    most = 0.5 + (table.mean / table.sd)[own]
    torch.testing.assert_close(limited.inputs[:, :-1], torch.minimum(table.inputs[:, :-1], most))
    torch.testing.assert_close(
        limited.targets(slice(None)), table.targets(slice(None)).clamp(max=0.5)
    )


def test_some_of_the_cells_are_in_their_own_units(table):
    part = replace(table, groups=STATE + 3).some(np.arange(8))
    assert len(part) == 8 and part.levels == table.levels and part.groups.tolist() == [3, 4] * 4
    np.testing.assert_allclose(part.spread, VALUES[:8].std(0), rtol=1e-5)
    assert part.noise.shape == (8, 2)


def test_a_table_of_a_data_set_has_its_counting_noise_and_its_donors(make_config):
    """One donor is none."""
    cells, split = load_cells(make_config().data)
    states, rows = np.eye(2, dtype=np.float32)[cells.labels], split.train

    def table(rows, **known) -> CellTable:
        return CellTable.of(replace(cells, **known), rows, states)

    found = table(rows, groups=np.arange(80) // 20)
    assert len(found) == len(rows) and found.regulators.tolist() == cells.regulators.tolist()
    assert found.groups.tolist() == (rows // 20).tolist()
    counted = cells.multiplicity[rows][:, cells.regulators]
    expected = Counting(cells.counting.unit[rows]).variance(counted)
    assert (found.noise != expected).nnz == 0 and found.counting.min() > 0
    assert table(rows, groups=np.zeros(80)).groups is None
    every = table(np.arange(80), regulators=None, counting=None)
    assert every.multiplicity is cells.multiplicity and every.noise is None
    assert len(every.regulators) == 16
