"""What the folds' kernels have of their own; that they are their layers: layers/test_layers.py.

They run on a GPU where there is one, else in Triton's interpreter.
"""

import pytest
import torch
from kernel_cases import (
    DEVICE,
    doubled,
    draw,
    errors,
    poison,  # noqa: F401
    with_gradients,
)
from seeded import normal as drawn
from torch.nn import functional as F

from flashsign import linear_cross_entropy, weighted_cross_entropy
from flashsign.tuning.block_sizes import BlockSizes

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
attention = pytest.importorskip("flashsign.folds.kernels.attention_template")
entropies = pytest.importorskip("flashsign.folds.kernels.entropies")
rows = pytest.importorskip("flashsign.folds.kernels.attention_rows")
ROWS, CLASSES, WIDTH = 70, 133, 72


def normal(*shape, seed=0, dtype=torch.float32):
    return drawn(*shape, seed=seed).to(DEVICE, dtype).requires_grad_()


def wide(*tensors):
    return [x.detach().double().requires_grad_() for x in tensors]


@pytest.fixture
def small_slices(monkeypatch):
    """Several slices of classes, the last one narrower."""
    monkeypatch.setattr(entropies, "SLICE_BYTES", 1)
    monkeypatch.setattr(entropies, "NARROWEST", 48)


def test_the_order_of_programs_changes_no_bit(monkeypatch):
    """Tiles of rows in groups of 3: five tiles, so that the last group is smaller."""
    h, c = normal(ROWS, WIDTH).detach(), normal(CLASSES, WIDTH, seed=1).detach()
    target, sizes = torch.arange(ROWS, device=DEVICE), BlockSizes(16, 16, 4, 1)

    def found():
        p, picked = entropies.class_totals(h, c, None, target, sizes=sizes)
        slopes = torch.ones(ROWS, device=DEVICE), None, None
        return (
            p,
            picked,
            *entropies.class_gradients(
                h, c, None, None, p, slopes, (True, True, False), sizes=sizes
            )[:2],
        )

    expected = found()
    monkeypatch.setattr(entropies, "CACHED_BYTES", 3 * 16 * WIDTH * 4)
    assert all(torch.equal(one, other) for one, other in zip(found(), expected, strict=True))


def test_gradients_of_a_mean_do_not_vanish_in_float16(small_slices):
    """Of 3e6 rows, of which these are a few, each would have gradients below float16's smallest
    number.
    """
    h = normal(ROWS, WIDTH, dtype=torch.float16)
    c = normal(CLASSES, WIDTH, seed=1, dtype=torch.float16)
    target = torch.arange(ROWS, device=DEVICE)
    tiny = 3e-7
    (slope,) = torch.autograd.grad(
        linear_cross_entropy(h, c, target, reduction="sum", backend="triton") * tiny, c
    )
    true = wide(h, c)
    expected = F.cross_entropy(F.linear(*true), target, reduction="sum") * tiny
    # The result itself is rounded to float16, whose numbers below 6e-5 have fewer bits.
    assert (slope.double() - torch.autograd.grad(expected, true[1])[0]).abs().max() < 6e-8


def test_weights_that_are_met_exactly_have_gradients_without_cancelled_digits(small_slices):
    """A composition that is nearly fitted: W softmax and w are nearly equal, and their difference
    is rounded once.
    """
    h, c = normal(20, 16, dtype=torch.float16), normal(30, 16, seed=1, dtype=torch.float16)
    true = wide(h, c)
    listed = torch.arange(30, device=DEVICE)
    weights = (F.linear(*true).softmax(-1) * (1 + 0.01 * normal(20, 30, seed=2))).detach().float()
    loss = weighted_cross_entropy(h, c, listed, weights, backend="triton")
    expected = -(weights.double() * F.linear(*true).log_softmax(-1)).sum(-1).mean()
    slopes = torch.autograd.grad(loss, [h, c])
    for slope, other in zip(slopes, torch.autograd.grad(expected, true), strict=True):
        assert (slope - other).norm() < 2e-3 * other.norm()


@triton.jit
def cubes(s):
    return s * s * s, s * s * s * s


@triton.jit
def slopes_of_cubes(s):
    return 3.0 * s * s, 4.0 * s * s * s


@triton.jit
def over_three_quarters(z, floor):
    return tl.where(z > 0, tl.exp2(-0.75 * tl.log2(tl.where(z > 0, z, 1.0))), 0.0)


@triton.jit
def minus_three_quarters_over(z, floor):
    return tl.where(z > 0, -0.75 / tl.where(z > 0, z, 1.0), 0.0)


CUBES = rows.Row(cubes, slopes_of_cubes, over_three_quarters, minus_three_quarters_over)


def test_a_row_of_ones_own_has_right_outputs_and_gradients():
    q, k, v, m, grad = draw(queries=21, keys=33, per_head=True)
    o, totals = attention.forward(CUBES, q, k, v, m, 0.0)
    found = o, *attention.backward(CUBES, grad, q, k, v, m, o, totals, 0.0)

    def plain(q, k, v, m):
        k, v, m = (x.repeat_interleave(2, 1) for x in (k, v, m))
        s = q @ k.mT * m[:, :, None]
        return s**3 @ v / (s**4).sum(-1, keepdim=True) ** 0.75

    true = with_gradients(plain, doubled((q, k, v, m)), grad)
    assert max(errors(found, true).values()) < 5e-6
