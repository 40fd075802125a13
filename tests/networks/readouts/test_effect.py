"""The effect read-out against the predictions of the regulation layers."""

import numpy as np
import torch

from grn.model.signed.regulation import Regulation
from grn.model.signed.regulation_layer import RegulationLayer
from grn.networks.readouts.effect import OF_LEVELS, effect_network, level_correlation
from grn.networks.weights import balanced

REGULATORS = np.array([0, 3, 5])
STATES = torch.tensor([[0, 1], [1, 0], [0, 1], [1, 0], [0, 1], [0.25, 0.75], [0.5, 0.5]], dtype=torch.float64)
LEVELS = np.random.default_rng(6).random((2, 12))  # of every gene in each state; the read-out takes them as they are
ONE = torch.ones(7, 1, dtype=torch.float64)


def with_small_scores(layer: RegulationLayer, size: float) -> RegulationLayer:
    """Small scores, so that the basal gene dominates every norm."""
    layer.query.mul_(size)
    layer.deviation.mul_(size)
    layer.log_basal.abs_()
    return layer


def slopes(layer: RegulationLayer, cells, state: int = 0) -> np.ndarray:
    """[12, 3]: what one unit of a regulator adds to the prediction of every gene in cells of a state."""
    values, basal = cells
    states = torch.eye(layer.states, dtype=torch.float64)[[state] * len(values)]
    found = np.zeros((12, 3))
    for column in range(3):
        up, down = values.clone(), values.clone()
        up[:, column] += 0.01
        down[:, column] -= 0.01
        change = layer(up, basal, states) - layer(down, basal, states)
        found[:, column] = (change / 0.02).mean(0) * layer.unit[column]
    return found


def sds_in(layer: RegulationLayer, cells, share) -> np.ndarray:
    """[3]: of the regulators, in units, among cells with shares [7]."""
    values = (cells[0] / layer.unit[:-1]).numpy()
    return np.sqrt(np.diag(np.cov(values, rowvar=False, ddof=0, aweights=share.numpy())))


def test_effect_is_the_slope_of_the_prediction_where_the_basal_gene_dominates(make_regulation, cells):
    """sds of the target for one sd of the regulator. With scores of a thousandth of the basal gene's the norm's own
    change is of the order of a millionth: equal to 1e-4, with the depth."""
    layer = with_small_scores(make_regulation(), 1e-3)
    found = effect_network(Regulation(layer), *cells, ONE, LEVELS[:1])
    expected = balanced(torch.as_tensor(slopes(layer, cells) * sds_in(layer, cells, ONE[:, 0])))
    np.testing.assert_allclose(found.weight, expected, rtol=1e-4, atol=1e-7)
    assert np.abs(found.weight).max() > 1e-3
    assert found.within is found.weight and not found.by_type and (found.between == 0).all()
    assert (found.confidence == 0.5).all()


def test_a_state_has_the_slopes_of_its_own_predictions(make_regulation, cells):
    """In its usual sd for a regulator that varies there at least half as much; within is the mean of all states."""
    layer = with_small_scores(make_regulation(states=2), 1e-3)
    found = effect_network(Regulation(layer, layer), *cells, STATES, LEVELS)
    share = STATES.mean(0).numpy()
    sds = np.stack([sds_in(layer, cells, STATES[:, k]) for k in (0, 1)])
    usual = np.sqrt(share @ sds**2)
    of_states = [slopes(layer, cells, k) for k in (0, 1)]
    for k in (0, 1):
        unit = np.minimum(2 * sds[k], usual)
        np.testing.assert_allclose(
            found.by_type[str(k)], balanced(torch.as_tensor(of_states[k] * unit)), rtol=1e-4, atol=1e-7
        )
    within = balanced(torch.as_tensor((share[0] * of_states[0] + share[1] * of_states[1]) * usual))
    np.testing.assert_allclose(found.within, within, rtol=1e-4, atol=1e-7)
    assert np.abs(found.by_type["0"] - found.by_type["1"]).max() > 1e-3


def test_the_weight_is_that_within_unless_levels_follow(make_regulation, cells):
    """Then it is the effect of the pooled layer, with a part of the correlation of levels at the same scale."""
    pooled, by_state = make_regulation(), make_regulation(states=2, seed=10)
    composed = effect_network(Regulation(pooled, by_state, 1.2), *cells, STATES, LEVELS)
    assert composed.weight is composed.within
    follow = effect_network(Regulation(pooled, by_state, 0.8), *cells, STATES, LEVELS)
    np.testing.assert_array_equal(follow.within, composed.within)
    alone = effect_network(Regulation(pooled), *cells, ONE, LEVELS[:1]).weight
    scale = np.sqrt((alone**2).mean() / (follow.between**2).mean())
    np.testing.assert_allclose(follow.weight, alone + OF_LEVELS * scale * follow.between, rtol=1e-5, atol=1e-7)
    assert np.abs(follow.weight - alone).max() > 0.01


def test_between_is_the_correlation_of_levels_over_cells(make_regulation, cells):
    """Of what would be measured if every cell had the levels of its state."""
    levels = np.random.default_rng(0).random((3, 12))
    share = np.array([0.5, 0.2, 0.3])
    found = level_correlation(levels, REGULATORS, share)
    expected = np.corrcoef(np.repeat(levels, [5, 2, 3], axis=0), rowvar=False)[:, REGULATORS]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    levels[:, 3] = 2.0
    same = level_correlation(levels, REGULATORS, share)
    assert (same[:, 1] == 0).all() and (same[3] == 0).all(), "a gene with the same level everywhere tells nothing"
    network = effect_network(Regulation(*[make_regulation(states=2)] * 2), *cells, STATES, LEVELS)
    off = np.ones((12, 3), bool)
    off[REGULATORS, [0, 1, 2]] = False
    assert (network.between[~off] == 0).all() and (network.between[off] != 0).all()


def test_a_regulator_that_never_varies_has_no_effect(make_regulation, cells):
    """Absent everywhere or the same everywhere: its score is chance."""
    values, basal = cells
    values[:, 1] = 0
    values[:, 2] = 0.7
    layer = make_regulation(states=2)
    found = effect_network(Regulation(layer, layer), values, basal, STATES, LEVELS)
    for weight in (found.weight, *found.by_type.values()):
        assert (weight[:, 1:] == 0).all() and (np.delete(weight[:, 0], 0) != 0).all()
