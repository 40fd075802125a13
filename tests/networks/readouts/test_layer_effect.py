"""Effects of one layer: what they add up to, and that no flip of signs changes them."""

import numpy as np
import pytest
import torch

from grn.networks.readouts.layer_effect import _effects_of_cells, layer_effects

REGULATORS = np.array([0, 3, 5])


def read(model, make_bags, layer, head=None, packed=False):
    bags = [make_bags(cells=4), make_bags(cells=3, seed=8)]
    return layer_effects(model, [each.pack() if packed else each for each in bags], REGULATORS, layer, head)


def test_effects_change_under_no_flip(make_model, make_bags, flip):
    model = make_model()
    choices = [(layer, head) for layer in (0, 1) for head in (None, 0, 3)]
    before = [read(model, make_bags, *choice) for choice in choices]
    flip(model)
    for choice, effects in zip(choices, before, strict=True):
        np.testing.assert_allclose(read(model, make_bags, *choice), effects, atol=1e-6)
        assert (effects > 0.001).any() and (effects < -0.001).any()


def test_the_effect_of_a_layer_is_the_sum_of_its_heads(make_model, make_bags):
    model = make_model()
    heads = sum(read(model, make_bags, 1, head) for head in range(4))
    np.testing.assert_allclose(read(model, make_bags, 1), heads, atol=1e-6)
    np.testing.assert_allclose(read(model, make_bags, 1, packed=True), heads, atol=1e-6)


@pytest.mark.parametrize("attention", ["spherical", "softmax", "l1"])
def test_effects_of_all_keys_are_the_message_in_the_prediction(make_model, make_bags, attention):
    """Without what the last layer's feed-forward map adds, dropping its messages changes the vector before the norm by
    exactly these; their part in the prediction is the sum of the effects, at the norm that the vector has."""
    model, bags = make_model(attention=attention), make_bags(cells=3)
    seen = {}
    output = model.blocks[1].attention.output
    output.register_forward_hook(lambda _, inputs, found: seen.update({found.shape[1]: found}))
    model.norm.register_forward_pre_hook(lambda _, inputs: seen.update({-inputs[0].ndim: inputs[0]}))
    with torch.no_grad():
        model(bags)
        sent, tokens = seen[13], seen[-3]
        scale = tokens.square().mean(-1, keepdim=True).rsqrt()
        part = (sent * scale * model.norm.weight)[:, :-1] @ model.multiplicity.T
        expected = part.diagonal(dim1=1, dim2=2)
        found = torch.stack([effect.sum(1)[:-1] for _, _, effect in _effects_of_cells(model, bags, 1, None)])
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)
