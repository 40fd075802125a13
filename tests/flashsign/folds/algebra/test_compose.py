"""Monoids made of others: a free unit, and softmax as one fold and as the quotient of two."""

import torch
from monoid_cases import exponents, normal

from flashsign import (
    SAFE_EXPONENTIAL_SUM,
    Monoid,
    check_monoid,
    fold,
    monoid_reduce,
    product,
    with_unit,
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def geometric():
    """The mean of products, (a, b) -> a b, of positive numbers with how many they are: it has no
    unit among them.
    """

    def local(combined, item, grad):
        (c, c_n), (a, a_n), (g, g_n) = combined, item, grad
        share = a_n / c_n
        return g * share * c / a, g_n + g * c * (a.log() - c.log()) / c_n

    def combine(a, b):
        (x, n), (y, m) = a, b
        return ((x.log() * n + y.log() * m) / (n + m)).exp(), n + m

    def lift(items, shared):
        return items[0].exp(), torch.ones_like(items[0])

    return Monoid("geometric mean", None, lift, combine, lambda total, _: total[0], local)


def test_a_semigroup_with_a_unit_is_a_monoid():
    monoid, x = with_unit(geometric()), normal(generator(), 7, 2).requires_grad_()
    check_monoid(monoid, (x.detach(),))
    nothing = monoid_reduce(monoid, (), (x[:0],))
    torch.testing.assert_close(nothing, torch.zeros(2, dtype=torch.float64))
    found, expected = monoid_reduce(monoid, (), (x,), b_chunk=2), x.mean(0).exp()
    torch.testing.assert_close(found, expected)
    slopes = (torch.autograd.grad(each.sum(), x) for each in (found, expected))
    torch.testing.assert_close(*slopes)


def ones(items, shared):
    return torch.ones_like(items[0][:, :1]), items[1]


def quotient(total, shared):
    v, _, weight = total
    return v / torch.where(weight == 0, 1.0, weight)


ONE_WEIGHT = product(
    SAFE_EXPONENTIAL_SUM,
    SAFE_EXPONENTIAL_SUM.after(ones),
    quotient,
    of_a=2,
    shared_weight=(1, 1),
    name="softmax",
)


def test_softmax_is_the_quotient_of_two_folds_and_one_fold():
    (v, x), _ = exponents(generator(), 9)
    v.requires_grad_()
    x.requires_grad_()
    numerator, denominator = SAFE_EXPONENTIAL_SUM, SAFE_EXPONENTIAL_SUM.after(ones)
    above, below, both = (
        monoid.finish(fold(monoid, (v, x), chunk=2), ())
        for monoid in (numerator, denominator, ONE_WEIGHT)
    )
    expected = torch.softmax(x, 0) @ v
    slope = torch.autograd.grad(expected.sin().sum(), (v, x))
    for output in (above / below, both):
        torch.testing.assert_close(output, expected)
        torch.testing.assert_close(torch.autograd.grad(output.sin().sum(), (v, x)), slope)
