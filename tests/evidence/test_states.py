"""The states of cells: of labels, along numbers, and found where there are neither."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.metrics import adjusted_rand_score

from grn.cells.cells import Cells
from grn.cells.load import load_cells
from grn.cells.simulated.cells import simulate
from grn.config.schema import DataConfig, Simulation
from grn.evidence import states as module
from grn.evidence.states import found_states, states_of, without_traces

CELLS, GENES = 300, 80


@pytest.fixture(scope="module")
def simulated() -> Cells:
    settings = {"cells": 60, "genes": 16, "regulators": 4, "cell_types": 3}
    config = DataConfig.model_validate(
        {"path": "simulated:", "label_key": "cell_type", "genes": "all", "simulated": settings}
    )
    return load_cells(config)[0]


def groups(
    sizes: list[int], apart: float, seed: int = 0, genes: int = GENES
) -> tuple[sp.csr_matrix, np.ndarray]:
    """Cells whose genes are shifted together by group, and the group of each, in no order."""
    generator = np.random.default_rng(seed)
    group = generator.permutation(np.repeat(np.arange(len(sizes)), sizes))
    shift = apart * generator.normal(size=(len(sizes), genes))
    values = 6 + generator.normal(size=(len(group), genes)) + shift[group]
    return sp.csr_matrix(values.clip(0).astype(np.float32)), group


def test_every_label_that_cells_have_is_a_state(simulated):
    """A cell without one belongs to all in part, and so does one that alone has its label, which a
    line says.
    """
    labels = np.where(np.arange(60) % 4 == 0, 0, 2)
    labels[[5, 11, 17]], labels[7] = -1, 1
    found, (first, alone, last) = states_of(replace(simulated, labels=labels), 0), simulated.classes
    assert found.origin == "labels" and found.names == (first, last) and found.alone == (alone,)
    known = np.isin(labels, [0, 2])
    expected = np.stack([labels == 0, labels == 2], 1).astype(np.float32)
    expected[~known] = expected[known].mean(0)
    np.testing.assert_allclose(found.membership, expected, rtol=1e-6)
    assert found.membership.dtype == np.float32 and len(found) == 2
    said = found.summary()
    assert "2 states" in said and f"{alone!r} has one cell, and so no network of its own." in said


def test_memberships_along_a_number_sum_to_one_and_are_linear_between_knots(simulated):
    values = np.random.default_rng(0).gamma(1.0, 5.0, 60).astype(np.float32)
    unlabelled = replace(simulated, labels=np.full(60, -1))
    found = states_of(replace(unlabelled, state=values, state_name="dose"), 0)
    membership, knots = found.membership, np.quantile(values, [0, 0.5, 1])
    assert found.origin == "numeric" and membership.dtype == np.float32
    assert all(name.startswith("dose ") for name in found.names)
    expected = np.stack([np.interp(values, knots, each) for each in np.eye(3)], 1)
    np.testing.assert_allclose(membership, expected, atol=1e-5)


def test_labels_and_numbers_are_crossed(simulated):
    values = np.random.default_rng(0).random(60).astype(np.float32)
    timed = replace(simulated, state=values, state_name="time")
    both, types = states_of(timed, 0), states_of(simulated, 0)
    along = states_of(replace(timed, labels=np.full(60, -1)), 0)
    assert len(both.names) == 9 and both.origin == "numeric"
    assert both.names[4] == f"{types.names[1]}, {along.names[1]}"
    crossed = both.membership.reshape(60, 3, 3)
    np.testing.assert_allclose(crossed.sum(2), types.membership, rtol=1e-6)
    np.testing.assert_allclose(crossed.sum(1), along.membership, rtol=1e-6)


def test_each_type_has_a_state_in_each_condition(simulated):
    """A cell without a condition, or without a type, belongs to all states, as much as other cells
    do.
    """
    condition = np.arange(60, dtype=np.float32) // 30
    condition[[0, 31]] = np.nan
    crossed = replace(simulated, state=condition, conditions=("control", "treated"))
    found = states_of(crossed, 0)
    assert found.origin == "conditions" and len(found) == 6
    assert found.names[:2] == tuple(
        f"{simulated.classes[0]}, {name}" for name in ("control", "treated")
    )
    known = np.isfinite(condition)
    expected = simulated.labels * 2 + np.nan_to_num(condition)
    assert (found.membership[known].argmax(1) == expected[known]).all()
    np.testing.assert_allclose(
        found.membership[~known], found.membership[known].mean(0)[None].repeat(2, 0), rtol=1e-5
    )
    alone = states_of(replace(crossed, labels=np.full(60, -1), classes=()), 0)
    assert alone.names == crossed.conditions and alone.origin == "conditions"


@pytest.mark.parametrize("sizes", [[150, 150], [160, 90, 50], [80, 80, 70, 70]])
def test_planted_groups_are_found(sizes):
    """From the largest to the smallest."""
    multiplicity, group = groups(sizes, 1.0)
    found = found_states(multiplicity, 0)
    assert found.origin == "found" and len(found) == len(sizes)
    assert adjusted_rand_score(group, found.membership.argmax(1)) > 0.95
    np.testing.assert_allclose(found.membership.sum(1), 1, rtol=1e-5)
    size = found.membership.sum(0)
    assert (np.diff(size) <= 0).all()
    assert found.names == tuple(f"state {k + 1}" for k in range(len(sizes)))


def test_a_cell_belongs_to_no_state_of_which_it_has_a_trace():
    """The rest is shared out as before."""
    membership = np.array([[0.97, 0.015, 0.015], [0.5, 0.48, 0.02], [0.6, 0.39, 0.01]])
    expected = [[1, 0, 0], [0.5, 0.48, 0.02], [0.6 / 0.99, 0.39 / 0.99, 0]]
    np.testing.assert_allclose(without_traces(membership), expected)
    found = found_states(groups([150, 150], 0.35)[0], 0).membership
    assert ((found == 0) | (found >= 0.02)).all()


@pytest.mark.parametrize("seed", range(4))
def test_no_groups_are_found_in_noise(seed):
    multiplicity, _ = groups([CELLS], 1.0, seed)
    found = found_states(multiplicity, seed)
    assert len(found) == 1 and found.origin == "one" and found.names == ("all cells",)


@pytest.mark.parametrize("seed", range(3))
def test_no_groups_are_found_along_one_direction_without_gaps(seed):
    """A program that cells have more or less of is no group."""
    generator = np.random.default_rng(seed)
    values = (
        6
        + generator.normal(size=(CELLS, GENES))
        + generator.normal(size=(CELLS, 1)) * generator.normal(size=GENES)
    )
    assert len(found_states(sp.csr_matrix(values.clip(0).astype(np.float32)), seed)) == 1


def test_some_of_the_cells_find_the_states_of_all(monkeypatch):
    multiplicity, group = groups([160, 140], 1.0)
    monkeypatch.setattr(module, "CELLS", 150)
    found = found_states(multiplicity, 0)
    assert found.membership.shape == (300, 2)
    assert adjusted_rand_score(group, found.membership.argmax(1)) > 0.95


def test_a_screen_without_labels_has_one_state():
    """Groups that are found in it would be its effects; labels are states there, too."""
    adata = simulate(Simulation(cells=400, genes=80, regulators=8, cell_types=2, interventions=0.5))
    fields = {"path": "simulated:", "genes": "all", "intervention_key": "intervention"}
    alone, _ = load_cells(DataConfig(**fields), adata=adata)
    assert states_of(alone, 0).origin == "screen" and len(states_of(alone, 0)) == 1
    labelled, _ = load_cells(DataConfig(**fields, label_key="cell_type"), adata=adata)
    assert states_of(labelled, 0).names == ("type 1", "type 2")
