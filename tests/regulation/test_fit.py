"""Fitting the regulation layer: planted networks are found, noise is not, and held-out cells are never trained on."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.metrics import average_precision_score

from grn.cells.cells import Cells
from grn.cells.load import load_cells
from grn.cells.preprocessing.moments import mean_and_sd
from grn.config.schema import Config, RegulationConfig
from grn.errors import TrainingDiverged
from grn.model.signed.regulation import Regulation
from grn.networks.readouts.effect import effect_network
from grn.regulation import cell_table
from grn.regulation import fit as fitting
from grn.regulation.cell_table import TrainingCells
from grn.regulation.fit import FittedLayer, fit_ensemble, fit_regulation
from grn.regulation.members import RegulationSettings
from grn.regulation.states import states_of

CELLS, GENES, REGULATORS = 300, 20, np.array([0, 2, 5, 9])
TARGETS = np.setdiff1d(np.arange(GENES), REGULATORS)
REPRESSED = 19  # by two regulators, and nothing raises it
QUICK = RegulationSettings(heads=2, width=8, penalties=[10], steps=120, batch_size=64, learning_rate=0.02)


def planted(seed: int = 0, noise: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    """Multiplicities [C, N] that are linear in those of the regulators, and the signed truth [N, R]."""
    generator = np.random.default_rng(seed)
    truth = np.zeros((GENES, len(REGULATORS)))
    for target in TARGETS:
        pair = generator.choice(len(REGULATORS), 2, replace=False)
        truth[target, pair] = generator.choice([-1, 1], 2)
    truth[REPRESSED] = [-1, 0, 0, -1]
    values = generator.gamma(4, 0.5, (CELLS, GENES))
    values[:, TARGETS] = 8 + values[:, REGULATORS] @ truth[TARGETS].T
    values[:, TARGETS] += noise * generator.normal(size=(CELLS, len(TARGETS)))
    return np.maximum(values, 0), truth


def shuffled(values: np.ndarray, seed: int) -> np.ndarray:
    """Every gene's own values, in cells of its own."""
    return np.random.default_rng(seed).permuted(values, axis=0)


def fit(
    values: np.ndarray, config: RegulationConfig = QUICK, *, members: int = 2, seed: int = 0, **changes
) -> FittedLayer:
    multiplicity = sp.csr_matrix(values.astype(np.float32))
    mean, sd = mean_and_sd(sp.csr_matrix(values.astype(np.float32)))
    known: dict[str, Any] = {
        "basal": np.ones(len(values), np.float32),
        "rows": np.arange(len(values)),
        "mean": mean,
        "sd": sd,
    }
    known |= {name: changes.pop(name) for name in list(changes) if name in TrainingCells.__dataclass_fields__}
    cells = TrainingCells(multiplicity, regulators=REGULATORS, **known)
    return fit_ensemble(config, cells, members=members, seed=seed, **changes)


def effect(found: FittedLayer, values: np.ndarray) -> np.ndarray:
    cells = torch.as_tensor(values[:, REGULATORS], dtype=torch.float32)
    one = torch.ones(len(values), 1)
    return effect_network(Regulation(found.layer), cells, None, one, np.zeros((1, GENES))).weight


def same(one: FittedLayer, other: FittedLayer) -> bool:
    tensors, others = one.layer.state_dict(), other.layer.state_dict()
    return all(torch.equal(tensor, others[name]) for name, tensor in tensors.items())


def test_the_same_seed_gives_the_same_layer_bit_for_bit():
    """Whatever was drawn before."""
    values, _ = planted()
    config = QUICK.model_copy(update={"penalties": [1, 10], "steps": 30})
    first = fit(values, config, seed=4)
    torch.rand(3)
    again = fit(values, config, seed=4)
    assert same(first, again) and torch.equal(first.error, again.error)
    assert torch.equal(first.ranks.penalty, again.ranks.penalty)
    assert not same(first, fit(values, config, seed=5))


@pytest.mark.parametrize("seed", [0, 1])
def test_a_planted_network_is_found_with_its_signs(seed):
    values, truth = planted(seed)
    found = fit(values)
    weight = effect(found, values)
    edges = truth != 0
    assert average_precision_score(edges[TARGETS].ravel(), np.abs(weight[TARGETS]).ravel()) > 0.98
    np.testing.assert_array_equal(np.sign(weight[edges]), truth[edges])
    assert found.error.shape == (2,) and (found.error < 0.6).all()


def test_independent_genes_are_neither_predicted_nor_ranked():
    """The mean is as good a prediction, and no planted truth is found better than by chance. Ten members, so that every
    cell is held out once and the genes' means have an error of 1."""
    errors, precisions, shares = [], [], []
    for seed in range(4):
        values, truth = planted(seed)
        values = shuffled(values, seed)
        found = fit(values, QUICK.model_copy(update={"penalties": [10, 300]}), members=fitting.MEMBER_FOLDS, seed=seed)
        edges = (truth[TARGETS] != 0).ravel()
        errors.append(float(found.error.mean()))
        precisions.append(average_precision_score(edges, np.abs(effect(found, values)[TARGETS]).ravel()))
        shares.append(edges.mean())
    assert np.mean(errors) > 0.97
    assert np.mean(precisions) < np.mean(shares) + 0.1


def test_targets_that_are_not_kept_on_the_device_give_the_same_fit(monkeypatch):
    values, _ = planted()
    values[np.random.default_rng(0).random(values.shape) < 0.3] = 0
    config = QUICK.model_copy(update={"steps": 30})
    kept_on_device = fit(values, config)
    monkeypatch.setattr(cell_table, "KEPT", 0)
    tables, table = [], fitting.CellTable
    monkeypatch.setattr(fitting, "CellTable", lambda *given: tables.append(table(*given)) or tables[-1])
    assert same(fit(values, config), kept_on_device)
    assert tables[0].values.dense is None and tables[0].ranks.dense is None


def start_only(values: np.ndarray, **options) -> FittedLayer:
    """The members as they start, in units that no target changes. For their steps, see test_members.py."""
    known, _ = planted()
    given = dict(zip(("mean", "sd"), mean_and_sd(sp.csr_matrix(known.astype(np.float32))), strict=True))
    return fit(values, QUICK.model_copy(update={"steps": 0}), **given, **options)


def assert_first_alone_is_the_same(before: FittedLayer, after: FittedLayer) -> None:
    for name, tensor in before.layer.named_parameters():
        assert torch.equal(after.layer.get_parameter(name)[0], tensor[0]), name
    assert not torch.equal(after.layer.query[2], before.layer.query[2])
    assert after.error[0] > 100 * before.error[0], "these are the cells that the member is validated on"


def test_members_start_without_the_cells_that_they_hold_out():
    """Huge targets in the cells that the first member holds out: it starts as it would have, and the others do not."""
    values, _ = planted()
    order = torch.randperm(CELLS, generator=torch.Generator().manual_seed(3))
    poisoned = values.copy()
    poisoned[np.ix_(order[:: fitting.MEMBER_FOLDS].numpy(), TARGETS)] = 1e4
    assert_first_alone_is_the_same(*(start_only(each, seed=3, members=3) for each in (values, poisoned)))


def donors(sizes: list[int], seed: int = 0) -> np.ndarray:
    """A donor per cell, in no order."""
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))


def test_a_donor_that_is_held_out_is_not_trained_on_in_any_of_its_cells():
    """Huge targets in every cell of the first member's donor: it starts as it would have, and the others do not."""
    values, _ = planted()
    groups = donors([70, 110, 120])  # 110: next to a third of 300
    poisoned = values.copy()
    poisoned[np.ix_(groups == 1, TARGETS)] = 1e4
    assert_first_alone_is_the_same(*(start_only(each, groups=groups, members=3) for each in (values, poisoned)))


def test_penalties_are_chosen_between_donors():
    """Their own slopes help within a donor and not in another one; cells held out singly do not show it."""
    generator, groups = np.random.default_rng(0), donors([60] * 5)
    values = generator.gamma(4, 0.5, (CELLS, GENES))
    values[:, REGULATORS] -= values[:, REGULATORS].mean(0)
    own = generator.normal(size=(5, GENES, len(REGULATORS)))
    values[:, TARGETS] = (
        0.3 * generator.normal(size=values.shape) + np.einsum("cir,cr->ci", own[groups], values[:, REGULATORS])
    )[:, TARGETS]
    config = QUICK.model_copy(update={"penalties": [1, 10, 100, 1000], "steps": 0})
    singly, together = (fit(values + 20, config, members=1, groups=each).values for each in (None, groups))
    assert together.error > singly.error
    assert together.penalty[TARGETS].median() > singly.penalty[TARGETS].median()


@pytest.mark.parametrize("sizes", [[150, 150], [297, 2, 1], [60, 60, 60, 60, 60]])
def test_fewer_donors_than_members_are_enough_and_the_network_is_found(sizes):
    values, truth = planted()
    found = fit(values, members=6, groups=donors(sizes))
    assert found.error.isfinite().all()
    if sizes[0] < 200:  # a member that holds out almost all cells trains on three
        weight = effect(found, values)
        assert average_precision_score((truth[TARGETS] != 0).ravel(), np.abs(weight[TARGETS]).ravel()) > 0.98


def test_cells_of_one_donor_are_held_out_singly_with_a_message():
    """Cells of another one that are not fitted change nothing."""
    values, _ = planted()
    config, rows = QUICK.model_copy(update={"steps": 20}), np.arange(0, CELLS, 2)
    messages: list[str] = []
    plain = fit(values, config, rows=rows, say=messages.append)
    assert not messages
    single = fit(values, config, rows=rows, groups=np.arange(CELLS) % 2, say=messages.append)
    assert same(plain, single) and torch.equal(plain.error, single.error)
    [message] = messages
    assert message.startswith("All cells to fit are of one group (data.group_key), ")


def test_what_the_depth_explains_is_credited_to_no_regulator_by_members_that_read_it():
    """Regulators and targets rise with the depth, and no regulator does anything."""
    generator = np.random.default_rng(0)
    values = generator.gamma(4, 0.5, (CELLS, GENES))
    basal = generator.uniform(0.5, 1.5, CELLS).astype(np.float32)
    values += 6 * basal[:, None]
    layer = fit(values, basal=basal, members=3).layer
    slopes = layer.scores().head_slopes().sum(1)[:, TARGETS]
    assert layer.reads_depth.tolist() == [0, 0, 1]
    assert (slopes[2, :, -1] > 0.5).all() and slopes[2, :, :-1].abs().mean() < 0.15 * slopes[2, :, -1].mean()
    assert (slopes[0, :, -1] == 0).all() and slopes[0, :, :-1].mean() > 2 * slopes[2, :, :-1].abs().mean()


def of_two_states(noise: float = 0.5) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cells, regulated with opposite signs in the second state; one-hot states [C, 2]; the truth of the first."""
    values, truth = planted(noise=noise)
    second = np.arange(CELLS) % 2 == 1
    around = values[:, REGULATORS] - values[:, REGULATORS].mean(0)
    values[np.ix_(second, TARGETS)] -= 2 * (around @ truth[TARGETS].T)[second]
    return values, np.eye(2, dtype=np.float32)[second.astype(int)], truth


def test_opposite_signs_in_two_states_are_found():
    values, states, truth = of_two_states()
    config = QUICK.model_copy(update={"penalties": [3, 10, 30]})
    found, pooled = (fit(values, config, states=each) for each in (states, None))
    assert found.layer.deviates and found.values.ratio > 0 and found.ranks.ratio == found.values.ratio
    assert not pooled.layer.deviates and pooled.error.mean() > 0.9 > 0.6 > found.error.mean()
    edges = truth != 0
    for state, sign in enumerate((1, -1)):
        slopes = found.layer.scores(state=state).head_slopes().sum(1).mean(0)[:, :-1].numpy()
        np.testing.assert_array_equal(np.sign(slopes[edges]), sign * truth[edges])
        assert average_precision_score(edges[TARGETS].ravel(), np.abs(slopes[TARGETS]).ravel()) > 0.98


def test_levels_of_states_are_no_regulation():
    """All genes are higher in the second state, and no regulator does anything."""
    values = shuffled(planted()[0], 0)
    states = np.eye(2, dtype=np.float32)[np.arange(CELLS) % 2]
    values[1::2] += 8
    found, pooled = (
        fit(values, QUICK.model_copy(update={"penalties": [10, 100]}), states=each) for each in (states, None)
    )
    within, across = (
        each.layer.scores().head_slopes().sum(1).mean(0)[TARGETS, :-1].abs().mean() for each in (found, pooled)
    )
    assert within < 0.25 * across
    assert found.layer.bias[:, 1].mean() > found.layer.bias[:, 0].mean() + 1


def test_a_fit_that_is_not_finite_is_refused():
    values, _ = planted()
    given = dict(zip(("mean", "sd"), mean_and_sd(sp.csr_matrix(values)), strict=True))
    values[7, 0] = 1e30  # squares overflow
    with pytest.raises(TrainingDiverged, match=r"of the regulation layer is not finite"):
        fit(values, QUICK.model_copy(update={"steps": 5}), **given)


@pytest.fixture(scope="module")
def simulated(make_config) -> tuple[Config, Cells]:
    config = make_config()
    return config, load_cells(config.data)[0]


def of_run(config: Config, cells: Cells, rows: np.ndarray, say=lambda line: None, penalties=None):
    mean, sd = mean_and_sd(cells.multiplicity[rows])
    return fit_regulation(config, cells, states_of(cells, 0), rows, mean=mean, sd=sd, say=say, penalties=penalties)


def test_a_run_has_a_pooled_layer_and_one_that_knows_the_states(simulated):
    config, cells = simulated
    said: list[str] = []
    found = of_run(config, cells, np.arange(60), said.append)
    regulation = found.regulation
    assert regulation.pooled is found.pooled.layer and regulation.by_state is found.by_state.layer
    assert (regulation.pooled.states, regulation.by_state.states) == (1, 2) and found.within is found.by_state
    assert regulation.level_error > 0
    assert [line.split()[0] for line in said] == ["Fitted", "Within", "Levels"]
    assert all(line.endswith(".") or line.endswith(").") for line in said)
    again = of_run(config, cells, np.arange(80), penalties=found.penalties)
    assert again.pooled.values is found.pooled.values and again.by_state.ranks is found.by_state.ranks
    assert not same(again.pooled, found.pooled)


def test_training_is_cut_where_there_are_many_scores_and_left_out_where_it_would_be_short(simulated, monkeypatch):
    config, cells = simulated
    said: list[str] = []
    one = replace(cells, labels=np.full(80, -1))
    layer = of_run(config, one, np.arange(60)).pooled.layer
    scores = layer.centre.numel() * layer.members * layer.heads * layer.genes
    monkeypatch.setattr(fitting, "FEWEST_STEPS", 3)
    for steps, work in ((4, 5 * scores - 1), (3, 3 * scores), (0, 3 * scores - 1)):
        monkeypatch.setattr(fitting, "WORK", work)
        said.clear()
        of_run(config, one, np.arange(60), said.append)
        assert f"trained for {steps} steps after" in said[0] and f"not {config.regulation.steps} (" in said[0]
