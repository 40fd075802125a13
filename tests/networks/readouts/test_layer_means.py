"""The read-outs of the regulation layers: means over cells, states and ensemble members."""

import numpy as np
import pytest
import torch

from grn.networks.readouts import layer_means
from grn.networks.readouts.effect import presence
from grn.networks.readouts.layer_means import state_sds

REGULATORS = np.array([0, 3, 5])
STATES = torch.tensor([[0, 1], [1, 0], [0, 1], [1, 0], [0, 1], [0.25, 0.75], [0.5, 0.5]], dtype=torch.float64)
OFF = np.ones((12, 3), bool)
OFF[REGULATORS, [0, 1, 2]] = False


def of_state(layer, state, make):
    """A layer with one state, whose scores are those of a state of `layer`."""
    one = make(members=layer.members, heads=layer.heads)
    for name, parameter in one.named_parameters():
        if name not in ("deviation", "bias"):
            parameter.copy_(layer.get_parameter(name))
    one.query.add_(layer.deviation[:, :, state])
    one.unit.copy_(layer.unit)
    return one


@pytest.mark.parametrize("scores", [2 * 2 * 7, 5 * 2 * 2 * 7, 1])
def test_the_number_of_targets_at_a_time_does_not_matter(make_regulation, cells, monkeypatch, scores, networks):
    layer = make_regulation(states=2)
    whole = networks(layer, cells)
    monkeypatch.setattr(layer_means, "SCORES", scores)
    for found, expected in zip(networks(layer, cells), whole, strict=True):
        np.testing.assert_allclose(found.weight, expected.weight, rtol=1e-5, atol=1e-8)
        assert list(found.by_type) == ["0", "1"]
        for state, weight in expected.by_type.items():
            np.testing.assert_allclose(found.by_type[state], weight, rtol=1e-5, atol=1e-8)


def test_the_network_of_all_cells_is_the_mean_of_the_states_by_their_cells(
    make_regulation, cells, unbalanced, networks
):
    """Of the effects, per unit: each state has a unit of its own."""
    layer = make_regulation(states=2)
    effect, attention = networks(layer, cells)
    share = STATES.mean(0).numpy()
    sds = state_sds(layer.inputs(*cells), STATES)
    usual = (STATES.mean(0) @ sds.square()).sqrt()
    first, second = (effect.by_type[str(k)] / (presence(sds, usual) * usual)[k].numpy() for k in (0, 1))
    np.testing.assert_allclose(effect.weight / usual.numpy(), share[0] * first + share[1] * second, rtol=1e-4)
    assert np.abs(first - second).max() > 1e-3
    mean = share[0] * attention.by_type["0"] + share[1] * attention.by_type["1"]
    np.testing.assert_allclose(attention.weight, mean, rtol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_the_network_of_a_state_is_that_of_its_cells_and_scores(make_regulation, cells, seed, networks, unbalanced):
    """A cell that belongs to it in part counts in part: here twice in four copies of the cells."""
    layer = make_regulation(states=2, seed=seed)
    states = torch.tensor([[0, 1], [1, 0], [0, 1], [1, 0], [0, 1], [1, 0], [0.5, 0.5]], dtype=torch.float64)
    effect, attention = networks(layer, cells, states)
    sds = state_sds(layer.inputs(*cells), states)
    usual = (states.mean(0) @ sds.square()).sqrt()
    for k in (0, 1):
        copies = torch.arange(7).repeat_interleave((2 * states[:, k]).long())
        own = networks(of_state(layer, k, make_regulation), tuple(each[copies] for each in cells))
        np.testing.assert_allclose(attention.by_type[str(k)], own[1].weight, rtol=1e-5, atol=1e-8)
        slopes = own[0].weight / sds[k].numpy()
        unit = (presence(sds, usual) * usual)[k].numpy()
        np.testing.assert_allclose(effect.by_type[str(k)], slopes * unit, rtol=1e-5, atol=1e-8)


def test_a_state_without_cells_has_an_empty_network(make_regulation, cells, networks):
    states = torch.eye(2, dtype=torch.float64)[[1] * 7]
    for found in networks(make_regulation(states=2), cells, states):
        assert (found.by_type["0"] == 0).all() and (found.by_type["1"][OFF] != 0).all()
        assert np.isfinite(found.weight).all() and (found.weight[OFF] != 0).all()


@pytest.mark.parametrize("seed", range(5))
def test_effect_and_attention_have_the_sign_of_the_score(make_regulation, cells, seed, networks):
    """Everywhere with one head and member; several are weighted differently, and agree where all of them do."""
    layer = make_regulation(members=1, heads=1, states=2, seed=seed)
    for found in networks(layer, cells):
        for state, weight in found.by_type.items():
            query = layer.query + layer.deviation[:, :, int(state)]
            sign = (query @ layer.key.mT)[0, 0, :, :3].sign().numpy()
            np.testing.assert_array_equal(np.sign(weight), np.where(OFF, sign, 0))
    layer = make_regulation(members=2, heads=2, seed=seed)
    signs = (layer.query @ layer.key.mT)[..., :3].sign().flatten(0, 1)
    agreed = (signs == signs[0]).all(0).numpy() & OFF
    assert agreed.any()
    for found in networks(layer, cells):
        np.testing.assert_array_equal(np.sign(found.weight)[agreed], signs[0].numpy()[agreed])


def test_the_network_is_the_mean_of_the_members_and_its_confidence_is_unknown(
    make_regulation, cells, unbalanced, networks
):
    layer = make_regulation(members=3)
    alone = []
    for member in range(3):
        one = make_regulation(members=1)
        for name, parameter in layer.named_parameters():
            one.get_parameter(name).copy_(parameter[[member]])
        one.unit.copy_(layer.unit)
        alone.append(networks(one, cells))
    for found, *each in zip(networks(layer, cells), *alone, strict=True):
        weights = np.stack([network.weight for network in each])
        np.testing.assert_allclose(found.weight, weights.mean(0), rtol=1e-4, atol=1e-6)
        assert (found.confidence == 0.5).all()
        assert np.ptp(weights, axis=0).max() > 0.01


def test_a_regulator_that_hardly_varies_has_an_sd_of_zero():
    """Seven numbers that are all 0.7 have a mean that differs from it by rounding, in single precision above all."""
    values = torch.tensor([[0.7, 1.0, 300.1, 0.0]] * 50)
    values[0, 1] += 0.01
    states = torch.rand(50, 3, generator=torch.Generator().manual_seed(0))
    states = states / states.sum(1, keepdim=True)
    found = state_sds(values, states)
    assert (found[:, 0] == 0).all() and (found[:, 1] > 1e-4).all()
    weight = states[:, 1].numpy()
    mean = np.average(values[:, 1].numpy(), weights=weight)
    expected = np.sqrt(np.average((values[:, 1].numpy() - mean) ** 2, weights=weight))
    assert float(found[1, 1]) == pytest.approx(expected, rel=1e-3)
