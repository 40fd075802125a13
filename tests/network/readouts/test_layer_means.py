"""The read-outs of the regulation layer: means over cells, cell types and ensemble members."""

import numpy as np
import pytest
import torch

from grn.network.readouts import layer_means
from grn.network.weights import members_agreement

REGULATORS = np.array([0, 3, 5])
LABELS = torch.tensor([1, 0, 1, -1, 1, 0, 1])


@pytest.mark.parametrize("scores", [2 * 2 * 7, 5 * 2 * 2 * 7, 1])
def test_the_number_of_targets_at_a_time_does_not_matter(make_regulation, cells, monkeypatch, scores, networks):
    layer = make_regulation()
    whole = networks(layer, cells)
    monkeypatch.setattr(layer_means, "SCORES", scores)
    for found, expected in zip(networks(layer, cells), whole, strict=True):
        np.testing.assert_allclose(found.weight, expected.weight, rtol=1e-5, atol=1e-8)
        np.testing.assert_allclose(found.confidence, expected.confidence, rtol=1e-5)
        assert sorted(found.by_type) == [0, 1], "cells without a label are no type"
        for label, weight in expected.by_type.items():
            np.testing.assert_allclose(found.by_type[label], weight, rtol=1e-5, atol=1e-8)


def per_unit(found, cells, labels):
    """For effect and attention: the networks of each type, and that of all cells; effects per unit, not per sd."""
    effect, attention = found
    values = cells[0].numpy()
    types = [int(label) for label in labels.unique()]
    effects = [effect.by_type[label] / values[labels == label].std(0) for label in types]
    return (
        (effects, effect.weight / values.std(0)),
        ([attention.by_type[label] for label in types], attention.weight),
    )


def test_the_network_of_all_cells_is_the_mean_of_the_types_by_their_sizes(make_regulation, cells, unbalanced, networks):
    labels = torch.tensor([1, 0, 1, 0, 1, 0, 1])
    for (first, second), whole in per_unit(networks(make_regulation(), cells, labels), cells, labels):
        np.testing.assert_allclose(whole, (3 * first + 4 * second) / 7, rtol=1e-4, atol=1e-6)
        assert np.abs(first - second).max() > 1e-3


def test_cells_without_a_type_count_in_the_network_of_all_cells(make_regulation, cells, unbalanced, networks):
    layer, labels = make_regulation(), torch.tensor([1, 0, 1, -1, -1, 0, 1])
    renamed = torch.where(labels < 0, 2, labels)
    for found, expected in zip(networks(layer, cells, labels), networks(layer, cells, renamed), strict=True):
        np.testing.assert_allclose(found.weight, expected.weight, rtol=1e-5, atol=1e-7)
        assert sorted(found.by_type) == [0, 1]


@pytest.mark.parametrize("seed", range(5))
def test_the_network_of_a_type_is_the_network_of_its_cells(make_regulation, cells, seed, networks):
    layer = make_regulation(seed=seed)
    own = tuple(each[LABELS == 1] for each in cells)
    for found, expected in zip(networks(layer, cells), networks(layer, own, torch.ones(4)), strict=True):
        np.testing.assert_allclose(found.by_type[1], expected.weight, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("seed", range(5))
def test_effect_and_attention_have_the_sign_of_the_score(make_regulation, cells, seed, networks):
    """Everywhere with one head and member; several are weighted differently, and agree where all of them do."""
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


def test_self_pairs_are_no_edges(make_regulation, cells, networks):
    for found in networks(make_regulation(), cells):
        for weight in (found.weight, *found.by_type.values()):
            assert (weight[REGULATORS, [0, 1, 2]] == 0).all()
            assert (weight == 0).sum() == 3


def test_confidence_is_the_agreement_of_the_members_over_all_cells(make_regulation, cells, unbalanced, networks):
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


def test_members_that_are_copies_agree_and_opposites_do_not(make_regulation, cells, networks):
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
