"""Attention by any normaliser is the written-out one, with groups of heads and multiplicities, from
one call.
"""

import pytest
import torch
from seeded import leaf as normal
from seeded import written_out

from flashsign import normalised_attention, spherical_attention
from flashsign.attention.reference import normalised_weights
from flashsign.folds.layers import normalised_attention as module

NORMALISERS = ["spherical", "l1", "squared_relu", "softmax"]


def bag(per_head=False):
    q, k, v = normal(2, 4, 5, 3), normal(2, 2, 7, 3, seed=1), normal(2, 2, 7, 3, seed=2)
    m = normal(2, *(2,) * per_head, 7, seed=3).detach().abs().requires_grad_()
    return q, k, v, m


@pytest.mark.parametrize("normaliser", NORMALISERS)
@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("limit", [0, module.WEIGHTS])
def test_it_is_the_one_written_out(normaliser, per_head, limit, monkeypatch):
    """By the fold, and with all weights in memory."""
    monkeypatch.setattr(module, "WEIGHTS", limit)
    leaves = bag(per_head)
    found = normalised_attention(*leaves, normaliser=normaliser, eps=0.0)
    expected = written_out(normaliser, *leaves)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        *(torch.autograd.grad(output.sin().sum(), leaves) for output in (found, expected))
    )


def test_the_spherical_one_is_spherical_attention():
    leaves = bag()
    torch.testing.assert_close(
        normalised_attention(*leaves), spherical_attention(*leaves, method="stream")
    )


@pytest.mark.parametrize("normaliser", NORMALISERS)
@pytest.mark.parametrize("per_head", [False, True])
def test_packed_bags_are_dense_ones(normaliser, per_head):
    """Bags of 3, 0 and 4 keys with 2, 1 and 3 queries, each alone as a dense call; values and
    gradients.
    """
    q, k, v = normal(6, 4, 3), normal(7, 2, 3, seed=1), normal(7, 2, 3, seed=2)
    m = normal(7, *(2,) * per_head, seed=3).detach().abs()
    m[1] = 0
    m.requires_grad_()
    offsets, query_offsets = torch.tensor([0, 3, 3, 7]), torch.tensor([0, 2, 3, 6])
    packing = {"offsets": offsets, "query_offsets": query_offsets}
    found = normalised_attention(q, k, v, m, **packing, normaliser=normaliser, eps=0.0)
    expected = torch.zeros_like(q)
    for keys, queries in ((slice(0, 3), slice(0, 2)), (slice(3, 7), slice(3, 6))):
        bag = (x[part].transpose(0, 1)[None] for x, part in ((q, queries), (k, keys), (v, keys)))
        own = (m[keys].mT if per_head else m[keys])[None]
        kept = (own != 0).all(1)[0] if per_head else own[0] != 0
        one_q, one_k, one_v = bag
        alone = written_out(normaliser, one_q, one_k[:, :, kept], one_v[:, :, kept], own[..., kept])
        expected = expected.index_add(0, torch.arange(6)[queries], alone[0].transpose(0, 1))
    torch.testing.assert_close(found, expected)
    gradients = (
        torch.autograd.grad(x.sin().sum(), (q, k, v), retain_graph=True) for x in (found, expected)
    )
    torch.testing.assert_close(*gradients)
    (d_m,) = torch.autograd.grad(found.sin().sum(), m)
    assert d_m.isfinite().all()


@pytest.mark.parametrize("normaliser", NORMALISERS)
def test_weights_times_values_are_the_attention(normaliser):
    """Of absent keys that hold NaN, too."""
    q, k, v, m = (x.detach().clone() for x in bag(per_head=True))
    m[:, :, 4], k[:, :, 4], v[:, :, 4] = 0, torch.nan, torch.nan
    weights = normalised_weights(q, k, m, normaliser)
    assert (weights[..., 4] == 0).all() and (
        normaliser in ("spherical", "l1") or (weights >= 0).all()
    )
    expected = weights @ v.nan_to_num().repeat_interleave(2, 1)
    torch.testing.assert_close(normalised_attention(q, k, v, m, normaliser=normaliser), expected)


@pytest.mark.parametrize("normaliser", NORMALISERS)
def test_an_absent_key_and_no_multiplicity(normaliser):
    q, k, v, m = bag()
    without = m.detach().clone()
    without[:, 2] = 0
    kept = [0, 1, 3, 4, 5, 6]
    torch.testing.assert_close(
        normalised_attention(q, k, v, without, normaliser=normaliser),
        normalised_attention(q, k[:, :, kept], v[:, :, kept], m[:, kept], normaliser=normaliser),
    )
    ones = torch.ones_like(m)
    whole = [normalised_attention(q, k, v, *each, normaliser=normaliser) for each in ((), (ones,))]
    torch.testing.assert_close(*whole)


@pytest.mark.parametrize("normaliser", ["spherical", "squared_relu", "softmax"])
def test_second_derivatives_are_right(normaliser):
    call = lambda *tensors: normalised_attention(*tensors, normaliser=normaliser)  # noqa: E731
    assert torch.autograd.gradgradcheck(
        call, tuple(x[..., :2, :] if x.ndim == 4 else x[:, :2] for x in bag())
    )
