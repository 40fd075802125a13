"""The folds' kernels against float64, through the layers that call them; on a GPU, or in Triton's
interpreter.
"""

import pytest
import torch
from kernel_cases import DEVICE, poison  # noqa: F401
from seeded import written_out
from torch.nn import functional as F

from flashsign import (
    BackendUnavailable,
    distribution_cross_entropy,
    linear_cross_entropy,
    mlp,
    normalised_attention,
    rms_norm,
    weighted_cross_entropy,
)
from flashsign.tuning.block_sizes import BlockSizes

pytest.importorskip("triton")
entropies = pytest.importorskip("flashsign.folds.kernels.entropies")

# bf16 products are wrong in the interpreter.
DTYPES = [torch.float32, torch.float16] + [torch.bfloat16] * (DEVICE.type == "cuda")
BARS = {torch.float32: 5e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}
TRITON = {"backend": "triton"}


def normal(*shape, seed=0, dtype=torch.float32, scale=1.0):
    random = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=random) * scale).to(DEVICE, dtype).requires_grad_()


def wide(*tensors):
    return [x.detach().double().requires_grad_() for x in tensors]


def assert_close(found, expected, dtype, bar=None):
    for x, y in zip(found, expected, strict=True):
        error = (x.double() - y).norm() / y.norm().clamp(min=1e-30)
        assert error < (bar or BARS[dtype]), float(error)


def same_with_gradients(found, leaves, expected, wide_leaves, dtype, bar=None):
    assert_close([found], [expected], dtype, bar)
    grad = normal(*found.shape, seed=99).detach()
    slopes = torch.autograd.grad(found, leaves, grad.to(found.dtype))
    truths = torch.autograd.grad(expected, wide_leaves, grad.to(found.dtype).double())
    assert all(slope.dtype == leaf.dtype for slope, leaf in zip(slopes, leaves, strict=True))
    assert_close(slopes, truths, dtype, bar)


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request):
    return request.param


@pytest.fixture
def small_slices(monkeypatch):
    """Several slices of classes, the last one narrower."""
    monkeypatch.setattr(entropies, "SLICE_BYTES", 1)
    monkeypatch.setattr(entropies, "NARROWEST", 48)


ROWS, CLASSES, WIDTH = 70, 133, 72


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


@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_classes(small_slices, dtype, label_smoothing, reduction, with_bias):
    leaves = [
        normal(ROWS, WIDTH, dtype=dtype),
        normal(CLASSES, WIDTH, seed=1, dtype=dtype, scale=0.2),
    ]
    leaves += [normal(CLASSES, seed=2, dtype=dtype)] * with_bias
    target = torch.arange(ROWS, device=DEVICE) * 7 % CLASSES
    target[[2, 7]] = -100
    options = {"label_smoothing": label_smoothing, "reduction": reduction}
    h, c, *b = leaves
    found = linear_cross_entropy(h, c, target, *b, **options, **TRITON)
    true = wide(*leaves)
    expected = F.cross_entropy(F.linear(*true), target, **options)
    same_with_gradients(found, leaves, expected, true, dtype)


def test_gradients_of_a_mean_do_not_vanish_in_float16(small_slices):
    """Of 3e6 rows, of which these are a few, each would have gradients below float16's smallest
    number.
    """
    h = normal(ROWS, WIDTH, dtype=torch.float16)
    c = normal(CLASSES, WIDTH, seed=1, dtype=torch.float16, scale=0.2)
    target = torch.arange(ROWS, device=DEVICE)
    tiny = 3e-7
    (slope,) = torch.autograd.grad(
        linear_cross_entropy(h, c, target, reduction="sum", **TRITON) * tiny, c
    )
    true = wide(h, c)
    expected = F.cross_entropy(F.linear(*true), target, reduction="sum") * tiny
    # The result itself is rounded to float16, whose numbers below 6e-5 have fewer bits.
    assert (slope.double() - torch.autograd.grad(expected, true[1])[0]).abs().max() < 6e-8


@pytest.mark.parametrize("shared", [False, True])
def test_weights_with_classes_listed_twice_and_none(small_slices, dtype, shared):
    h = normal(ROWS, WIDTH, dtype=dtype)
    c = normal(CLASSES, WIDTH, seed=1, dtype=dtype, scale=0.2)
    b = normal(CLASSES)
    b = b.detach().to(dtype).requires_grad_()
    classes = torch.randint(-1, CLASSES, (ROWS, 9), generator=torch.Generator().manual_seed(3)).to(
        DEVICE
    )
    classes = classes[5].clamp(min=0) if shared else classes
    if not shared:
        classes[:, 1] = classes[:, 2]
    weights = normal(ROWS, 9, seed=4).detach().exp().requires_grad_()
    found = weighted_cross_entropy(h, c, classes, weights, b, reduction="none", **TRITON)
    true = wide(h, c, b, weights)
    listed = classes.expand(ROWS, -1)
    log_softmax = F.linear(*true[:3]).log_softmax(-1).gather(1, listed.clamp(min=0))
    expected = -(torch.where(listed < 0, 0.0, true[3]) * log_softmax).sum(-1)
    same_with_gradients(found, [h, c, b, weights], expected, true, dtype)


def test_weights_that_are_met_exactly_have_gradients_without_cancelled_digits(small_slices):
    """A composition that is nearly fitted: W softmax and w are nearly equal, and their difference
    is rounded once.
    """
    h, c = normal(20, 16, dtype=torch.float16), normal(30, 16, seed=1, dtype=torch.float16)
    true = wide(h, c)
    listed = torch.arange(30, device=DEVICE)
    weights = (F.linear(*true).softmax(-1) * (1 + 0.01 * normal(20, 30, seed=2))).detach().float()
    loss = weighted_cross_entropy(h, c, listed, weights, **TRITON)
    expected = -(weights.double() * F.linear(*true).log_softmax(-1)).sum(-1).mean()
    assert_close(
        torch.autograd.grad(loss, [h, c]), torch.autograd.grad(expected, true), torch.float16
    )


@pytest.mark.parametrize("frozen", [(), (0, 1), (2, 3)])
def test_two_distributions(small_slices, dtype, frozen):
    shapes = (ROWS, WIDTH), (CLASSES, WIDTH), (ROWS, 40), (CLASSES, 40)
    tensors = [
        normal(*shape, seed=i, dtype=dtype, scale=0.2 if i % 2 else 1.0)
        for i, shape in enumerate(shapes)
    ]
    tensors = [x.detach() if i in frozen else x for i, x in enumerate(tensors)]
    found = distribution_cross_entropy(*tensors, reduction="none", **TRITON)
    true = wide(*tensors)
    expected = F.cross_entropy(
        true[0] @ true[1].mT, (true[2] @ true[3].mT).softmax(-1), reduction="none"
    )
    leaves = [x for i, x in enumerate(tensors) if i not in frozen]
    same_with_gradients(
        found, leaves, expected, [x for i, x in enumerate(true) if i not in frozen], dtype
    )


ACTIVATIONS = {"gelu": F.gelu, "silu": F.silu, "relu": F.relu}


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_mlps(dtype, activation, gated, with_bias):
    x, up, down = (
        normal(2, 35, 24, dtype=dtype),
        *(
            normal(*shape, seed=seed, dtype=dtype, scale=0.3)
            for seed, shape in ((1, (72, 24)), (2, (40, 72)))
        ),
    )
    biases = (
        [normal(72, seed=3, dtype=dtype), normal(40, seed=4, dtype=dtype)]
        if with_bias
        else [None, None]
    )
    gate = normal(72, 24, seed=5, dtype=dtype, scale=0.3) if gated else None
    leaves = [tensor for tensor in (x, up, down, *biases, gate) if tensor is not None]
    found = mlp(x, up, down, *biases, gate=gate, activation=activation, **TRITON)
    assert found.dtype == dtype
    true = [None if tensor is None else wide(tensor)[0] for tensor in (x, up, down, *biases, gate)]
    act, hidden = ACTIVATIONS[activation], F.linear(true[0], true[1], true[3])
    expected = F.linear(
        act(F.linear(true[0], true[5])) * hidden if gated else act(hidden), true[2], true[4]
    )
    same_with_gradients(found, leaves, expected, [x for x in true if x is not None], dtype)


NORMALISERS = ["spherical", "l1", "squared_relu", "softmax"]


@pytest.mark.parametrize("normaliser", NORMALISERS)
@pytest.mark.parametrize("per_head", [None, False, True])
def test_every_row_of_the_template(dtype, normaliser, per_head):
    q, k, v = (
        normal(2, 4, 37, 24, dtype=dtype),
        *(normal(2, 2, 41, 24, seed=i, dtype=dtype) for i in (1, 2)),
    )
    q, m = (0.3 * q).detach().requires_grad_(), None
    if per_head is not None:
        m = (normal(2, *(2,) * per_head, 41, seed=3).detach().abs() + 0.1).requires_grad_()
    eps = 0.01
    found = normalised_attention(q, k, v, m, normaliser=normaliser, eps=eps, **TRITON)
    leaves = [q, k, v] if m is None else [q, k, v, m]
    true = wide(*leaves)
    all_m = true[3] if m is not None else torch.ones(2, 41, device=DEVICE, dtype=torch.float64)
    expected = written_out(normaliser, *true[:3], all_m, eps)
    # |s| has a jump in its slope: a score that is nearly 0 may be rounded to the other side.
    same_with_gradients(
        found, leaves, expected, true, dtype, 10 * BARS[dtype] if normaliser == "l1" else None
    )


@pytest.mark.parametrize("normaliser", NORMALISERS)
def test_rows_without_weights_are_zero_with_zero_gradients(normaliser):
    q = normal(1, 1, 5, 16)
    k = normal(1, 1, 9, 16)
    v = normal(1, 1, 9, 16)
    m = torch.zeros(1, 9, device=DEVICE)
    for backend in ("torch", "triton"):
        output = normalised_attention(q, k, v, m, normaliser=normaliser, backend=backend)
        assert not output.any()
        assert all(x.isfinite().all() for x in torch.autograd.grad(output.sum(), (q, k, v)))


@pytest.mark.parametrize("shape", [(50, 24), (3, 7, 300)])
@pytest.mark.parametrize("weighted", [False, True])
def test_rms_norm(dtype, shape, weighted):
    x = normal(*shape, dtype=dtype)
    weight = normal(shape[-1], seed=1, dtype=dtype) if weighted else None
    leaves = [x, weight] if weighted else [x]
    true = wide(*leaves)
    expected = F.rms_norm(true[0], shape[-1:], true[1] if weighted else None, 1e-3)
    same_with_gradients(rms_norm(x, weight, 1e-3, **TRITON), leaves, expected, true, dtype)


LAYERS = {
    "classes": lambda h, c, **o: linear_cross_entropy(
        h, c, torch.arange(5, device=DEVICE), reduction="none", **o
    ),
    "distributions": lambda h, c, **o: distribution_cross_entropy(
        h, c, h.flip(0), c.flip(1), reduction="none", **o
    ),
    "weights": lambda h, c, **o: weighted_cross_entropy(
        h, c, torch.arange(3, device=DEVICE), h[:, :3].square(), reduction="none", **o
    ),
    "mlp": lambda h, c, **o: mlp(h, c, c.mT, activation="silu", **o),
    "attention": lambda h, c, **o: normalised_attention(
        h[None, None], c[None, None], c[None, None], **o
    ),
    "rms_norm": lambda h, c, **o: rms_norm(h, c[0], **o),
}


@pytest.mark.parametrize("name", LAYERS)
def test_second_derivatives_and_batched_ones_are_those_of_torch(name):
    def tensors():
        return normal(5, 16), normal(12, 16, seed=1, scale=0.5)

    found = []
    for backend in ("triton", "torch"):
        h, c = tensors()
        output = LAYERS[name](h, c, backend=backend)
        slopes = torch.autograd.grad(output.square().sum(), (h, c), create_graph=True)
        second = torch.autograd.grad(sum((x * x.sin()).sum() for x in slopes), (h, c))
        output = LAYERS[name](h, c, backend=backend)
        many = torch.stack([torch.ones_like(output), output.detach()])
        batched = torch.autograd.grad(output, (h, c), many, is_grads_batched=True)
        found.append((*slopes, *second, *batched))
    # On a GPU the losses are saturated: three TF32 products have a float32 product's accuracy, not
    # its bits.
    assert_close(found[0], [x.double() for x in found[1]], torch.float32, 1e-3)


@pytest.mark.parametrize("name", LAYERS)
def test_transforms_take_torch_and_refuse_triton(name):
    h, c = normal(5, 16).detach(), normal(12, 16, seed=1).detach()
    tangent = torch.func.jvp(
        lambda h: LAYERS[name](h, c, backend="auto"), (h,), (torch.ones_like(h),)
    )[1]
    step = 1e-6
    ends = [LAYERS[name](h.double() + sign * step, c.double(), backend="torch") for sign in (1, -1)]
    assert_close([tangent], [(ends[0] - ends[1]) / (2 * step)], torch.float32, 1e-4)
    with pytest.raises(BackendUnavailable):
        torch.func.jvp(lambda h: LAYERS[name](h, c, backend="triton"), (h,), (torch.ones_like(h),))


triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
attention = pytest.importorskip("flashsign.folds.kernels.attention_template")
rows = pytest.importorskip("flashsign.folds.kernels.attention_rows")


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
    random = torch.Generator().manual_seed(0)
    q, grad = (torch.randn(2, 4, 21, 16, generator=random).to(DEVICE) for _ in range(2))
    k, v = (torch.randn(2, 2, 33, 16, generator=random).to(DEVICE) for _ in range(2))
    m = (torch.rand(2, 2, 33, generator=random) + 0.1).to(DEVICE)
    o, totals = attention.forward(CUBES, q, k, v, m, 0.0)
    found = attention.backward(CUBES, grad, q, k, v, m, o, totals, 0.0)

    true = [x.double().requires_grad_() for x in (q, k, v, m)]
    all_k, all_v, all_m = (x.repeat_interleave(2, 1) for x in true[1:])
    s = true[0] @ all_k.mT * all_m[:, :, None]
    expected = s**3 @ all_v / (s**4).sum(-1, keepdim=True) ** 0.75
    slopes = torch.autograd.grad(expected, true, grad.double())
    for x, y in zip((o, *found), (expected.detach(), *slopes), strict=True):
        assert (x - y).norm() < 5e-6 * y.norm()
