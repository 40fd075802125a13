"""MLPs without a hidden layer in memory are the plain ones,
for 14 operations where those take 12.
"""

import pytest
import torch
from peak_bytes import PeakBytes
from seeded import leaf as normal
from torch.nn import functional as F

from flashsign import mlp

ACTIVATIONS = {"gelu": F.gelu, "silu": F.silu, "relu": F.relu}
CHUNKS = {"row_chunk": 4, "hidden_chunk": 7}
WIDTH, HIDDEN, OUT = 5, 29, 3


def weights(gated):
    shapes = ((HIDDEN, WIDTH), (OUT, HIDDEN), (HIDDEN,), (OUT,), *((HIDDEN, WIDTH),) * gated)
    return [normal(*shape, seed=seed) for seed, shape in enumerate(shapes, 1)]


def plain(x, up, down, bias=None, down_bias=None, gate=None, activation="gelu"):
    hidden = F.linear(x, up, bias)
    act = ACTIVATIONS[activation]
    return F.linear(
        act(hidden) if gate is None else act(F.linear(x, gate)) * hidden, down, down_bias
    )


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_it_is_the_plain_mlp_with_its_gradients(activation, gated, with_bias):
    x = normal(2, 6, WIDTH)
    up, down, bias, down_bias, *gate = weights(gated)
    biases = (bias, down_bias) if with_bias else (None, None)
    options = {"gate": gate[0] if gated else None, "activation": activation}
    leaves = [tensor for tensor in (x, up, down, *biases, *gate) if tensor is not None]
    outputs = mlp(x, up, down, *biases, **options, **CHUNKS), plain(x, up, down, *biases, **options)
    torch.testing.assert_close(*outputs)
    torch.testing.assert_close(
        *(torch.autograd.grad(output.sin().sum(), leaves) for output in outputs)
    )


def test_second_derivatives_are_right():
    x, (up, down, bias, down_bias) = normal(3, WIDTH), weights(False)
    call = lambda *tensors: mlp(*tensors, activation="silu", **CHUNKS)  # noqa: E731
    assert torch.autograd.gradgradcheck(call, (x, up, down, bias, down_bias))


def test_half_precision_is_as_accurate_as_torch():
    x, up, down = (
        tensor.detach().bfloat16().requires_grad_()
        for tensor in (normal(40, 64), normal(512, 64), normal(64, 512))
    )
    wide = [tensor.detach().double().requires_grad_() for tensor in (x, up, down)]
    truth = plain(*wide)
    found, torchs = mlp(x, up, down, **CHUNKS), plain(x, up, down)
    assert found.dtype == torch.bfloat16
    assert (found - truth).norm() <= (torchs - truth).norm()
    grads = [
        torch.autograd.grad(output.sum(), leaves)
        for output, leaves in ((found, (x, up, down)), (torchs, (x, up, down)))
    ]
    for slope, other, true in zip(*grads, torch.autograd.grad(truth.sum(), wide), strict=True):
        assert (slope - true).norm() <= (other - true).norm()


ROWS = HIDDEN_UNITS = 16_384
NARROW = 128


@pytest.mark.parametrize("gated", [False, True])
def test_extra_memory_at_full_size_is_three_percent_of_the_hidden_tensors(gated):
    """B = K = 16 384, D = 128, bf16, counted on the meta device: beyond inputs, output and
    gradients.
    """
    x, up, down, gate = (
        torch.empty(shape, device="meta", dtype=torch.bfloat16, requires_grad=True)
        for shape in (
            (ROWS, NARROW),
            (HIDDEN_UNITS, NARROW),
            (NARROW, HIDDEN_UNITS),
            (HIDDEN_UNITS, NARROW),
        )
    )
    leaves = (x, up, down, gate)[: 3 + gated]
    options = {"gate": gate if gated else None, "activation": "silu"}
    with PeakBytes() as memory:
        output = mlp(x, up, down, **options)
        gradients = torch.autograd.grad(output, leaves, torch.empty_like(output))
    extra = memory.peak - 2 * 2 * output.numel() - sum(2 * grad.numel() for grad in gradients)
    assert extra <= 0.03 * (2 + gated) * 2 * ROWS * HIDDEN_UNITS, extra
