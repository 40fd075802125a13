"""The attention of the regulation layer against its weights, cell by cell."""

import numpy as np
import pytest
import torch

from grn.network.readouts.regulation_attention import attention_network

LABELS = torch.tensor([1, 0, 1, -1, 1, 0, 1])


def test_attention_is_the_mean_weight_with_heads_weighted_by_gain_and_amount(make_regulation, cells):
    """Cell by cell, head by head, member by member."""
    layer = make_regulation(members=2, heads=2)
    scores, m = layer.scores(), layer.inputs(*cells)
    expected = torch.zeros(12, 3, dtype=torch.float64)
    for cell in m:
        for member in range(2):
            importance = (scores.gain * scores.amount)[member]
            score = cell * scores.score[member]
            weight = score / (score.square().sum(-1, keepdim=True) + scores.basal_score[member].square()).sqrt()
            expected += ((weight * importance).sum(0) / importance.sum(0))[:, :3] / (len(m) * 2)
    found = attention_network(layer, *cells, LABELS).weight
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("size", [0.01, 1, 100])
def test_attention_lies_between_minus_one_and_one(make_regulation, cells, size):
    layer = make_regulation()
    layer.query.mul_(size)
    found = attention_network(layer, *cells, LABELS)
    for weight in (found.weight, *found.by_type.values()):
        assert 0 < np.abs(weight).max() <= 1
