"""The effect read-out against the predictions of the regulation layer."""

import numpy as np
import torch

from grn.model.regulation_layer import RegulationLayer
from grn.network.readouts.effect import effect_network
from grn.network.weights import balanced

LABELS = torch.tensor([1, 0, 1, -1, 1, 0, 1])


def with_small_scores(layer: RegulationLayer, size: float) -> RegulationLayer:
    """Small scores, so that the basal gene dominates every norm."""
    layer.query.mul_(size)
    layer.log_basal.abs_()
    return layer


def test_effect_is_the_slope_of_the_prediction_where_the_basal_gene_dominates(make_regulation, cells):
    """sds of the target for one sd of the regulator. With scores of a thousandth of the basal gene's the norm's own
    change is of the order of a millionth: equal to 1e-4, with the depth."""
    layer, (values, basal) = with_small_scores(make_regulation(), 1e-3), cells
    found = effect_network(layer, values, basal, LABELS).weight
    slopes = np.zeros((12, 3))
    for column in range(3):
        step = 0.01 * values[:, column].std(correction=0)
        up, down = values.clone(), values.clone()
        up[:, column] += step
        down[:, column] -= step
        slopes[:, column] = ((layer(up, basal) - layer(down, basal)) / 0.02).mean(0)
    np.testing.assert_allclose(found, balanced(slopes), rtol=1e-4, atol=1e-7)
    assert np.abs(found).max() > 1e-3


def test_a_regulator_that_a_type_never_has_does_nothing_there(make_regulation, cells):
    values, basal = cells
    labels = torch.tensor([1, 0, 1, 0, 1, 0, 1])
    values[labels == 0, 1] = 0
    found = effect_network(make_regulation(), values, basal, labels)
    assert (found.by_type[0][:, 1] == 0).all() and np.abs(found.by_type[1][:, 1]).max() > 0


def test_a_regulator_that_never_varies_has_no_effect(make_regulation, cells):
    """Absent everywhere or the same everywhere: its score is chance."""
    values, basal = cells
    values[:, 1] = 0
    values[:, 2] = 0.7
    found = effect_network(make_regulation(), values, basal, LABELS)
    for weight in (found.weight, *found.by_type.values()):
        assert (weight[:, 1:] == 0).all() and (np.delete(weight[:, 0], 0) != 0).all()
