"""What every monoid of the package obeys, in float64."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashsign.algebra.fold import fold, fold_literal, reduce_lifted
from flashsign.algebra.monoid import Monoid
from flashsign.algebra.normalised_contraction import normalised_contraction
from flashsign.algebra.softmax import SOFTMAX
from flashsign.algebra.spherical import spherical_monoid
from flashsign.algebra.sums import SUM, WEIGHTED_MEAN

QUERIES, WIDTH = 3, 2


def normal(random, *shape):
    return torch.randn(shape, generator=random, dtype=torch.float64)


def values(random, n):
    return (normal(random, n, WIDTH),), ()


def weighted(random, n):
    return (normal(random, n, WIDTH), normal(random, n).exp()), ()


def keys(random, n):
    """Keys and values for a few queries; about a third of the multiplicities are 0."""
    m = normal(random, n).exp() * (torch.rand(n, generator=random, dtype=torch.float64) > 0.3)
    return (normal(random, n, WIDTH), normal(random, n, WIDTH), m), (normal(random, QUERIES, WIDTH),)


def l1_normalised() -> Monoid:
    return normalised_contraction("L1 attention", lambda s: s, torch.abs, lambda z: z + 1e-3)


ROWS = {
    "sum": (SUM, values),
    "weighted mean": (WEIGHTED_MEAN, weighted),
    "softmax": (SOFTMAX, keys),
    "spherical": (spherical_monoid(eps=0.1), keys),
    "contraction": (l1_normalised(), keys),
}

row = pytest.mark.parametrize(("monoid", "items_of"), ROWS.values(), ids=ROWS.keys())
law = settings(max_examples=12, derandomize=True)
seeds = st.integers(0, 2**16)
counts = st.integers(1, 9)


def generator(seed):
    return torch.Generator().manual_seed(seed)


def lifted(monoid, items_of, seed, n):
    return monoid.lift(*items_of(generator(seed), n))


def item(total, i):
    return tuple(part[i] for part in total)


def same(found, expected):
    torch.testing.assert_close(tuple(found), tuple(expected), rtol=1e-9, atol=1e-11)


def leaves_of(items, shared):
    leaves = [x.clone().requires_grad_() for x in (*items, *shared)]
    return tuple(leaves[: len(items)]), tuple(leaves[len(items) :])


@row
@law
@given(seed=seeds)
def test_identity(monoid, items_of, seed):
    x = item(lifted(monoid, items_of, seed, 1), 0)
    nothing = monoid.identity(x)
    same(monoid.combine(nothing, x), x)
    same(monoid.combine(x, nothing), x)
    same(monoid.combine(nothing, nothing), nothing)


@row
@law
@given(seed=seeds)
def test_associativity_and_commutativity(monoid, items_of, seed):
    total = lifted(monoid, items_of, seed, 3)
    a, b, c = (item(total, i) for i in range(3))
    same(monoid.combine(monoid.combine(a, b), c), monoid.combine(a, monoid.combine(b, c)))
    same(monoid.combine(a, b), monoid.combine(b, a))


@row
@law
@given(seed=seeds, n=counts, chunk=counts, order=st.sampled_from(["parallel", "sequence"]))
def test_any_chunking_gives_the_literal_fold(monoid, items_of, seed, n, chunk, order):
    items, shared = items_of(generator(seed), n)
    same(fold(monoid, items, shared, chunk=chunk, order=order), fold_literal(monoid, items, shared))


@row
@law
@given(seed=seeds, n=counts, padding=counts)
def test_padding_with_the_identity_changes_nothing(monoid, items_of, seed, n, padding):
    total = lifted(monoid, items_of, seed, n)
    nothing = monoid.identity(tuple(part[:1].expand(padding, *part.shape[1:]) for part in total))
    padded = tuple(torch.cat(parts) for parts in zip(total, nothing, strict=True))
    for order in ("parallel", "sequence"):
        same(reduce_lifted(monoid, padded, order), reduce_lifted(monoid, total, order))


@row
@law
@given(seed=seeds, n=counts, cut=st.integers(0, 9))
def test_the_fold_of_all_combines_the_folds_of_its_parts(monoid, items_of, seed, n, cut):
    items, shared = items_of(generator(seed), n)
    left = fold(monoid, tuple(x[:cut] for x in items), shared)
    right = fold(monoid, tuple(x[cut:] for x in items), shared)
    same(monoid.combine(left, right), fold(monoid, items, shared))


@row
@law
@given(seed=seeds, n=counts, chunk=counts, order=st.sampled_from(["parallel", "sequence"]))
def test_local_gradients_are_the_gradients_of_the_literal_fold(monoid, items_of, seed, n, chunk, order):
    items, shared = leaves_of(*items_of(generator(seed), n))
    without_d = replace(monoid, local_gradient=None)
    literal = fold_literal(monoid, items, shared)
    grads = tuple(normal(generator(seed + 1), *part.shape) for part in literal)
    expected = torch.autograd.grad(literal, (*items, *shared), grads)
    for table in (monoid, without_d):
        total = fold(table, items, shared, chunk=chunk, order=order)
        same(torch.autograd.grad(total, (*items, *shared), grads), expected)


@row
@law
@given(seed=seeds, n=counts)
def test_the_finished_fold_has_the_gradient_of_the_literal_one(monoid, items_of, seed, n):
    items, shared = leaves_of(*items_of(generator(seed), n))
    outputs = [monoid.finish(how(monoid, items, shared), shared) for how in (fold, fold_literal)]
    grad = normal(generator(seed + 1), *outputs[0].shape)
    found, expected = (torch.autograd.grad(output, (*items, *shared), grad) for output in outputs)
    same(found, expected)


@row
@law
@given(seed=seeds, sizes=st.lists(counts, min_size=2, max_size=4))
def test_local_gradients_hold_for_the_partial_totals_of_a_partition(monoid, items_of, seed, sizes):
    whole = lifted(monoid, items_of, seed, sum(sizes))
    parts = zip(*(part.split(sizes) for part in whole), strict=True)
    partials = [tuple(x.requires_grad_() for x in reduce_lifted(monoid, part, "parallel")) for part in parts]
    total = partials[0]
    for partial in partials[1:]:
        total = monoid.combine(total, partial)
    grads = tuple(normal(generator(seed + 1), *part.shape) for part in total)
    for partial in partials:
        expected = torch.autograd.grad(total, partial, grads, retain_graph=True)
        detached = tuple(x.detach() for x in total)
        same(monoid.local_gradient(detached, tuple(x.detach() for x in partial), grads), expected)


@row
@pytest.mark.parametrize("order", ["parallel", "sequence"])
def test_a_fold_of_nothing_is_the_identity_and_finishes_finite(monoid, items_of, order):
    items, shared = leaves_of(*items_of(generator(0), 0))
    total = fold(monoid, items, shared, order=order)
    same(total, monoid.identity(total))
    output = monoid.finish(total, shared)
    assert torch.equal(output, torch.zeros_like(output))
    for grad in torch.autograd.grad(output.sum(), (*items, *shared), allow_unused=True, materialize_grads=True):
        assert torch.equal(grad, torch.zeros_like(grad))
