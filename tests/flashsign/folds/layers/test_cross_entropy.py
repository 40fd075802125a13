"""Cross entropies behind a linear layer are torch's own on the logits, with a fraction of their
memory.
"""

import pytest
import torch
from peak_bytes import PeakBytes
from seeded import normal
from torch.nn import functional as F

from flashsign import distribution_cross_entropy, linear_cross_entropy, weighted_cross_entropy

ROWS, CLASSES, WIDTH = 13, 29, 5
CHUNKS = {"row_chunk": 4, "class_chunk": 7}


def layer(dtype=torch.float64):
    h, c, b = (
        normal(*shape, seed=seed)
        for seed, shape in enumerate(((ROWS, WIDTH), (CLASSES, WIDTH), (CLASSES,)))
    )
    return tuple(x.to(dtype).requires_grad_() for x in (h, c, b))


def targets():
    target = torch.randint(0, CLASSES, (ROWS,), generator=torch.Generator().manual_seed(3))
    target[[2, 7]] = -100
    return target


def same_with_gradients(found, expected, leaves):
    torch.testing.assert_close(found, expected)
    weights = normal(*found.shape, seed=9)
    slopes = (torch.autograd.grad((output * weights).sum(), leaves) for output in (found, expected))
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
@pytest.mark.parametrize("with_bias", [False, True])
def test_with_classes_it_is_torchs_cross_entropy(reduction, label_smoothing, with_bias):
    h, c, b = layer()
    options = {"reduction": reduction, "label_smoothing": label_smoothing}
    bias = b if with_bias else None
    found = linear_cross_entropy(h, c, targets(), bias, **options, **CHUNKS)
    expected = F.cross_entropy(F.linear(h, c, bias), targets(), **options)
    same_with_gradients(found, expected, (h, c, b)[: 2 + with_bias])


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
def test_rows_have_weights_which_learn_too(reduction, label_smoothing):
    h, c, b = layer()
    weights = normal(ROWS, seed=8).exp().requires_grad_()
    options = {"label_smoothing": label_smoothing}
    found = linear_cross_entropy(
        h, c, targets(), b, row_weights=weights, reduction=reduction, **options, **CHUNKS
    )
    losses = weights * F.cross_entropy(F.linear(h, c, b), targets(), reduction="none", **options)
    expected = {
        "none": losses,
        "sum": losses.sum(),
        "mean": losses.sum() / weights[targets() >= 0].sum(),
    }[reduction]
    same_with_gradients(found, expected, (h, c, b, weights))


def test_weights_of_rows_are_not_rounded_to_16_bits():
    h, c, _ = layer(torch.bfloat16)
    weights = normal(ROWS, seed=8).exp().float()
    found = linear_cross_entropy(h, c, targets(), row_weights=weights, reduction="none", **CHUNKS)
    losses = linear_cross_entropy(h, c, targets(), reduction="none", **CHUNKS)
    assert found.dtype == torch.float32 and torch.equal(found, weights * losses)


def test_another_ignored_index_and_axes_of_rows():
    h, c, _ = layer()
    h, target = h[:12].unflatten(0, (3, 4)), targets()[:12].unflatten(0, (3, 4)).clamp(min=5)
    found = linear_cross_entropy(h, c, target, ignore_index=5, reduction="none", **CHUNKS)
    expected = F.cross_entropy(
        (h @ c.mT).flatten(0, 1), target.flatten(), ignore_index=5, reduction="none"
    )
    same_with_gradients(found, expected.unflatten(0, (3, 4)), (h, c))


def test_a_mean_over_nothing_is_nan_as_in_torch():
    h, c, _ = layer()
    nothing = torch.full((ROWS,), -100)
    assert (
        linear_cross_entropy(h, c, nothing).isnan() and F.cross_entropy(h @ c.mT, nothing).isnan()
    )
    assert linear_cross_entropy(h, c, nothing, reduction="sum") == 0


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_between_two_distributions_both_learn(reduction):
    s, c, _ = layer()
    t, d = normal(ROWS, 3, seed=5).requires_grad_(), normal(CLASSES, 3, seed=6).requires_grad_()
    found = distribution_cross_entropy(s, c, t, d, reduction=reduction, **CHUNKS)
    expected = F.cross_entropy(s @ c.mT, (t @ d.mT).softmax(-1), reduction=reduction)
    same_with_gradients(found, expected, (s, c, t, d))


def packed_weights():
    """Rows of 0 to 5 classes, one listed twice; their sums are not one."""
    random = torch.Generator().manual_seed(4)
    sizes = torch.arange(ROWS) % 6
    offsets = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
    classes = torch.randint(0, CLASSES, (int(offsets[-1]),), generator=random)
    classes[1] = classes[2]
    return classes, normal(len(classes), seed=8).exp().requires_grad_(), offsets


def plain_weighted(h, c, bias, classes, weights, offsets):
    rows = torch.repeat_interleave(torch.arange(ROWS), offsets.diff())
    table = weights.new_zeros(ROWS, CLASSES).index_put((rows, classes), weights, accumulate=True)
    return -(table * F.linear(h, c, bias).log_softmax(-1)).sum(-1)


@pytest.mark.parametrize("with_bias", [False, True])
def test_with_weights_whose_sum_is_not_one(with_bias):
    h, c, b = layer()
    bias = b if with_bias else None
    classes, weights, offsets = packed_weights()
    found = weighted_cross_entropy(
        h, c, classes, weights, bias, offsets=offsets, reduction="none", **CHUNKS
    )
    expected = plain_weighted(h, c, bias, classes, weights, offsets)
    same_with_gradients(found, expected, (h, c, weights, b)[: 3 + with_bias])
    assert found[0] == 0  # a row without weights
    for reduction in ("sum", "mean"):
        options = {"offsets": offsets, "reduction": reduction, **CHUNKS}
        loss = weighted_cross_entropy(h, c, classes, weights, bias, **options)
        torch.testing.assert_close(loss, getattr(expected, reduction)())


def test_dense_weights_of_one_list_or_of_each_row():
    h, c, _ = layer()
    counts = normal(ROWS, 4, seed=8).exp().requires_grad_()
    listed = torch.tensor([3, 0, 28, 11])
    for classes in (listed, listed.expand(ROWS, -1)):
        expected = -(counts * (h @ c.mT).log_softmax(-1)[:, listed]).sum(-1)
        found = weighted_cross_entropy(h, c, classes, counts, reduction="none", **CHUNKS)
        same_with_gradients(found, expected, (h, c, counts))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_loses_no_more_than_torch_with_its_upcast(dtype):
    """The logits are float32 and gradients are rounded once, at their end."""
    h, c, b = layer(dtype)
    wide = [x.detach().double().requires_grad_() for x in (h, c, b)]
    truth = F.cross_entropy(F.linear(*wide), targets())
    truths = torch.autograd.grad(truth, wide)
    found = linear_cross_entropy(h, c, targets(), b, **CHUNKS)
    plain = F.cross_entropy(F.linear(h, c, b).float(), targets())
    assert found.dtype == torch.float32
    assert (found - truth).abs() <= (plain - truth).abs() + 1e-6
    slopes, plains = (torch.autograd.grad(loss, (h, c, b)) for loss in (found, plain))
    for slope, other, true in zip(slopes, plains, truths, strict=True):
        assert slope.dtype == dtype
        assert (slope - true).norm() <= 1.05 * (other - true).norm()


def test_second_derivatives_are_right():
    h, c = (x.detach()[:6].requires_grad_() for x in layer()[:2])
    call = lambda h, c: linear_cross_entropy(h, c, torch.arange(6), label_smoothing=0.1, **CHUNKS)  # noqa: E731
    assert torch.autograd.gradgradcheck(call, (h, c))


FULL = {"rows": 16_384, "classes": 60_000, "width": 512}
"""The size that is benchmarked on a GPU: float32 logits would have 3.9 GB."""


def on_meta(*shape):
    return torch.empty(shape, device="meta", dtype=torch.bfloat16, requires_grad=True)


def losses_at_full_size():
    rows, classes, width = FULL.values()
    chunks = {"row_chunk": 2048, "class_chunk": 2048}
    h, c, t, d = (on_meta(n, width) for n in (rows, classes, rows, classes))
    target = torch.empty(rows, dtype=torch.int64, device="meta")
    listed = torch.empty(rows, 100, dtype=torch.int64, device="meta")
    weights = torch.empty(rows, 100, device="meta")
    return {
        "classes": (lambda: linear_cross_entropy(h, c, target, **chunks), (h, c)),
        "distributions": (lambda: distribution_cross_entropy(h, c, t, d, **chunks), (h, c, t, d)),
        "weights": (lambda: weighted_cross_entropy(h, c, listed, weights, **chunks), (h, c)),
    }


@pytest.mark.parametrize("name", ["classes", "distributions", "weights"])
def test_extra_memory_at_full_size_is_under_five_percent_of_the_logits(name):
    """On the meta device, which has shapes and no numbers: forward and backward, beyond inputs and
    gradients.
    """
    call, leaves = losses_at_full_size()[name]
    with PeakBytes() as memory:
        gradients = torch.autograd.grad(call(), leaves)
    extra = memory.peak - sum(2 * x.numel() for x in gradients)
    assert extra < 0.05 * 4 * FULL["rows"] * FULL["classes"], extra
