"""The n-ary form: slices of one's own, such as attention to a window of keys."""

import pytest
import torch

from flashsign import NAryFold, n_ary_reduce
from flashsign.algebra.rows.attention import SOFTMAX


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def windowed(block: int, reach: int) -> NAryFold:
    """Softmax attention in which the queries of a block see the keys of the blocks at most `reach` away."""

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


def test_only_the_tensors_that_want_a_gradient_get_one():
    q, k, v, m = normal(8, 3), normal(8, 3, seed=1).requires_grad_(), normal(8, 3, seed=2), torch.ones(8).double()
    _, output = n_ary_reduce(windowed(4, 9), q, k, v, m)
    (found,) = torch.autograd.grad(output.sum(), k)
    (expected,) = torch.autograd.grad((torch.softmax(q @ k.mT, -1) @ v).sum(), k)
    torch.testing.assert_close(found, expected)


def test_other_derivatives_are_refused_in_a_sentence():
    q, k, v = (normal(8, 3, seed=seed).requires_grad_() for seed in range(3))
    m = torch.ones(8).double()
    _, output = n_ary_reduce(windowed(4, 1), q, k, v, m)
    with pytest.raises(NotImplementedError, match="can be differentiated once, in reverse"):
        torch.autograd.grad(output.sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="can be differentiated once, in reverse"):
        torch.func.jvp(lambda q: n_ary_reduce(windowed(4, 1), q, k, v, m), (q,), (q,))
