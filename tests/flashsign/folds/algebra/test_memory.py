"""Bytes: a fold holds its inputs, its output and one slice, however many slices there are, forward
and backward.
"""

import pytest
import torch
from monoid_cases import generator_normal as normal
from peak_bytes import PeakBytes

from flashsign import (
    SOFTMAX,
    class_cross_entropy,
    mlp_monoid,
    monoid_reduce,
    n_ary_reduce,
    spherical_monoid,
)
from flashsign.folds.algebra.fold import fold
from flashsign.folds.algebra.n_ary import NAryFold

WIDTH, CHUNK = 16, 32
SLICE = 4 * CHUNK * CHUNK  # bytes of a slice of float32 scores


def attention(rows, items):
    return (normal(rows, WIDTH),), (normal(items, WIDTH), normal(items, WIDTH), torch.ones(items))


def classes(rows, items):
    return (normal(rows, WIDTH), torch.arange(rows) % items), (normal(items, WIDTH),)


def hidden(rows, items):
    return (normal(rows, WIDTH),), (normal(items, WIDTH), normal(items, WIDTH))


CASES = {
    "softmax": (SOFTMAX, attention),
    "spherical": (spherical_monoid(), attention),
    "cross entropy": (class_cross_entropy(1000), classes),
    "MLP": (mlp_monoid("gelu"), hidden),
}


def extra_bytes(monoid, a, b, depth, **options):
    """Peak of forward and backward,
    beyond outputs (of the layer and of its totals) and gradients.
    """
    a, b = ([x.requires_grad_(x.is_floating_point()) for x in each] for each in (a, b))
    leaves = [x for x in (*a, *b) if x.requires_grad]
    with PeakBytes() as memory:
        output = monoid_reduce(monoid, tuple(a), tuple(b), depth=depth, **options)
        forward = memory.peak
        gradients = torch.autograd.grad(output.sum(), leaves)
    outputs = 4 * output.numel()
    return forward - outputs, memory.peak - outputs - 4 * sum(x.numel() for x in gradients)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("order", ["rows", "items"])
def test_more_slices_take_no_more_memory(name, depth, order):
    monoid, draw = CASES[name]
    rows = 2 * CHUNK
    found = [
        extra_bytes(monoid, *draw(rows, items), depth, a_chunk=CHUNK, b_chunk=CHUNK, order=order)
        for items in (4 * CHUNK, 16 * CHUNK)
    ]
    lifted = SLICE * (WIDTH if depth < 3 else 1)  # a slice of lifted items at depths 1 and 2
    for few, many in zip(*found, strict=True):
        # Without D, one total for every doubling of the number of slices: log2(4) more.
        totals = 2 * 4 * rows * (WIDTH + 2) if depth == 1 else 0
        assert many - few <= totals + SLICE // 4, (few, many)
        assert many <= 12 * lifted


@pytest.mark.parametrize("name", CASES)
def test_at_depth_three_a_slice_is_rows_times_items(name):
    """No tensor of chunk x rows x width, and far less than all rows x items."""
    monoid, draw = CASES[name]
    rows, items = 8 * CHUNK, 32 * CHUNK
    a, b = draw(rows, items)
    found = extra_bytes(monoid, a, b, 3, a_chunk=CHUNK, b_chunk=CHUNK)
    totals = 4 * rows * (WIDTH + 2)
    assert max(found) < 8 * SLICE + 4 * totals
    assert max(found) < 0.1 * 4 * rows * items


def test_the_count_itself_sees_what_plain_torch_stores():
    """What the tests above guard against:
    the plain layer holds all scores, and the count says so.
    """
    (q,), (k, v, _) = attention(512, 2048)
    q.requires_grad_()
    with PeakBytes() as memory:
        (torch.softmax(q @ k.mT, -1) @ v).sum().backward()
    assert memory.peak >= 2 * 4 * 512 * 2048


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_fold_of_items_does_not_keep_the_gradient_of_the_queries_once_a_chunk(depth):
    queries = normal(512, WIDTH).requires_grad_()
    peaks = []
    for keys in (64, 512):
        k, v, m = (
            x.requires_grad_() for x in (normal(keys, WIDTH), normal(keys, WIDTH), torch.ones(keys))
        )
        with PeakBytes() as memory:
            z, mean = fold(SOFTMAX, (k, v, m), (queries,), chunk=8, depth=depth)
            torch.autograd.grad(mean.sum() + z.sum(), (queries, k, v, m))
        peaks.append(memory.peak - 4 * 3 * keys * WIDTH)
    totals = 4 * 512 * (WIDTH + 1)
    # 8 times as many chunks: three more totals without D, nothing with it.
    assert peaks[1] - peaks[0] <= (4 * totals if depth == 1 else totals // 2)


def test_an_n_ary_fold_holds_one_slice():
    squares = NAryFold(
        init=lambda x: (x.new_zeros(1),),
        chunker=lambda x: (
            ((slice(None),), (slice(at, at + 100),)) for at in range(0, len(x), 100)
        ),
        proj_fold=lambda x: (x[0].square().sum(0, keepdim=True),),
        binary_reduce=lambda p, q: (p[0] + q[0],),
        proj_fold_bwd=lambda x, a, ga: (2 * x[0] * ga[0],),
    )
    x = torch.ones(100_000, requires_grad=True)
    with PeakBytes() as memory:
        n_ary_reduce(squares, x)[0].sum().backward()
    assert memory.peak <= 400_000 + 10 * 400
    torch.testing.assert_close(x.grad, 2 * x.detach())
