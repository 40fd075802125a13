"""The blocks' attention: normalised weights, layer by layer."""

import numpy as np
import pytest
import torch

from flashsign.reference import edge_weights
from grn.bags import Bags
from grn.network import attention
from grn.network.attention import attention_layers

REGULATORS = np.array([0, 3, 5])


def parts(bags: Bags, *sizes: int) -> list[Bags]:
    """The same cells in batches."""
    pieces = zip(bags.multiplicity.split(sizes), bags.basal.split(sizes), strict=True)
    return [Bags(bags.genes, multiplicity, basal=basal) for multiplicity, basal in pieces]


def test_weights_are_the_means_of_the_model_s_own(make_model, make_bags):
    """Of each cell and head, in regulator columns; no gene reads itself in a network."""
    model, bags = make_model(members=1), make_bags()
    seen = []

    def observe(layer, q, k, m):
        seen.append(edge_weights(q, k, m, model.config.eps)[..., :12, :3].mean((0, 1)).numpy())

    with torch.no_grad():
        model(bags, observe=observe)
    found = attention_layers(model, [bags], REGULATORS)
    assert len(found) == len(seen) == 2
    for weights, expected in zip(found, seen, strict=True):
        expected[REGULATORS, np.arange(3)] = 0
        np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-7)
        assert 0.01 < np.abs(weights).max() <= 1


@pytest.mark.parametrize("weights", [2**27, 4 * 4 * 5, 1])
def test_batches_and_tiles_of_targets_do_not_matter(make_model, make_bags, monkeypatch, weights):
    """Uneven batches: a mean over batches would not be the mean over cells."""
    model, bags = make_model(), make_bags()
    whole = attention_layers(model, [bags], REGULATORS)
    monkeypatch.setattr(attention, "WEIGHTS", weights)
    for found, expected in zip(attention_layers(model, parts(bags, 4, 1), REGULATORS), whole, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
