"""Fitting the regulation layer: planted networks are found, noise is not, and held-out cells are never trained on."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.metrics import average_precision_score

from grn.config.schema import RegulationConfig
from grn.data.preprocessing.scale import mean_and_sd
from grn.errors import TrainingDiverged
from grn.network.readouts.effect import effect_network
from grn.regulation import fit as fitting
from grn.regulation import members as training
from grn.regulation.fit import FittedLayer, fit_ensemble
from grn.regulation.training_cells import TrainingCells

CELLS, GENES, REGULATORS = 300, 20, np.array([0, 2, 5, 9])
TARGETS = np.setdiff1d(np.arange(GENES), REGULATORS)
REPRESSED = 19  # by two regulators, and nothing raises it
QUICK = RegulationConfig(heads=2, width=8, penalties=[10], steps=120, batch_size=64, learning_rate=0.02)


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
        "weight": np.ones(len(values), np.float32),
        "rows": np.arange(len(values)),
        "mean": mean,
        "sd": sd,
    }
    known |= {name: changes.pop(name) for name in list(changes) if name in TrainingCells.__dataclass_fields__}
    cells = TrainingCells(multiplicity, regulators=REGULATORS, **known)
    return fit_ensemble(config, cells, members=members, seed=seed, **changes)


def effect(found: FittedLayer, values: np.ndarray) -> np.ndarray:
    cells = torch.as_tensor(values[:, REGULATORS], dtype=torch.float32)
    return effect_network(found.layer, cells, None, torch.zeros(len(values))).weight


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
    assert same(first, again) and first.penalty == again.penalty and torch.equal(first.error, again.error)
    assert not same(first, fit(values, config, seed=5))


def test_members_differ():
    """In the cells that they learn from and in where they start."""
    layer = fit(planted()[0], QUICK.model_copy(update={"steps": 20})).layer
    assert (layer.query[0] != layer.query[1]).any() and (layer.bias[0] != layer.bias[1]).any()


@pytest.mark.parametrize("seed", [0, 1])
def test_a_planted_network_is_found_with_its_signs(seed):
    values, truth = planted(seed)
    found = fit(values)
    weight = effect(found, values)
    edges = truth != 0
    assert average_precision_score(edges[TARGETS].ravel(), np.abs(weight[TARGETS]).ravel()) > 0.98
    np.testing.assert_array_equal(np.sign(weight[edges]), truth[edges])
    assert found.error.shape == (2,) and (found.error < 0.6).all()


@pytest.mark.parametrize("seed", [0, 1])
def test_a_gene_that_is_only_repressed_has_only_negative_weights(seed):
    values, _ = planted(seed)
    weight = effect(fit(values), values)[REPRESSED]
    assert (weight[[0, 3]] < 0).all()
    assert weight[[0, 3]].max() < -3 * np.abs(weight[[1, 2]]).max()


def test_independent_genes_are_neither_predicted_nor_ranked():
    """The mean is as good a prediction, and no planted truth is found better than by chance. Ten members, so that every
    cell is held out once and the genes' means have an error of 1."""
    errors, precisions, shares = [], [], []
    for seed in range(4):
        values, truth = planted(seed)
        values = shuffled(values, seed)
        found = fit(values, QUICK.model_copy(update={"penalties": [10, 300]}), members=training.FOLDS, seed=seed)
        edges = (truth[TARGETS] != 0).ravel()
        errors.append(float(found.error.mean()))
        precisions.append(average_precision_score(edges, np.abs(effect(found, values)[TARGETS]).ravel()))
        shares.append(edges.mean())
    assert np.mean(errors) > 0.97
    assert np.mean(precisions) < np.mean(shares) + 0.1


def test_noise_gets_the_strongest_penalty_and_clean_data_the_weakest():
    """For noise the strongest penalty is the right one, and ten held-out cells choose it more often than not."""
    config = QUICK.model_copy(update={"penalties": [3, 100, 3000]})
    chosen = [
        fit(np.random.default_rng(seed).gamma(4, 0.5, (100, 80)), config, members=1, seed=seed).penalty
        for seed in range(5)
    ]
    assert chosen.count(3000) >= 3 and chosen.count(3) <= 1
    messages: list[str] = []
    assert fit(planted(noise=0.2)[0], config, members=1, say=messages.append).penalty == 3
    [message] = messages
    assert message.startswith("Held-out error of the regulation layer by penalty: 3: ")


def test_a_single_penalty_is_used_without_a_trial(monkeypatch):
    fitted, train = [], fitting.train_members

    def recorded(*given, penalties, **options):
        fitted.append(penalties)
        return train(*given, penalties=penalties, **options)

    monkeypatch.setattr(fitting, "train_members", recorded)
    assert fit(planted()[0], QUICK.model_copy(update={"steps": 2}), members=3).penalty == 10
    assert fitted == [[10.0] * 3]


def test_targets_that_are_not_kept_on_the_device_give_the_same_fit(monkeypatch):
    values, _ = planted()
    values[np.random.default_rng(0).random(values.shape) < 0.3] = 0
    config = QUICK.model_copy(update={"steps": 30})
    kept_on_device = fit(values, config)
    monkeypatch.setattr(training, "DENSE", 0)
    tables, table = [], fitting.CellTable
    monkeypatch.setattr(fitting, "CellTable", lambda *given: tables.append(table(*given)) or tables[-1])
    assert same(fit(values, config), kept_on_device)
    assert tables[0].targets is None


def test_held_out_cells_are_not_trained_on(monkeypatch):
    """Huge targets in the cells that the first member holds out: it ends as it would have, and the second does not."""
    monkeypatch.setattr(training, "VALIDATIONS", 1)  # no earlier validation could be the better one
    values, _ = planted()
    given = dict(zip(("mean", "sd"), mean_and_sd(sp.csr_matrix(values)), strict=True))
    config = QUICK.model_copy(update={"steps": 30})
    before = fit(values, config, seed=3, **given)
    order = torch.randperm(CELLS, generator=torch.Generator().manual_seed(3))
    poisoned = values.copy()
    poisoned[np.ix_(order[:: training.FOLDS].numpy(), TARGETS)] = 1e4
    after = fit(poisoned, config, seed=3, **given)
    for name, tensor in before.layer.named_parameters():
        now = after.layer.get_parameter(name)
        assert torch.equal(now[0], tensor[0]), name
        assert not torch.equal(now[1], tensor[1]), name
    assert after.error[0] > 1e3 * before.error[0], "these are the cells that the member is validated on"


def donors(sizes: list[int], seed: int = 0) -> np.ndarray:
    """A donor per cell, in no order."""
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))


def test_a_donor_that_is_held_out_is_not_trained_on_in_any_of_its_cells(monkeypatch):
    """Huge targets in every cell of the first member's donor: it ends as it would have, and the second does not."""
    monkeypatch.setattr(training, "VALIDATIONS", 1)
    values, _ = planted()
    given = dict(zip(("mean", "sd"), mean_and_sd(sp.csr_matrix(values)), strict=True))
    config, groups = QUICK.model_copy(update={"steps": 30}), donors([70, 110, 120])  # 110: next to a third of 300
    before = fit(values, config, groups=groups, **given)
    poisoned = values.copy()
    poisoned[np.ix_(groups == 1, TARGETS)] = 1e4
    after = fit(poisoned, config, groups=groups, **given)
    for name, tensor in before.layer.named_parameters():
        now = after.layer.get_parameter(name)
        assert torch.equal(now[0], tensor[0]), name
        assert not torch.equal(now[1], tensor[1]), name
    assert after.error[0] > 1e3 * before.error[0], "these are the cells that the member is validated on"


@pytest.mark.parametrize("sizes", [[150, 150], [297, 2, 1], [60, 60, 60, 60, 60]])
def test_fewer_donors_than_members_are_enough_and_the_network_is_found(sizes):
    values, truth = planted()
    found = fit(values, members=6, groups=donors(sizes))
    assert found.error.isfinite().all()
    if sizes[0] < 200:  # a member that holds out almost all cells trains on three
        weight = effect(found, values)
        assert average_precision_score((truth[TARGETS] != 0).ravel(), np.abs(weight[TARGETS]).ravel()) > 0.98


def test_the_held_out_error_counts_every_held_out_cell_once():
    """Of donors of different sizes, too; before the first step the error is that of the genes' means."""
    values, _ = planted()
    groups = donors([85, 105, 110])
    still = QUICK.model_copy(update={"steps": 1, "learning_rate": 0})
    mean, sd = (numbers.numpy() for numbers in mean_and_sd(sp.csr_matrix(values.astype(np.float32))))
    squares = np.square((values - mean) / sd).mean(1)
    expected = [squares[groups == donor].mean() for donor in (1, 2, 0)]  # by distance from a third of the cells
    found = fit(values, still, members=3, groups=groups).error
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4)


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


def test_cells_without_weight_are_ignored():
    values, _ = planted()
    given = dict(zip(("mean", "sd"), mean_and_sd(sp.csr_matrix(values)), strict=True))
    weight = np.where(np.arange(CELLS) % 3 > 0, 1.5, 0).astype(np.float32)
    other = values.copy()
    other[np.ix_(weight == 0, TARGETS)] *= 50
    config = QUICK.model_copy(update={"steps": 30})
    found, again = (fit(each, config, weight=weight, **given) for each in (values, other))
    assert same(found, again) and torch.equal(found.error, again.error)
    assert not same(fit(other, config, weight=weight + 1, **given), fit(values, config, weight=weight + 1, **given))


def test_cells_that_are_not_listed_are_ignored():
    values, _ = planted()
    given = dict(zip(("mean", "sd"), mean_and_sd(sp.csr_matrix(values)), strict=True))
    rows = np.flatnonzero(np.arange(CELLS) % 4 > 0)
    other = values.copy()
    other[::4] *= 50
    config = QUICK.model_copy(update={"steps": 20})
    assert same(*(fit(each, config, rows=rows, **given) for each in (values, other)))


def test_what_the_depth_explains_is_credited_to_no_regulator():
    """All targets rise with the depth, no regulator does anything: no regulator is credited."""
    generator = np.random.default_rng(0)
    values = generator.gamma(4, 0.5, (CELLS, GENES))
    basal = generator.uniform(0.5, 1.5, CELLS).astype(np.float32)
    values[:, TARGETS] += 10 * basal[:, None]
    found = fit(values, basal=basal)
    slopes = found.layer.scores().head_slopes().sum(1).mean(0)[TARGETS]
    assert (slopes[:, -1] > 0.5).all() and slopes[:, :-1].abs().max() < 0.15 * slopes[:, -1].min()


def test_every_other_member_reads_the_depth_where_there_is_one():
    values, _ = planted()
    basal = np.random.default_rng(0).uniform(0.5, 1.5, CELLS).astype(np.float32)
    assert fit(values, members=3, basal=basal).layer.reads_depth.tolist() == [1, 0, 1]
    assert fit(values, members=3).layer.reads_depth.tolist() == [1, 1, 1]


@pytest.mark.parametrize("cells", [2, 3, 7, 11])
def test_few_cells_are_enough_to_begin_with(cells):
    found = fit(planted()[0][:cells], QUICK.model_copy(update={"steps": 3}), members=4)
    assert found.error.isfinite().all()


@pytest.mark.parametrize("what", ["a cell", "the learning rate"])
def test_a_fit_that_is_not_finite_is_refused(what):
    values, _ = planted()
    given = dict(zip(("mean", "sd"), mean_and_sd(sp.csr_matrix(values)), strict=True))
    rate = 0.02
    if what == "a cell":
        values[7, 0] = np.nan
    else:
        rate = float("inf")
    config = QUICK.model_copy(update={"steps": 5, "learning_rate": rate})
    with pytest.raises(TrainingDiverged, match=r"of the regulation layer is not finite. Lower regulation\.learning"):
        fit(values, config, **given)


def test_a_fitted_layer_takes_no_gradient():
    found = fit(planted()[0], QUICK.model_copy(update={"steps": 2}))
    assert not any(parameter.requires_grad for parameter in found.layer.parameters())
