"""Layers that are folds are the plain ones with their gradients, in torch and by their kernels.

Torch computes in float64 here. Kernels run on a GPU where there is one, else in Triton's
interpreter.
"""

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

import pytest
import torch
from kernel_cases import DEVICE, poison  # noqa: F401
from seeded import leaf, normal, written_out
from torch.nn import functional as F

from flashsign import (
    BackendUnavailable,
    distribution_cross_entropy,
    linear_cross_entropy,
    mlp,
    normalised_attention,
    rms_norm,
    spherical_attention,
    weighted_cross_entropy,
)

ROWS, CLASSES, WIDTH = 70, 133, 72
CHUNKS = {"row_chunk": 32, "class_chunk": 48}
BARS = {torch.float64: 1e-10, torch.float32: 5e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}


@dataclass(frozen=True)
class Mode:
    """A backend, and the dtype of a layer's tensors."""

    backend: str
    dtype: torch.dtype

    @property
    def device(self):
        return DEVICE if self.backend == "triton" else torch.device("cpu")

    @property
    def sums(self):
        """The dtype of losses, and of weights that are no layer's."""
        return torch.promote_types(self.dtype, torch.float32)

    def leaf(self, *shape, seed=0, scale=1.0, dtype=None):
        drawn = normal(*shape, seed=seed, dtype=torch.float32) * scale
        return drawn.to(self.device, dtype or self.dtype).requires_grad_()

    def by(self, **chunks):
        """Options of a layer: small slices, of which torch has several."""
        return {"backend": self.backend} | (chunks if self.backend == "torch" else {})

    def assert_same(self, layer, plain, leaves, bar=None):
        """layer(*leaves) has the output and the gradients that plain has in float64."""
        wide = [x.detach().double().requires_grad_(x.requires_grad) for x in leaves]
        found, expected = layer(*leaves), plain(*wide)
        grad = normal(*found.shape, seed=99).to(found)
        learning = [[x for x in each if x.requires_grad] for each in (leaves, wide)]
        slopes = torch.autograd.grad(found, learning[0], grad)
        truths = torch.autograd.grad(expected, learning[1], grad.double())
        assert [x.dtype for x in slopes] == [x.dtype for x in learning[0]]
        assert_close([found, *slopes], [expected, *truths], bar or BARS[self.dtype])


def assert_close(found, expected, bar):
    for x, y in zip(found, expected, strict=True):
        assert (x.double() - y).norm() < bar * y.norm().clamp(min=1e-30)


# Products of bfloat16 are wrong in the interpreter.
KERNELS = [torch.float32, torch.float16] + [torch.bfloat16] * (DEVICE.type == "cuda")
MODES = [Mode("torch", torch.float64), *(Mode("triton", dtype) for dtype in KERNELS)]


@pytest.fixture(params=MODES, ids=lambda mode: f"{mode.backend}_{str(mode.dtype)[6:]}")
def mode(request, monkeypatch):
    """Kernels have several slices of classes, the last one narrower."""
    if request.param.backend == "triton":
        if not find_spec("triton"):
            pytest.skip("there is no Triton here")
        entropies = import_module("flashsign.folds.kernels.entropies")
        monkeypatch.setattr(entropies, "SLICE_BYTES", 1)
        monkeypatch.setattr(entropies, "NARROWEST", 48)
    return request.param


def layer_of(mode, bias=False):
    """Rows, a layer's weight, and its bias."""
    h, c = mode.leaf(ROWS, WIDTH), mode.leaf(CLASSES, WIDTH, seed=1, scale=0.2)
    return [h, c, mode.leaf(CLASSES, seed=2)] if bias else [h, c]


def targets(device="cpu", rows=ROWS, classes=CLASSES):
    target = torch.arange(rows, device=device) * 7 % classes
    target[[2, 7]] = -100
    return target


@pytest.mark.parametrize(
    ("reduction", "label_smoothing", "bias"),
    [("none", 0.0, False), ("none", 0.2, True), ("sum", 0.0, True), ("mean", 0.2, False)],
)
def test_with_classes_it_is_torchs_cross_entropy(mode, reduction, label_smoothing, bias):
    target = targets(mode.device)
    options = {"reduction": reduction, "label_smoothing": label_smoothing}
    mode.assert_same(
        lambda h, c, *b: linear_cross_entropy(h, c, target, *b, **options, **mode.by(**CHUNKS)),
        lambda *layer: F.cross_entropy(F.linear(*layer), target, **options),
        layer_of(mode, bias),
    )


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_rows_have_weights_which_learn_too(mode, reduction):
    target = targets(mode.device)

    def plain(h, c, weights):
        losses = weights * F.cross_entropy(h @ c.mT, target, reduction="none", label_smoothing=0.2)
        return losses if reduction == "none" else losses.sum() / weights[target >= 0].sum()

    def layer(h, c, weights):
        options = {"reduction": reduction, "label_smoothing": 0.2, "row_weights": weights}
        return linear_cross_entropy(h, c, target, **options, **mode.by(**CHUNKS))

    weights = mode.leaf(ROWS, seed=8, dtype=mode.sums).detach().exp().requires_grad_()
    mode.assert_same(layer, plain, [*layer_of(mode), weights])


def test_weights_of_rows_are_not_rounded_to_16_bits():
    h, c = layer_of(Mode("torch", torch.bfloat16))
    weights = normal(ROWS, seed=8).exp().float()
    losses, found = (
        linear_cross_entropy(h, c, targets(), row_weights=each, reduction="none")
        for each in (None, weights)
    )
    assert found.dtype == torch.float32 and torch.equal(found, weights * losses)


def test_another_ignored_index_axes_of_rows_and_a_mean_over_nothing():
    h, c = leaf(3, 4, 5), leaf(29, 5, seed=1)
    target = targets(rows=12, classes=29).unflatten(0, (3, 4)).clamp(min=5)
    found = linear_cross_entropy(h, c, target, ignore_index=5, reduction="none")
    logits = (h @ c.mT).movedim(-1, 1)
    expected = F.cross_entropy(logits, target, ignore_index=5, reduction="none")
    torch.testing.assert_close(found, expected)
    nothing = torch.full((3, 4), -100)
    assert linear_cross_entropy(h, c, nothing).isnan() and F.cross_entropy(logits, nothing).isnan()
    assert linear_cross_entropy(h, c, nothing, reduction="sum") == 0


@pytest.mark.parametrize("form", ["a list for each row", "one list", "packed"])
@pytest.mark.parametrize("bias", [False, True])
def test_with_weights_of_listed_classes(mode, form, bias):
    """A class may be listed twice, padding is below 0; sums of weights are not one."""
    random = torch.Generator().manual_seed(3)
    classes, rows = torch.randint(-1, CLASSES, (ROWS, 9), generator=random), torch.arange(ROWS)
    classes[:, 1], offsets = classes[:, 2], None
    rows = rows[:, None].expand(-1, 9)
    if form == "one list":
        classes = classes[5].clamp(min=0)
    elif form == "packed":  # rows of 0 to 5 classes
        sizes = torch.arange(ROWS) % 6
        rows = torch.repeat_interleave(torch.arange(ROWS), sizes)
        classes = classes.flatten()[: len(rows)].clamp(min=0)
        offsets = F.pad(sizes.cumsum(0), (1, 0)).to(mode.device)
    classes, rows = classes.to(mode.device), rows.to(mode.device)

    def layer(h, c, weights, *b):
        options = {"offsets": offsets, "reduction": "none", **mode.by(**CHUNKS)}
        return weighted_cross_entropy(h, c, classes, weights, *b, **options)

    def plain(h, c, weights, *b):
        there = classes.expand_as(rows) >= 0
        at = rows[there], classes.expand_as(rows)[there]
        losses = -weights[there] * F.linear(h, c, *b).log_softmax(-1)[at]
        return losses.new_zeros(ROWS).index_add(0, at[0], losses)

    h, c, *b = layer_of(mode, bias)
    weights = mode.leaf(*rows.shape, seed=4, dtype=mode.sums).detach().exp().requires_grad_()
    mode.assert_same(layer, plain, [h, c, weights, *b])
    if mode.backend == "torch":
        losses = layer(h, c, weights, *b)
        for reduction in ("sum", "mean"):
            options = {"offsets": offsets, "reduction": reduction}
            found = weighted_cross_entropy(h, c, classes, weights, *b, **options)
            torch.testing.assert_close(found, getattr(losses, reduction)())


@pytest.mark.parametrize("frozen", [(), (0, 1), (2, 3)])
def test_between_two_distributions_both_learn(mode, frozen):
    shapes = (ROWS, WIDTH), (CLASSES, WIDTH), (ROWS, 40), (CLASSES, 40)
    leaves = [mode.leaf(*s, seed=i, scale=0.2 if i % 2 else 1.0) for i, s in enumerate(shapes)]
    mode.assert_same(
        lambda *four: distribution_cross_entropy(*four, reduction="none", **mode.by(**CHUNKS)),
        lambda s, c, t, d: F.cross_entropy(s @ c.mT, (t @ d.mT).softmax(-1), reduction="none"),
        [x.detach() if number in frozen else x for number, x in enumerate(leaves)],
    )


ACTIVATIONS = {"gelu": F.gelu, "silu": F.silu, "relu": F.relu}


def plain_mlp(activation, x, up, down, bias=None, down_bias=None, gate=None):
    act, hidden = ACTIVATIONS[activation], F.linear(x, up, bias)
    units = act(hidden) if gate is None else act(F.linear(x, gate)) * hidden
    return F.linear(units, down, down_bias)


@pytest.mark.parametrize(
    ("gated", "bias"), [(False, False), (False, True), (True, False), (True, True)]
)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_mlp_is_the_plain_one(mode, activation, gated, bias):
    shapes = {"x": (2, 35, 24), "up": (72, 24), "down": (40, 72)}
    shapes |= {"bias": (72,), "down_bias": (40,)} if bias else {}
    shapes |= {"gate": (72, 24)} if gated else {}
    scales = {"up": 0.3, "down": 0.3, "gate": 0.3}
    leaves = [
        mode.leaf(*shape, seed=number, scale=scales.get(name, 1.0))
        for number, (name, shape) in enumerate(shapes.items())
    ]
    options = {"activation": activation, **mode.by(row_chunk=32, hidden_chunk=20)}
    mode.assert_same(
        lambda *tensors: mlp(**dict(zip(shapes, tensors, strict=True)), **options),
        lambda *tensors: plain_mlp(activation, **dict(zip(shapes, tensors, strict=True))),
        leaves,
    )


NORMALISERS = ["spherical", "l1", "squared_relu", "softmax"]
every_normaliser = pytest.mark.parametrize("normaliser", NORMALISERS)


@every_normaliser
@pytest.mark.parametrize("multiplicities", ["none", "of keys", "of keys and heads"])
def test_attention_by_any_normaliser_is_the_one_written_out(mode, normaliser, multiplicities):
    leaves = [
        mode.leaf(2, 4, 37, 24, scale=0.3),
        *(mode.leaf(2, 2, 41, 24, seed=i) for i in (1, 2)),
    ]
    if multiplicities != "none":
        heads = (2,) * multiplicities.endswith("heads")
        m = mode.leaf(2, *heads, 41, seed=3, dtype=mode.sums).detach().abs() + 0.1
        leaves.append(m.requires_grad_())
    ones = torch.ones(2, 41, device=mode.device)
    mode.assert_same(
        lambda *x: normalised_attention(*x, normaliser=normaliser, eps=0.01, **mode.by()),
        lambda q, k, v, m=ones: written_out(normaliser, q, k, v, m, 0.01),
        leaves,
        # |s| has a jump in its slope: a score near 0 may be rounded to the other side.
        10 * BARS[mode.dtype] if normaliser == "l1" else None,
    )


@every_normaliser
def test_absent_keys_are_left_out_and_rows_without_weights_are_zero(mode, normaliser):
    q, k, v = (mode.leaf(1, 1, rows, 16, seed=rows) for rows in (5, 9, 9))
    k.data[:, :, 7], v.data[:, :, 7] = torch.nan, torch.inf
    m = torch.arange(9.0, device=mode.device)[None] % 7
    options = {"normaliser": normaliser, **mode.by()}
    kept = m[0] != 0
    found = normalised_attention(q, k, v, m, **options)
    expected = normalised_attention(q, k[:, :, kept], v[:, :, kept], m[:, kept], **options)
    torch.testing.assert_close(found, expected)
    nothing = normalised_attention(q, k, v, 0 * m, **options)
    gradients = torch.autograd.grad(nothing.sum(), (q, k, v))
    assert not nothing.any() and all(x.isfinite().all() for x in gradients)


def bag(per_head=False):
    q, k, v = leaf(2, 4, 5, 3), leaf(2, 2, 7, 3, seed=1), leaf(2, 2, 7, 3, seed=2)
    m = normal(2, *(2,) * per_head, 7, seed=3).abs().requires_grad_()
    return q, k, v, m


@every_normaliser
@pytest.mark.parametrize("per_head", [False, True])
def test_packed_bags_are_dense_ones(normaliser, per_head):
    """Bags of 3, 0 and 4 keys with 2, 1 and 3 queries; a key is absent."""
    (q, k, v, m), options = bag(per_head), {"normaliser": normaliser, "eps": 0.0}
    m.data[0, ..., 1] = 0
    sizes = ((2, 3), (1, 0), (3, 4))
    parts = [
        (q[at % 2, :, :rows], *(x[at % 2, :, :keys] for x in (k, v)), m[at % 2, ..., :keys])
        for at, (rows, keys) in enumerate(sizes)
    ]
    dense = [normalised_attention(*(x[None] for x in part), **options)[0] for part in parts]
    rows = [torch.cat([part[at].transpose(0, 1) for part in parts]) for at in range(3)]
    rows.append(torch.cat([part[3].mT if per_head else part[3] for part in parts]))
    cut = {"offsets": torch.tensor([0, 3, 3, 7]), "query_offsets": torch.tensor([0, 2, 3, 6])}
    found = normalised_attention(*rows, **cut, **options)
    expected = torch.cat([each.transpose(0, 1) for each in dense])
    torch.testing.assert_close(found, expected)
    slopes = (torch.autograd.grad(x.sin().sum(), (q, k, v, m)) for x in (found, expected))
    torch.testing.assert_close(*slopes)


def test_the_spherical_one_is_spherical_attention():
    leaves = bag()
    expected = spherical_attention(*leaves, method="stream")
    torch.testing.assert_close(normalised_attention(*leaves), expected)


@pytest.mark.parametrize("shape", [(24,), (50, 24), (3, 7, 300)])
@pytest.mark.parametrize("weighted", [False, True])
def test_rms_norm_is_torchs(mode, shape, weighted):
    mode.assert_same(
        lambda x, *weight: rms_norm(x, *weight, eps=1e-3, **mode.by()),
        lambda x, *weight: F.rms_norm(x, shape[-1:], *weight, eps=1e-3),
        [mode.leaf(*shape), *[mode.leaf(shape[-1], seed=1)] * weighted],
    )


def test_rms_norm_keeps_its_input_and_one_number_a_row():
    x, weight, kept = leaf(100, 64), leaf(64, seed=1), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        rms_norm(x, weight)
    assert sorted(t.numel() for t in kept) == [64, 100, 6400]
    assert any(t.data_ptr() == x.data_ptr() for t in kept)


LAYERS = {
    "classes": lambda h, c, **o: linear_cross_entropy(
        h, c, torch.arange(5, device=h.device), reduction="none", label_smoothing=0.1, **o
    ),
    "distributions": lambda h, c, **o: distribution_cross_entropy(
        h, c, h.flip(0), c.flip(1), reduction="none", **o
    ),
    "weights": lambda h, c, **o: weighted_cross_entropy(
        h, c, torch.arange(3, device=h.device), h[:, :3].square(), reduction="none", **o
    ),
    "mlp": lambda h, c, **o: mlp(h, c, c.mT, activation="silu", **o),
    "attention": lambda h, c, **o: normalised_attention(
        h[None, None], c[None, None], c[None, None], **o
    ),
    "rms_norm": lambda h, c, **o: rms_norm(h, c[0], **o),
}
every_layer = pytest.mark.parametrize("name", LAYERS)


def tensors(mode):
    return mode.leaf(5, 16), mode.leaf(12, 16, seed=1, scale=0.5)


@every_layer
def test_second_derivatives_are_finite_differences(name):
    call = lambda h, c: LAYERS[name](h, c, backend="torch")  # noqa: E731
    assert torch.autograd.gradgradcheck(call, tensors(MODES[0]), fast_mode=True)


needs_triton = pytest.mark.skipif(not find_spec("triton"), reason="there is no Triton here")


@needs_triton
@every_layer
def test_second_derivatives_and_batched_ones_of_kernels_are_those_of_torch(name):
    found = []
    for backend in ("triton", "torch"):
        leaves = tensors(Mode("triton", torch.float32))
        output = LAYERS[name](*leaves, backend=backend)
        slopes = torch.autograd.grad(output.square().sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum((x * x.sin()).sum() for x in slopes), leaves)
        output = LAYERS[name](*leaves, backend=backend)
        many = torch.stack([torch.ones_like(output), output.detach()])
        batched = torch.autograd.grad(output, leaves, many, is_grads_batched=True)
        found.append((*slopes, *second, *batched))
    # On a GPU the losses are saturated: three TF32 products have a float32 product's accuracy, not
    # its bits.
    assert_close(found[0], [x.double() for x in found[1]], 1e-3)


@needs_triton
@every_layer
def test_transforms_take_torch_and_refuse_triton(name):
    h, c = (x.detach() for x in tensors(Mode("triton", torch.float32)))
    moved = ((h,), (torch.ones_like(h),))
    tangent = torch.func.jvp(lambda h: LAYERS[name](h, c, backend="auto"), *moved)[1]
    step = 1e-6
    ends = [LAYERS[name](h.double() + sign * step, c.double(), backend="torch") for sign in (1, -1)]
    assert_close([tangent], [(ends[0] - ends[1]) / (2 * step)], 1e-4)
    with pytest.raises(BackendUnavailable):
        torch.func.jvp(lambda h: LAYERS[name](h, c, backend="triton"), *moved)


# The shapes of the tensors; the layer; torch's own; errors of output and gradients over torch's.
HALVES = {
    "classes": (
        ((13, 5), (29, 5), (29,)),
        lambda h, c, b: linear_cross_entropy(h, c, targets(rows=13, classes=29), b),
        lambda *of: F.cross_entropy(
            F.linear(*of).to(torch.promote_types(of[0].dtype, torch.float32)),
            targets(rows=13, classes=29),
        ),
        (1, 1.05),
    ),
    "mlp": (((40, 64), (512, 64), (64, 512)), mlp, lambda *of: plain_mlp("gelu", *of), (1, 1)),
    "rms_norm": (
        ((50, 256),),
        rms_norm,
        lambda x: F.rms_norm(x, (256,), None, 1e-6),
        (1.01, 1.05),
    ),
}


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_loses_no_more_than_torch(name, dtype):
    """Sums are float32, and gradients are rounded once, at their end."""
    shapes, layer, plain, (of_output, of_slopes) = HALVES[name]
    leaves = [normal(*s, seed=i).to(dtype).requires_grad_() for i, s in enumerate(shapes)]
    wide = [x.detach().double().requires_grad_() for x in leaves]
    (truth, *truths), (found, *slopes), (torchs, *others) = (
        (output, *torch.autograd.grad(output.double().sin().sum(), each))
        for output, each in (
            (plain(*wide), wide),
            (layer(*leaves), leaves),
            (plain(*leaves), leaves),
        )
    )
    assert (found - truth).norm() <= of_output * (torchs - truth).norm() + 1e-6
    for slope, other, true in zip(slopes, others, truths, strict=True):
        assert slope.dtype == dtype
        assert (slope - true).norm() <= of_slopes * (other - true).norm()
