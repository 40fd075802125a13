"""monoid_reduce: ties, causal positions, expanded bags, 16-bit inputs, second derivatives."""

import pytest
import torch
from monoid_cases import LAYERS, normal
from torch.nn.functional import scaled_dot_product_attention

from flashsign import (
    MAX,
    SOFTMAX,
    Monoid,
    fold,
    monoid_reduce,
)
from flashsign.folds.algebra.monoid import constants
from flashsign.folds.algebra.monoids.exponentials import combine_means, local_means


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_tied_largest_numbers_share_the_gradient():
    x = torch.tensor([2.0, 5.0, 5.0, 1.0, 5.0], requires_grad=True)
    for chunk in (1, 2, 5):
        (slope,) = torch.autograd.grad(fold(MAX, (x,), chunk=chunk)[0], x)
        torch.testing.assert_close(slope, torch.tensor([0, 1 / 3, 1 / 3, 0, 1 / 3]))


def test_positions_make_attention_causal():
    """A monoid that is numbered knows where its rows and items are: no mask in memory."""

    def lift(items, shared):
        (k, v, at), (q, row) = items, shared
        z = torch.where(at[:, None] > row, -torch.inf, k @ q.mT)
        return z, torch.where((at[:, None] > row)[..., None], 0.0, v[:, None])

    causal = Monoid(
        "causal",
        constants(-torch.inf, 0.0),
        lift,
        combine_means,
        lambda total, _: total[1],
        local_means,
        numbered=True,
    )
    random = generator()
    q, k, v = (normal(random, 2, 9, 3).requires_grad_() for _ in range(3))
    output = monoid_reduce(causal, (q,), (k, v), batch_dims=1, a_chunk=4, b_chunk=2)
    expected = scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
    torch.testing.assert_close(output, expected)
    slopes = (torch.autograd.grad(x.sin().sum(), (q, k, v)) for x in (output, expected))
    torch.testing.assert_close(*slopes)


def test_expanded_bags_have_the_gradient_of_what_they_share():
    random = generator()
    q = normal(random, 5, 4, 3).requires_grad_()
    k = normal(random, 1, 7, 3).requires_grad_()
    v = normal(random, 1, 7, 3)
    output = monoid_reduce(SOFTMAX, (q,), (k, v, torch.ones(1, 7)), batch_dims=1, b_chunk=3)
    expected = torch.softmax(q @ k.mT, -1) @ v
    slopes = (torch.autograd.grad(x.sin().sum(), (q, k)) for x in (output, expected))
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("name", LAYERS)
def test_second_derivatives_are_right_at_every_depth(name):
    row = LAYERS[name]
    items, shared = row.leaves(0, 5)
    leaves = [x for x in (*shared, *items) if x.requires_grad]

    def curvature(output):
        slopes = torch.autograd.grad(
            output.sin().sum(), leaves, create_graph=True, allow_unused=True
        )
        slopes = [x for x in slopes if x is not None and x.requires_grad]
        return torch.autograd.grad(sum(x.square().sum() for x in slopes), leaves, allow_unused=True)

    found = [
        curvature(monoid_reduce(row.monoid, shared, items, a_chunk=2, b_chunk=2, depth=depth))
        for depth in row.monoid.depths
    ]
    for other in found[1:]:
        for x, y in zip(found[0], other, strict=True):
            torch.testing.assert_close(x, y)
    assert any(x is not None and x.abs().max() > 1e-3 for x in found[0])
