import torch

from flashsign import edge_weights, spherical_attention
from flashsign.reference import reference_softmax_attention


def test_edge_weights_times_values_are_the_attention(bag, method):
    weights = edge_weights(bag.q, bag.k, bag.m)
    output = spherical_attention(*bag.leaves, method=method)
    torch.testing.assert_close(weights @ bag.v.repeat_interleave(2, 1), output)


def test_a_row_of_edge_weights_has_norm_one_but_for_eps(bag):
    norms = edge_weights(bag.q, bag.k, bag.m, eps=1e-12).norm(dim=-1)
    torch.testing.assert_close(norms, torch.ones_like(norms))
    assert (edge_weights(bag.q, bag.k, bag.m, eps=0.5).norm(dim=-1) < 0.95).all()


def test_edge_weights_of_absent_keys_are_zero_even_where_keys_are_nan(bag):
    m, k = bag.m.detach().clone(), bag.k.detach().clone()
    m[:, 3], k[:, :, 3] = 0, torch.nan
    weights = edge_weights(bag.q, k, m)
    assert weights.isfinite().all()
    assert not weights[..., 3].any()
    assert weights[..., :3].abs().min() > 0


def test_softmax_of_a_bag_without_keys_is_zero(bag):
    m = bag.m.detach().clone()
    m[0] = 0
    output = reference_softmax_attention(bag.q, bag.k, bag.v, m)
    assert torch.equal(output[0], torch.zeros_like(output[0]))
    assert output[1].isfinite().all()
