"""The attention read-out: normalised weights, layer by layer."""

import numpy as np
import pytest
import torch

from flashsign.reference import edge_weights
from grn.bags import Bags
from grn.network.attention import attention_network
from grn.network.sampling import Sample

REGULATORS = np.array([0, 3, 5])


@pytest.mark.parametrize("basal", [None, np.linspace(0.5, 1.5, 30)])
def test_weights_are_the_means_of_the_model_s_own(make_model, csr_cells, basal):
    """One cell of one type, nothing masked: the weights of its bag, averaged over heads, in regulator columns."""
    model, (multiplicity, _) = make_model(), csr_cells
    seen = []

    def observe(layer, q, k, m):
        seen.append(edge_weights(q, k, m, model.config.eps)[0].mean(0)[:12, :3].numpy())

    with torch.no_grad():
        depth = None if basal is None else torch.from_numpy(basal[[4]])
        bag = Bags(torch.arange(12), torch.from_numpy(multiplicity[[4]].toarray()), basal=depth)
        model(bag, observe=observe)
    sample = Sample(0, np.array([4]), np.zeros((1, 3), bool))
    found = attention_network(model, multiplicity, [sample], {0: 1}, REGULATORS, basal)
    assert len(found.layers) == len(seen) == 2
    for layer, weights in zip(found.layers, seen, strict=True):
        weights[REGULATORS, np.arange(3)] = 0
        np.testing.assert_allclose(layer, weights, rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(found.weight, np.mean(found.layers, axis=0), rtol=1e-5, atol=1e-8)
    assert np.abs(found.weight).max() <= 1


def test_masked_regulators_have_no_weight_and_do_not_count(make_model, csr_cells):
    """Their weight is zero in that bag: a mean that counted it would be smaller."""
    model, (multiplicity, labels) = make_model(), csr_cells
    rows = np.flatnonzero((labels == 0) & (multiplicity[:, 3].toarray()[:, 0] > 0))[:2]
    masked = np.array([[False, True, False], [False, False, False]])
    both = attention_network(model, multiplicity, [Sample(0, rows, masked)], {0: 2}, REGULATORS)
    second = attention_network(model, multiplicity, [Sample(0, rows[1:], masked[1:])], {0: 2}, REGULATORS)
    np.testing.assert_allclose(both.weight[:, 1], second.weight[:, 1], rtol=1e-5, atol=1e-8)
    assert (np.delete(both.weight[:, 1], 3) != 0).all()
