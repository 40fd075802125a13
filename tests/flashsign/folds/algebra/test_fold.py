import pytest
import torch
from seeded import normal

from flashsign import (
    LOG_SUM_EXP,
    SOFTMAX,
    SUM,
    WEIGHTED_MEAN,
    BrokenLaw,
    Fold,
    Monoid,
    check_monoid,
)
from flashsign.folds.algebra.fold import fold, fold_literal
from flashsign.folds.algebra.monoids.contractions import spherical_monoid
from flashsign.folds.algebra.monoids.cross_entropies import class_cross_entropy

ATTENTION = pytest.mark.parametrize(
    "monoid", [SOFTMAX, spherical_monoid()], ids=["softmax", "spherical"]
)


def matrix_product(local_gradient=None):
    def identity(like):
        return (torch.eye(like[0].shape[-1], dtype=like[0].dtype).expand_as(like[0]).contiguous(),)

    return Monoid(
        "matrix product",
        identity,
        lambda items, shared: items,
        lambda a, b: (a[0] @ b[0],),
        lambda total, shared: total[0],
        local_gradient,
        commutative=False,
    )


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 8])
def test_a_product_of_matrices_keeps_its_order_and_has_its_gradient(chunk):
    items = (normal(5, 3, 3).requires_grad_(),)
    grad = normal(3, 3, seed=1)
    (found,) = fold(matrix_product(), items, chunk=chunk)
    (expected,) = fold_literal(matrix_product(), items)
    torch.testing.assert_close(found, torch.linalg.multi_dot(list(items[0])))
    torch.testing.assert_close(
        torch.autograd.grad(found, items, grad), torch.autograd.grad(expected, items, grad)
    )


def test_a_product_of_matrices_is_a_monoid_that_does_not_commute():
    check_monoid(matrix_product(), (normal(5, 3, 3),))
    commuting = Monoid(**{**vars(matrix_product()), "commutative": True})
    with pytest.raises(BrokenLaw, match="matrix product breaks a law, commutativity"):
        check_monoid(commuting, (normal(5, 3, 3),))


@ATTENTION
def test_an_item_that_is_shared_as_well_has_each_derivative_once(monoid):
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    m = torch.ones(6, dtype=torch.float64)

    def gradient(create_graph):
        output = monoid.finish(fold(monoid, (x, x, m), (x,)), (x,))
        return torch.autograd.grad(output.sin().sum(), x, create_graph=create_graph)[0]

    torch.testing.assert_close(gradient(True), gradient(False))


@ATTENTION
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_forward_mode_is_not_silently_zero(monoid, depth):
    k = normal(7, 2)
    v = normal(7, 2, seed=1)
    m = torch.rand(7, dtype=torch.float64)
    q = normal(3, 2, seed=2)
    tangent, step = normal(7, 2, seed=3), 1e-6

    def attend(k):
        return monoid.finish(fold(monoid, (k, v, m), (q,), chunk=3, depth=depth), (q,))

    _, found = torch.func.jvp(attend, (k,), (tangent,))
    expected = (attend(k + step * tangent) - attend(k - step * tangent)) / (2 * step)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)
    assert found.abs().max() > 1e-2


@pytest.mark.parametrize("sizes", [[9], [4, 5], [1, 0, 3, 5], [0, 9]])
def test_items_that_come_in_any_batches_make_the_same_total(sizes):
    h, target = normal(4, 2), torch.tensor([0, 8, 3, 5])
    c = normal(9, 2, seed=1).requires_grad_()
    monoid = class_cross_entropy(9)
    total = Fold(monoid, (h, target))
    for part in c.split(sizes):
        total = total.add((part,))
    expected = torch.nn.functional.cross_entropy(h @ c.mT, target, reduction="none")
    torch.testing.assert_close(total.result(), expected)
    slopes = (torch.autograd.grad(losses.sum(), c)[0] for losses in (total.result(), expected))
    torch.testing.assert_close(*slopes)


def test_two_growing_folds_are_one():
    x, w = normal(9, 2), normal(9, seed=1).exp()
    parts = [Fold(WEIGHTED_MEAN).add((x[some], w[some])) for some in (slice(0, 4), slice(4, 9))]
    joined = parts[0].plus(Fold(WEIGHTED_MEAN)).plus(parts[1])
    torch.testing.assert_close(joined.result(), (w[:, None] * x).sum(0) / w.sum())
    assert joined.items == 9


def test_folds_that_cannot_be_joined_or_finished_are_refused():
    with pytest.raises(ValueError):
        Fold(SUM).plus(Fold(WEIGHTED_MEAN))
    numbered = class_cross_entropy(3)
    with pytest.raises(ValueError):
        Fold(numbered).plus(Fold(numbered))
    with pytest.raises(ValueError):
        Fold(SUM).result()
    with pytest.raises(ValueError):
        Fold(LOG_SUM_EXP).add((torch.ones(0, 2),)).result()
