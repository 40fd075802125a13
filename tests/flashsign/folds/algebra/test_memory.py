"""Bytes: a fold holds its inputs, its output and one slice, however many slices there are, forward
and backward.
"""

from functools import partial

import pytest
import seeded
import torch
from peak_bytes import PeakBytes

from flashsign import (
    SOFTMAX,
    class_cross_entropy,
    distribution_cross_entropy,
    linear_cross_entropy,
    mlp,
    mlp_monoid,
    monoid_reduce,
    spherical_monoid,
    weighted_cross_entropy,
)

normal = partial(seeded.normal, dtype=torch.float32)
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
def test_more_slices_take_no_more_memory(name, depth):
    monoid, draw = CASES[name]
    rows = 2 * CHUNK
    found = [
        extra_bytes(monoid, *draw(rows, items), depth, a_chunk=CHUNK, b_chunk=CHUNK)
        for items in (4 * CHUNK, 16 * CHUNK)
    ]
    lifted = SLICE * (WIDTH if depth < 3 else 1)  # a slice of lifted items at depths 1 and 2
    for few, many in zip(*found, strict=True):
        # Without D, one total for every doubling of the number of slices: log2(4) more.
        totals = 2 * 4 * rows * (WIDTH + 2) if depth == 1 else 0
        positions = 8 * 12 * CHUNK if monoid.numbered else 0  # of the items, int64
        assert many - few <= totals + positions + SLICE // 4, (few, many)
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


def on_meta(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, device="meta", dtype=dtype, requires_grad=dtype.is_floating_point)


FULL_ROWS, CLASSES, LARGE, NARROW = 16_384, 60_000, 512, 128
LAYER = (FULL_ROWS, LARGE), (CLASSES, LARGE)
UNITS = (FULL_ROWS, NARROW), (FULL_ROWS, NARROW), (NARROW, FULL_ROWS)
SLICES = {"row_chunk": 2048, "class_chunk": 2048}


def with_classes(h, c):
    return linear_cross_entropy(h, c, on_meta(FULL_ROWS, dtype=torch.int64), **SLICES)


def with_weights(h, c):
    classes = on_meta(FULL_ROWS, 100, dtype=torch.int64)
    weights = on_meta(FULL_ROWS, 100, dtype=torch.float32).detach()
    return weighted_cross_entropy(h, c, classes, weights, **SLICES)


def with_distributions(*layers):
    return distribution_cross_entropy(*layers, **SLICES)


def gated(x, up, down, gate):
    return mlp(x, up, down, gate=gate, activation="silu")


LOGITS, HIDDEN = 4 * FULL_ROWS * CLASSES, 2 * FULL_ROWS * FULL_ROWS
# The layer, the shapes of its tensors, and the share of what the plain one stores.
AT_FULL_SIZE = {
    "classes": (with_classes, LAYER, 0.05 * LOGITS),
    "distributions": (with_distributions, LAYER * 2, 0.05 * LOGITS),
    "weights": (with_weights, LAYER, 0.05 * LOGITS),
    "MLP": (partial(mlp, activation="silu"), UNITS, 0.03 * 2 * HIDDEN),
    "SwiGLU": (gated, (*UNITS, UNITS[0]), 0.03 * 3 * HIDDEN),
}


@pytest.mark.parametrize("name", AT_FULL_SIZE)
def test_extra_memory_at_full_size_is_a_few_percent_of_what_a_plain_layer_stores(name):
    """On the meta device, which has shapes and no numbers: forward and backward, beyond inputs,
    output and gradients. The sizes are those that are benchmarked on a GPU.
    """
    layer, shapes, most = AT_FULL_SIZE[name]
    leaves = [on_meta(*shape) for shape in shapes]
    with PeakBytes() as memory:
        output = layer(*leaves)
        gradients = torch.autograd.grad(output, leaves, torch.empty_like(output))
    made = 2 * output.numel() * output.element_size() + sum(2 * x.numel() for x in gradients)
    assert memory.peak - made < most
