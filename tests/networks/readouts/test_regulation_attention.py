"""The attention of the regulation layer against its weights, cell by cell."""

import numpy as np
import torch

from grn.model.signed.regulation import Regulation
from grn.networks.readouts.regulation_attention import attention_network

ONE = torch.ones(7, 1, dtype=torch.float64)
STATES = torch.eye(2, dtype=torch.float64)[[1, 0, 1, 0, 1, 0, 1]]


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
    found = attention_network(Regulation(layer), *cells, ONE).weight
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-8)


def test_a_regulator_that_does_not_vary_in_a_state_has_no_attention_there(make_regulation, cells):
    """No difference between cells says anything of its score."""
    values, basal = cells
    values[STATES[:, 0] > 0, 1] = 0.7
    layer = make_regulation(states=2)
    found = attention_network(Regulation(layer, layer), values, basal, STATES)
    assert (found.by_type["0"][:, 1] == 0).all() and (found.by_type["1"][:, 1] != 0).sum() == 11
    assert (found.by_type["0"][:, [0, 2]] != 0).sum() == 22
