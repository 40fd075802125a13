"""Monoids that someone else wrote, from their tables alone: each passes check_monoid and folds like torch's own.

Nothing here but the table is theirs: no chunks, no memory, no gradient rule beyond D.
"""

import pytest
import torch

from flashsign import Monoid, check_monoid, fold, monoid_reduce


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# Mean and variance: Chan, Golub and LeVeque 1979. The total is (n, mean, sum of squared deviations).


def mean_and_variance():
    def identity(like):
        return tuple(torch.zeros_like(x) for x in like)

    def lift(items, shared):
        (x,) = items
        return torch.ones_like(x), x, torch.zeros_like(x)

    def combine(a, b):
        (n, mean, squares), (m, other, more) = a, b
        count = n + m
        safe = torch.where(count == 0, 1.0, count)
        return count, (n * mean + m * other) / safe, squares + more + (mean - other).square() * n * m / safe

    def finish(total, shared):
        n, mean, squares = total
        return torch.stack((mean, squares / torch.where(n == 0, 1.0, n)))

    def local_gradient(combined, item, grad):
        (n, mean, _), (m, own, _), (g_n, g_mean, g_squares) = combined, item, grad
        safe = torch.where(n == 0, 1.0, n)
        off = own - mean
        of_count = g_n + g_mean * off / safe + g_squares * off.square()
        return of_count, (g_mean / safe + 2 * g_squares * off) * m, g_squares

    return Monoid("mean and variance", identity, lift, combine, finish, local_gradient)


# The two largest numbers: totals (first, second).


def top_two():
    def identity(like):
        return tuple(torch.full_like(x, -torch.inf) for x in like)

    def lift(items, shared):
        (x,) = items
        return x, torch.full_like(x, -torch.inf)

    def combine(a, b):
        first = torch.maximum(a[0], b[0])
        return first, torch.maximum(torch.minimum(a[0], b[0]), torch.maximum(a[1], b[1]))

    return Monoid("top two", identity, lift, combine, lambda total, _: torch.stack(total), needs_items=True)


# Log-sum-exp of scores with a mask of pairs that is computed from groups of rows and items.


def masked_log_sum_exp():
    def identity(like):
        return (torch.full_like(like[0], -torch.inf),)

    def lift(items, shared):
        (k, group), (q, own) = items, shared
        return (torch.where(group[:, None] == own, k @ q.mT, -torch.inf),)

    def combine(a, b):
        return (torch.logaddexp(a[0], b[0]),)

    def local_gradient(combined, item, grad):
        return (torch.where(combined[0] == -torch.inf, 0.0, grad[0] * (item[0] - combined[0]).exp()),)

    return Monoid(
        "masked log-sum-exp", identity, lift, combine, lambda total, _: total[0], local_gradient, needs_items=True
    )


def test_mean_and_variance():
    monoid, x = mean_and_variance(), normal(11, 3).requires_grad_()
    check_monoid(monoid, (x.detach(),))
    expected = torch.stack((x.mean(0), x.var(0, correction=0)))
    slope = torch.autograd.grad(expected.sin().sum(), x)
    for chunk in (1, 4, 100):
        for depth in (1, 2):
            output = monoid_reduce(monoid, (), (x,), b_chunk=chunk, depth=depth)
            torch.testing.assert_close(output, expected)
            torch.testing.assert_close(torch.autograd.grad(output.sin().sum(), x), slope)


def test_top_two():
    monoid, x = top_two(), normal(11, 3).requires_grad_()
    check_monoid(monoid, (x.detach(),))
    expected = x.topk(2, dim=0).values
    output = monoid_reduce(monoid, (), (x,), b_chunk=3)
    torch.testing.assert_close(output, expected)
    slopes = (torch.autograd.grad(values.sin().sum(), x) for values in (output, expected))
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("depth", [1, 2])
def test_log_sum_exp_with_a_mask(depth):
    monoid = masked_log_sum_exp()
    k, q = normal(13, 4).requires_grad_(), normal(6, 4, seed=1).requires_grad_()
    group, own = torch.arange(13) % 3, torch.arange(6) % 3
    check_monoid(monoid, (k.detach(), group), (q.detach(), own))
    options = {"a_chunk": 4, "b_chunk": 3, "depth": depth}
    output = monoid_reduce(monoid, (q, own), (k, group), **options)
    expected = (q @ k.mT).masked_fill(own[:, None] != group, -torch.inf).logsumexp(-1)
    torch.testing.assert_close(output, expected)
    slopes = (torch.autograd.grad(values.sin().sum(), (q, k)) for values in (output, expected))
    torch.testing.assert_close(*slopes)
    torch.testing.assert_close(fold(monoid, (k, group), (q, own), chunk=2)[0], expected)
