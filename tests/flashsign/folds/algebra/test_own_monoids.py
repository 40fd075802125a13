"""Monoids and n-ary folds that someone else wrote, from their tables alone: each folds like torch's
own.
"""

from dataclasses import replace

import pytest
import torch
from seeded import normal

from flashsign import (
    SOFTMAX,
    BrokenLaw,
    Monoid,
    NAryFold,
    check_monoid,
    monoid_reduce,
    n_ary_reduce,
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


@pytest.mark.parametrize("order", ["auto", "rows", "items", "tree"])
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("bags", [(), (2,)])
def test_a_combine_for_one_total_is_right_where_rows_equal_the_width(order, depth, bags):
    """Broadcast over a slice's axis in front, [:, None] would stand for another axis, of the same
    size.
    """
    q, k, v = (
        normal(*bags, n, 4, seed=seed).requires_grad_() for seed, n in enumerate((4, 40, 40))
    )
    options = {"order": order, "depth": depth, "b_chunk": 3, "a_chunk": 16, "batch_dims": len(bags)}
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


def windowed(block: int, reach: int) -> NAryFold:
    """Softmax attention in which the queries of a block see the keys of the blocks at most `reach`
    away.
    """

    def init(q, k, v, m):
        return q.new_full((len(q),), -torch.inf), torch.zeros_like(q[:, : v.shape[1]])

    def chunker(q, k, v, m):
        blocks = range(0, len(q), block)
        for i in blocks:
            for j in blocks:
                if abs(i - j) <= reach * block:
                    rows, keys = slice(i, i + block), slice(j, j + block)
                    yield (rows, rows), (rows, keys, keys, keys)

    return NAryFold(
        init,
        chunker,
        lambda x: SOFTMAX.proj_fold(x[:1], x[1:]),
        SOFTMAX.combine,
        lambda x, a, ga: tuple(g for of in SOFTMAX.proj_fold_bwd(x[:1], x[1:], a, ga) for g in of),
    )


def test_attention_to_a_window_has_the_output_and_gradients_of_a_mask():
    q, k, v = (normal(14, 3, seed=seed).requires_grad_() for seed in range(3))
    m = torch.ones(14, dtype=torch.float64)
    _, output = n_ary_reduce(windowed(4, 1), q, k, v, m)
    at = torch.arange(14) // 4
    near = (at[:, None] - at).abs() <= 1
    expected = (q @ k.mT).masked_fill(~near, -torch.inf).softmax(-1) @ v
    torch.testing.assert_close(output, expected)
    slopes = (torch.autograd.grad(x.sin().sum(), (q, k, v)) for x in (output, expected))
    torch.testing.assert_close(*slopes)
