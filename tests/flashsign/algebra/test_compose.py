"""Monoids made of others: a free unit, and softmax as one fold and as the quotient of two."""

import pytest
import torch
from monoid_cases import ROWS, exponents, keys, normal

from flashsign import (
    LOG_SUM_EXP,
    MAX,
    SAFE_EXPONENTIAL_SUM,
    SOFTMAX,
    SUM,
    WEIGHTED_MEAN,
    Fold,
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
    """The mean of products, (a, b) -> a b, of positive numbers with how many they are: it has no unit among them."""

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


@pytest.mark.parametrize("n", [3, 7])
def test_a_semigroup_with_a_unit_is_a_monoid(n):
    x = normal(generator(), n, 2)
    monoid = with_unit(geometric())
    check_monoid(monoid, (x,))
    torch.testing.assert_close(monoid_reduce(monoid, (), (x,), b_chunk=2), x.mean(0).exp())
    torch.testing.assert_close(monoid_reduce(monoid, (), (x[:0],)), torch.zeros(2, dtype=torch.float64))


@pytest.mark.parametrize("depth", [1, 2])
def test_padding_a_semigroup_with_its_unit_changes_neither_output_nor_gradient(depth):
    x = normal(generator(), 7, 2).requires_grad_()
    keep = torch.tensor([True, False, True, True, False, False, True])
    outputs = monoid_reduce(with_unit(geometric()), (), (x,), where=keep, b_chunk=2, depth=depth), x[keep].mean(0).exp()
    torch.testing.assert_close(*outputs)
    torch.testing.assert_close(*(torch.autograd.grad(output.sum(), x)[0] for output in outputs))


def test_a_monoid_has_its_unit_and_the_free_one():
    items, shared = ROWS["softmax"].items(0, 6)
    check_monoid(with_unit(SOFTMAX), items, shared)
    torch.testing.assert_close(
        monoid_reduce(with_unit(SOFTMAX), shared, items, a_chunk=2, b_chunk=2), monoid_reduce(SOFTMAX, shared, items)
    )


def test_the_value_of_nothing_can_be_chosen():
    least = with_unit(
        Monoid("least", None, lambda x, _: x, lambda a, b: (torch.minimum(a[0], b[0]),), lambda total, _: total[0]),
        -1.0,
    )
    assert Fold(least).add((torch.ones(0, 2),)).result().tolist() == [-1, -1]
    assert Fold(least).add((torch.tensor([[4, 2], [3, 9]]),)).result().tolist() == [3, 2]


def ones(items, shared):
    return torch.ones_like(items[0][:, :1]), items[1]


def quotient(total, shared):
    v, _, weight = total
    return v / torch.where(weight == 0, 1.0, weight)


ONE_WEIGHT = product(
    SAFE_EXPONENTIAL_SUM, SAFE_EXPONENTIAL_SUM.after(ones), quotient, of_a=2, shared_weight=(1, 1), name="softmax"
)


def test_softmax_is_the_quotient_of_two_folds_and_one_fold():
    (v, x), _ = exponents(generator(), 9)
    v.requires_grad_()
    x.requires_grad_()
    numerator, denominator = SAFE_EXPONENTIAL_SUM, SAFE_EXPONENTIAL_SUM.after(ones)
    above, below = fold(numerator, (v, x), chunk=2), fold(denominator, (v, x), chunk=2)
    two_folds = numerator.finish(above, ()) / denominator.finish(below, ())
    one_fold = ONE_WEIGHT.finish(fold(ONE_WEIGHT, (v, x), chunk=2), ())
    expected = torch.softmax(x, 0) @ v
    slopes = [torch.autograd.grad(output.sin().sum(), (v, x)) for output in (two_folds, one_fold, expected)]
    for output, slope in zip((two_folds, one_fold), slopes[:2], strict=True):
        torch.testing.assert_close(output, expected)
        torch.testing.assert_close(slope, slopes[2])


def test_the_pullback_keeps_its_weight_once_and_is_a_monoid():
    items, _ = exponents(generator(), 9)
    check_monoid(ONE_WEIGHT, items)
    assert [x.shape for x in fold(ONE_WEIGHT, items)] == [(2,), (), (1,)]
    apart = product(SAFE_EXPONENTIAL_SUM, SAFE_EXPONENTIAL_SUM.after(ones), lambda t, _: t[0] / (1 + t[2]), of_a=2)
    check_monoid(apart, items)
    assert len(fold(apart, items)) == 4


def test_the_quotient_over_queries_and_keys_is_softmax_attention():
    items, shared = keys(generator(), 9)

    def scored(items, shared):
        (k, v, m), (q,) = items, shared
        scores = k @ q.mT + torch.where(m == 0, 1.0, m).log()[:, None]
        return v[:, None].expand(*scores.shape, -1), torch.where((m == 0)[:, None], -torch.inf, scores)

    attention = product(
        SAFE_EXPONENTIAL_SUM, SAFE_EXPONENTIAL_SUM.after(lambda i, _: (torch.ones_like(i[0][..., :1]), i[1])),
        quotient, of_a=2, shared_weight=(1, 1),
    ).after(scored)  # fmt: skip
    torch.testing.assert_close(
        monoid_reduce(attention, shared, items, a_chunk=2, b_chunk=2), monoid_reduce(SOFTMAX, shared, items)
    )


def test_other_products_share_nothing():
    x, w = normal(generator(), 8, 2), normal(generator(1), 8).exp()
    spread = product(WEIGHTED_MEAN, MAX.after(lambda items, _: items[:1]), lambda t, _: t[2] - t[0], of_a=2)
    check_monoid(product(SUM, LOG_SUM_EXP, lambda t, _: t[0] * t[1].exp(), of_a=1), (x,))
    found = fold(spread, (x, w), chunk=3)
    torch.testing.assert_close(spread.finish(found, ()), x.amax(0) - (w[:, None] * x).sum(0) / w.sum())


def test_what_has_no_lift_cannot_be_prepared():
    whole = Monoid("sums", None, None, SUM.combine, SUM.finish, proj_fold=lambda a, b: b, proj_fold_bwd=max)
    with pytest.raises(ValueError, match="sums has no lift, so no other one can come before it"):
        whole.after(lambda items, shared: items)
