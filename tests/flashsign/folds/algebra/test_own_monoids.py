"""A monoid that someone else wrote, from its table alone, folds like torch's own."""

from dataclasses import replace

import pytest
import torch
from seeded import normal

from flashsign import (
    SOFTMAX,
    BrokenLaw,
    Monoid,
    check_monoid,
    monoid_reduce,
)

# Softmax attention as the paper lists it: totals (z [N], v [N, E]), whose combine says [:, None].


def paper_attention():
    def combine(a, b):
        (a_z, a_v), (b_z, b_v) = a, b
        z = torch.logaddexp(a_z, b_z)
        return z, a_v * torch.exp(a_z - z)[:, None] + b_v * torch.exp(b_z - z)[:, None]

    def local_gradient(combined, item, grad):
        (z, v), (item_z, item_v), (g_z, g_v) = combined, item, grad
        weight = torch.exp(item_z - z)
        return (g_z + (g_v * (item_v - v)).sum(1)) * weight, g_v * weight[:, None]

    def lift(items, shared):
        (k, v), (q,) = items, shared
        z = k @ q.mT
        return z, v[:, None].expand(*z.shape, v.shape[1])

    def proj_fold(shared, items):
        (q,), (k, v) = shared, items
        scores = q @ k.mT
        z = torch.logsumexp(scores, 1)
        return z, (scores - z[:, None]).exp() @ v

    def identity(like):
        return torch.full_like(like[0], -1e30), torch.zeros_like(like[1])

    return Monoid(
        "attention of the paper",
        identity,
        lift,
        combine,
        lambda total, _: total[1],
        local_gradient,
        proj_fold=proj_fold,
    )


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("bags", [(), (2,)])
@pytest.mark.parametrize("a_chunk", [2, 16])
def test_a_combine_for_one_total_is_right_where_rows_equal_the_width(depth, bags, a_chunk):
    """Broadcast over a slice's axis in front, [:, None] would stand for another axis, of the same
    size.
    """
    q, k, v = (
        normal(*bags, n, 4, seed=seed).requires_grad_() for seed, n in enumerate((4, 40, 40))
    )
    options = {"depth": depth, "b_chunk": 3, "a_chunk": a_chunk, "batch_dims": len(bags)}
    output = monoid_reduce(paper_attention(), (q,), (k, v), **options)
    expected = torch.softmax(q @ k.mT, -1) @ v
    torch.testing.assert_close(output, expected)
    slopes = (torch.autograd.grad(x.sin().sum(), (q, k, v)) for x in (output, expected))
    torch.testing.assert_close(*slopes)


def test_the_laws_hold_for_it_and_find_that_it_does_not_broadcast():
    q, k, v = normal(4, 4), normal(7, 4, seed=1), normal(7, 4, seed=2)
    check_monoid(paper_attention(), (k, v), (q,))
    with pytest.raises(BrokenLaw, match="combine takes axes in front"):
        check_monoid(replace(paper_attention(), broadcasts=True), (k, v), (q,))
    check_monoid(SOFTMAX, (k, v, torch.ones(7).double()), (q,))
