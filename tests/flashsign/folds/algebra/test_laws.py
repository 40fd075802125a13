"""What every monoid of the package obeys, in float64, and that check_monoid finds what does not."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monoid_cases import LAYERS, ROWS, normal

from flashsign import SUM, BrokenLaw, check_monoid, fold_literal, monoid_reduce
from flashsign.folds.algebra.monoid import constants

every_row = pytest.mark.parametrize("name", ROWS)
every_layer = pytest.mark.parametrize("name", LAYERS)
law = settings(max_examples=8, derandomize=True, deadline=None)
seeds = st.integers(0, 2**16)
counts = st.integers(1, 9)


def generator(seed):
    return torch.Generator().manual_seed(seed)


def same(found, expected):
    torch.testing.assert_close(tuple(found), tuple(expected), rtol=1e-9, atol=1e-11)


def slopes(outputs, leaves, grads):
    wanted = [x for x in leaves if x.requires_grad]
    graded = [(x, g) for x, g in zip(outputs, grads, strict=True) if x.requires_grad]
    outputs, grads = zip(*graded, strict=True)
    return torch.autograd.grad(outputs, wanted, grads, allow_unused=True, materialize_grads=True)


@every_row
@law
@given(seed=seeds, n=st.integers(3, 9))
def test_every_law_holds_for_every_row_of_the_table(name, seed, n):
    items, shared = ROWS[name].items(seed, n)
    check_monoid(ROWS[name].monoid, items, shared)


@every_layer
@law
@given(
    seed=seeds,
    n=counts,
    a_chunk=st.integers(1, 7),
    b_chunk=counts,
)
def test_three_depths_in_any_slices_are_one_layer(name, seed, n, a_chunk, b_chunk):
    row = LAYERS[name]
    items, shared = row.leaves(seed, n)
    expected = row.monoid.finish(fold_literal(row.monoid, items, shared), shared)
    grad = normal(generator(seed + 1), *expected.shape)
    gradients = slopes((expected,), (*shared, *items), (grad,))
    for depth in row.monoid.depths:
        chunks = {"a_chunk": a_chunk, "b_chunk": b_chunk}
        output = monoid_reduce(row.monoid, shared, items, **chunks, depth=depth)
        same((output,), (expected,))
        same(slopes((output,), (*shared, *items), (grad,)), gradients)


@every_layer
def test_batch_axes_are_a_loop_over_bags(name):
    row = LAYERS[name]
    bags = [row.items(seed, 7) for seed in range(6)]
    stacked = [
        tuple(torch.stack(x).unflatten(0, (2, 3)) for x in zip(*each, strict=True))
        for each in zip(*bags, strict=True)
    ]
    items, shared = (
        tuple(x.requires_grad_(x.is_floating_point()) for x in each) for each in stacked
    )
    for depth in row.monoid.depths:
        options = {"a_chunk": 2, "b_chunk": 2, "depth": depth, "batch_dims": 2}
        output = monoid_reduce(row.monoid, shared, items, **options)
        grad = normal(generator(1), *output.shape)
        found = slopes((output,), (*shared, *items), (grad,))
        for bag in range(6):
            at = bag // 3, bag % 3
            alone = [
                tuple(x[at].detach().requires_grad_(x.requires_grad) for x in each)
                for each in (shared, items)
            ]
            expected = monoid_reduce(row.monoid, *alone)
            same((output[at],), (expected,))
            same([x[at] for x in found], slopes((expected,), (*alone[0], *alone[1]), (grad[at],)))


BROKEN = {
    "identity, from the left": replace(SUM, identity=constants(1.0)),
    "associativity": replace(SUM, combine=lambda a, b: ((a[0] + b[0]) * (1 + 0.1 * a[0] * b[0]),)),
    "commutativity": replace(SUM, combine=lambda a, b: (torch.where(b[0] == 0, a[0], b[0]),)),
    "the gradient at depth 2": replace(SUM, local_gradient=lambda c, a, g: (2 * g[0],)),
    "depth 3 has the same total": replace(
        SUM,
        proj_fold=lambda a, b: (b[0].mean(0),),
        proj_fold_bwd=lambda a, b, p, g: ((), (g[0].expand_as(b[0]),)),
    ),
    "the gradient at depth 3": replace(
        SUM,
        proj_fold=lambda a, b: (b[0].sum(0),),
        proj_fold_bwd=lambda a, b, p, g: ((), (-g[0].expand_as(b[0]),)),
    ),
    "a fold of nothing finishes finite": replace(SUM, finish=lambda total, _: 1 / total[0]),
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_law_that_fails_is_named(name):
    with pytest.raises(BrokenLaw, match=f"sum breaks a law, {name}"):
        check_monoid(BROKEN[name], (normal(generator(0), 5, 2),))
