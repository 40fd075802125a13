"""The read-outs of the regulation layer against the layer itself."""

import numpy as np
import pytest
import torch

from grn.model.regulation_layer import Regulation
from grn.network.readouts import effect
from grn.network.readouts.effect import attention_network, effect_network
from grn.network.weights import balanced, members_agreement

REGULATORS = np.array([0, 3, 5])
KINDS = torch.tensor([1, 0, 1, -1, 1, 0, 1])


@pytest.fixture
def cells():
    generator = torch.Generator().manual_seed(2)
    values = 0.1 + 3 * torch.rand(7, 3, generator=generator, dtype=torch.float64)
    return values, 0.5 + torch.rand(7, generator=generator, dtype=torch.float64)


@pytest.fixture
def unbalanced(monkeypatch):
    monkeypatch.setattr(effect, "balanced", lambda weight: weight)


def networks(layer: Regulation, cells, kinds=KINDS):
    return effect_network(layer, *cells, kinds), attention_network(layer, *cells, kinds)


def gentle(layer: Regulation, size: float) -> Regulation:
    """Small scores: the basal gene rules every norm."""
    layer.query.mul_(size)
    layer.log_basal.abs_()
    return layer


def test_attention_is_the_mean_weight_heads_weighed_by_gain_and_amount(make_regulation, cells):
    """Cell by cell, head by head, member by member."""
    layer = make_regulation(members=2, heads=2)
    said, m = layer.scores(), layer.inputs(*cells)
    expected = torch.zeros(12, 3, dtype=torch.float64)
    for cell in m:
        for member in range(2):
            worth = (said.gain * said.amount)[member]
            score = cell * said.score[member]
            weight = score / (score.square().sum(-1, keepdim=True) + said.basal[member].square()).sqrt()
            expected += ((weight * worth).sum(0) / worth.sum(0))[:, :3] / (len(m) * 2)
    found = attention_network(layer, *cells, KINDS).weight
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("scores", [2 * 2 * 7, 5 * 2 * 2 * 7, 1])
def test_tiles_of_targets_do_not_matter(make_regulation, cells, monkeypatch, scores):
    layer = make_regulation()
    whole = networks(layer, cells)
    monkeypatch.setattr(effect, "SCORES", scores)
    for found, expected in zip(networks(layer, cells), whole, strict=True):
        np.testing.assert_allclose(found.weight, expected.weight, rtol=1e-5, atol=1e-8)
        np.testing.assert_allclose(found.confidence, expected.confidence, rtol=1e-5)
        assert sorted(found.by_type) == [0, 1], "cells without a label are no type"
        for kind, weight in expected.by_type.items():
            np.testing.assert_allclose(found.by_type[kind], weight, rtol=1e-5, atol=1e-8)


def per_unit(found, cells, kinds):
    """Effect and attention of each kind's cells, the effect of a unit in the place of an sd; last: of all cells."""
    effect, attention = found
    values = cells[0].numpy()
    of_kinds = [int(kind) for kind in kinds.unique()]
    effects = [effect.by_type[kind] / values[kinds == kind].std(0) for kind in of_kinds]
    return (
        (effects, effect.weight / values.std(0)),
        ([attention.by_type[kind] for kind in of_kinds], attention.weight),
    )


def test_the_means_of_the_types_by_their_sizes_are_the_whole(make_regulation, cells, unbalanced):
    kinds = torch.tensor([1, 0, 1, 0, 1, 0, 1])
    for (first, second), whole in per_unit(networks(make_regulation(), cells, kinds), cells, kinds):
        np.testing.assert_allclose(whole, (3 * first + 4 * second) / 7, rtol=1e-4, atol=1e-6)
        assert np.abs(first - second).max() > 1e-3


def test_cells_without_a_type_count_in_the_whole(make_regulation, cells, unbalanced):
    layer, kinds = make_regulation(), torch.tensor([1, 0, 1, -1, -1, 0, 1])
    renamed = torch.where(kinds < 0, 2, kinds)
    for found, expected in zip(networks(layer, cells, kinds), networks(layer, cells, renamed), strict=True):
        np.testing.assert_allclose(found.weight, expected.weight, rtol=1e-5, atol=1e-7)
        assert sorted(found.by_type) == [0, 1]


def test_a_regulator_that_a_type_never_has_does_nothing_there(make_regulation, cells):
    values, depth = cells
    kinds = torch.tensor([1, 0, 1, 0, 1, 0, 1])
    values[kinds == 0, 1] = 0
    found = effect_network(make_regulation(), values, depth, kinds)
    assert (found.by_type[0][:, 1] == 0).all() and np.abs(found.by_type[1][:, 1]).max() > 0


@pytest.mark.parametrize("seed", range(5))
def test_a_network_s_type_is_the_network_of_its_cells(make_regulation, cells, seed):
    layer = make_regulation(seed=seed)
    own = tuple(each[KINDS == 1] for each in cells)
    for found, expected in zip(networks(layer, cells), networks(layer, own, torch.ones(4)), strict=True):
        np.testing.assert_allclose(found.by_type[1], expected.weight, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("seed", range(5))
def test_effect_and_attention_have_one_sign_that_of_the_score(make_regulation, cells, seed):
    """Everywhere with one head and member; several are weighed differently, and agree where all of them do."""
    layer = make_regulation(members=1, heads=1, seed=seed)
    sign = (layer.query @ layer.key.mT)[0, 0, :, :3].sign().numpy()
    sign[REGULATORS, [0, 1, 2]] = 0
    for found in networks(layer, cells):
        for weight in (found.weight, *found.by_type.values()):
            np.testing.assert_array_equal(np.sign(weight), sign)
    layer = make_regulation(members=2, heads=2, seed=seed)
    signs = (layer.query @ layer.key.mT)[..., :3].sign().flatten(0, 1)
    agreed = (signs == signs[0]).all(0).numpy()
    agreed[REGULATORS, [0, 1, 2]] = False
    assert agreed.any()
    for found in networks(layer, cells):
        np.testing.assert_array_equal(np.sign(found.weight)[agreed], signs[0].numpy()[agreed])


@pytest.mark.parametrize("size", [0.01, 1, 100])
def test_attention_lies_between_minus_one_and_one(make_regulation, cells, size):
    layer = make_regulation()
    layer.query.mul_(size)
    found = attention_network(layer, *cells, KINDS)
    for weight in (found.weight, *found.by_type.values()):
        assert 0 < np.abs(weight).max() <= 1


def test_self_pairs_are_no_edges(make_regulation, cells):
    for found in networks(make_regulation(), cells):
        for weight in (found.weight, *found.by_type.values()):
            assert (weight[REGULATORS, [0, 1, 2]] == 0).all()
            assert (weight == 0).sum() == 3


def test_effect_is_the_slope_of_the_prediction_where_the_basal_gene_rules(make_regulation, cells):
    """sds of the target for one sd of the regulator. With scores of a thousandth of the basal gene's the norm's own
    change is of the order of a millionth: equal to 1e-4, depth included."""
    layer, (values, depth) = gentle(make_regulation(), 1e-3), cells
    found = effect_network(layer, values, depth, KINDS).weight
    slopes = np.zeros((12, 3))
    for column in range(len(REGULATORS)):
        step = 0.01 * values[:, column].std(correction=0)
        up, down = values.clone(), values.clone()
        up[:, column] += step
        down[:, column] -= step
        slopes[:, column] = ((layer(up, depth) - layer(down, depth)) / 0.02).mean(0)
    np.testing.assert_allclose(found, balanced(slopes), rtol=1e-4, atol=1e-7)
    assert np.abs(found).max() > 1e-3


def test_a_regulator_that_never_varies_has_no_effect(make_regulation, cells):
    """Absent everywhere or the same everywhere: its score is chance."""
    values, depth = cells
    values[:, 1] = 0
    values[:, 2] = 0.7
    found = effect_network(make_regulation(), values, depth, KINDS)
    for weight in (found.weight, *found.by_type.values()):
        assert (weight[:, 1:] == 0).all() and (np.delete(weight[:, 0], 0) != 0).all()


def test_identical_members_agree_and_random_ones_do_as_chance_does():
    one = torch.randn(200, 30, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(members_agreement(one.expand(5, -1, -1)), torch.ones(200, 30))
    for members in (4, 16, 64):
        drawn = torch.randn(members, 200, 30, generator=torch.Generator().manual_seed(1))
        found = members_agreement(drawn)
        # The mean of P draws is 1 / sqrt(P) of a normal number, whose mean magnitude is sqrt(2 / pi).
        assert float(found.mean()) == pytest.approx((2 / np.pi / members) ** 0.5, rel=0.1)
        assert found.min() >= 0 and found.max() <= 1 + 1e-6
    assert (members_agreement(one[None]) == 0.5).all(), "one member knows nothing of its agreement"
    assert (members_agreement(torch.zeros(3, 2, 2)) == 0).all()


def test_confidence_is_the_agreement_of_the_members_over_all_cells(make_regulation, cells, unbalanced):
    layer = make_regulation(members=3)
    alone = []
    for member in range(3):
        one = make_regulation(members=1)
        for name, parameter in layer.named_parameters():
            one.get_parameter(name).copy_(parameter[[member]])
        one.unit.copy_(layer.unit)
        one.centre.copy_(layer.centre)
        alone.append(networks(one, cells))
    for found, *each in zip(networks(layer, cells), *alone, strict=True):
        weights = torch.stack([torch.from_numpy(network.weight) for network in each])
        np.testing.assert_allclose(found.weight, weights.mean(0), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(found.confidence, members_agreement(weights), rtol=1e-4, atol=1e-5)
        assert 0 < np.ptp(found.confidence) <= 1


def test_members_that_are_copies_agree_and_opposites_do_not(make_regulation, cells):
    layer = make_regulation(members=2)
    for parameter in layer.parameters():
        parameter[1] = parameter[0]
    off = np.ones((12, 3), bool)
    off[REGULATORS, [0, 1, 2]] = False
    for found in networks(layer, cells):
        np.testing.assert_allclose(found.confidence[off], 1, rtol=1e-5)
    layer.key[1].neg_()
    for found in networks(layer, cells):
        np.testing.assert_allclose(found.confidence[off], 0, atol=1e-6)
        np.testing.assert_allclose(found.weight, 0, atol=1e-6)


def test_balanced_rows_have_the_root_of_their_norm_and_keep_their_signs():
    weight = np.random.default_rng(0).normal(size=(6, 4)) * np.array([[1e-3], [1], [50], [2], [0], [9]])
    found = balanced(weight)
    norm = np.linalg.norm(weight, axis=1)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), norm**0.5, rtol=1e-6)
    np.testing.assert_array_equal(np.sign(found), np.sign(weight))
    assert (found[4] == 0).all() and found.dtype == np.float32
