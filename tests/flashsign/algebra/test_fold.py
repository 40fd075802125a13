import pytest
import torch

from flashsign.algebra.fold import fold, fold_literal
from flashsign.algebra.monoid import Monoid
from flashsign.algebra.softmax import SOFTMAX
from flashsign.algebra.spherical import spherical_monoid


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


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
    (found,) = fold(matrix_product(), items, chunk=chunk, order="sequence")
    (expected,) = fold_literal(matrix_product(), items)
    torch.testing.assert_close(found, torch.linalg.multi_dot(list(items[0])))
    torch.testing.assert_close(torch.autograd.grad(found, items, grad), torch.autograd.grad(expected, items, grad))


def test_the_parallel_fold_refuses_what_does_not_commute():
    with pytest.raises(ValueError, match="matrix product is not commutative"):
        fold(matrix_product(), (normal(4, 3, 3),))


def test_items_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match=r"one length; found lengths \[3, 4\]"):
        fold(SOFTMAX, (normal(3, 2), normal(4, 2), torch.ones(4)), (normal(2, 2),))


@pytest.mark.parametrize("monoid", [SOFTMAX, spherical_monoid()], ids=["softmax", "spherical"])
def test_a_fold_keeps_nothing_of_size_queries_times_keys(monoid):
    queries, keys, width = 50, 60, 2
    items = (normal(keys, width).requires_grad_(), normal(keys, width, seed=1).requires_grad_(), torch.rand(keys))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        fold(monoid, items, (normal(queries, width, seed=2),), chunk=4)
    assert kept
    assert max(kept) <= max(queries, keys) * width


def test_gradients_come_only_to_those_that_want_them():
    q, k, v = normal(4, 2).requires_grad_(), normal(5, 2, seed=1), normal(5, 2, seed=2).requires_grad_()
    items, shared = (k, v, torch.ones(5, dtype=torch.float64)), (q,)
    losses = [SOFTMAX.finish(how(SOFTMAX, items, shared), shared).square().sum() for how in (fold, fold_literal)]
    found, expected = (torch.autograd.grad(loss, (q, v)) for loss in losses)
    torch.testing.assert_close(found, expected)
    assert k.grad is None


@pytest.mark.parametrize("monoid", [SOFTMAX, spherical_monoid()], ids=["softmax", "spherical"])
def test_a_second_derivative_is_that_of_the_literal_fold(monoid):
    leaves = [normal(4, 2, seed=i).requires_grad_() for i in range(3)]
    curvatures = []
    for how in (fold, fold_literal):
        k, v, q = leaves
        items = (k, v, torch.ones(4, dtype=torch.float64))
        slopes = torch.autograd.grad(monoid.finish(how(monoid, items, (q,)), (q,)).sum(), leaves, create_graph=True)
        curvatures.append(torch.autograd.grad(sum(slope.square().sum() for slope in slopes), leaves))
    torch.testing.assert_close(*curvatures)
    assert min(curvature.abs().max() for curvature in curvatures[0]) > 1e-2


@pytest.mark.parametrize("monoid", [SOFTMAX, spherical_monoid()], ids=["softmax", "spherical"])
def test_an_item_that_is_shared_as_well_has_each_derivative_once(monoid):
    x, m = torch.randn(6, 4, dtype=torch.float64, requires_grad=True), torch.ones(6, dtype=torch.float64)

    def gradient(create_graph):
        output = monoid.finish(fold(monoid, (x, x, m), (x,)), (x,))
        return torch.autograd.grad(output.sin().sum(), x, create_graph=create_graph)[0]

    torch.testing.assert_close(gradient(True), gradient(False))


def test_unknown_orders_and_empty_chunks_are_refused():
    for wrong in ({"order": "paralel"}, {"chunk": 0}, {"chunk": -1}):
        with pytest.raises(ValueError, match="order must be parallel or sequence and chunk at least 1"):
            fold(SOFTMAX, (torch.ones(3, 4), torch.ones(3, 4), torch.ones(3)), (torch.ones(2, 4),), **wrong)


@pytest.mark.parametrize("monoid", [SOFTMAX, spherical_monoid()], ids=["softmax", "spherical"])
def test_forward_mode_is_not_silently_zero(monoid):
    k, v, m, q = normal(7, 2), normal(7, 2, seed=1), torch.rand(7, dtype=torch.float64), normal(3, 2, seed=2)
    tangent, step = normal(7, 2, seed=3), 1e-6

    def attend(k):
        return monoid.finish(fold(monoid, (k, v, m), (q,), chunk=3), (q,))

    _, found = torch.func.jvp(attend, (k,), (tangent,))
    expected = (attend(k + step * tangent) - attend(k - step * tangent)) / (2 * step)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)
    assert found.abs().max() > 1e-2
