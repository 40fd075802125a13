import pytest
import torch
from seeded import leaf as normal
from torch.nn import functional as F

from flashsign import rms_norm


@pytest.mark.parametrize("shape", [(7, 5), (2, 3, 5), (5,)])
@pytest.mark.parametrize("weighted", [False, True])
def test_it_is_torchs_rms_norm_with_its_gradients(shape, weighted):
    x, weight = normal(*shape), normal(5, seed=1) if weighted else None
    leaves = [x, weight] if weighted else [x]
    outputs = rms_norm(x, weight, 1e-3), F.rms_norm(x, (5,), weight, 1e-3)
    torch.testing.assert_close(*outputs)
    torch.testing.assert_close(
        *(torch.autograd.grad(output.sin().sum(), leaves) for output in outputs)
    )


def test_it_keeps_its_input_and_one_number_a_row():
    x, weight, kept = normal(100, 64), normal(64, seed=1), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        rms_norm(x, weight)
    assert sorted(t.numel() for t in kept) == [64, 100, 6400]
    assert any(t.data_ptr() == x.data_ptr() for t in kept)


def test_half_precision_is_as_accurate_as_torch():
    x = normal(50, 256).detach().bfloat16().requires_grad_()
    wide = x.detach().double().requires_grad_()
    truth = F.rms_norm(wide, (256,), None, 1e-6)
    found, torchs = rms_norm(x), F.rms_norm(x, (256,), None, 1e-6)
    assert found.dtype == torch.bfloat16
    assert (found - truth).norm() <= 1.01 * (torchs - truth).norm()
    slopes = [torch.autograd.grad(output.double().sin().sum(), x)[0] for output in (found, torchs)]
    (true,) = torch.autograd.grad(truth.sin().sum(), wide)
    assert (slopes[0] - true).norm() <= 1.05 * (slopes[1] - true).norm()


def test_second_derivatives_are_right():
    x, weight = normal(3, 5), normal(5, seed=1)
    assert torch.autograd.gradcheck(rms_norm, (x, weight))
    assert torch.autograd.gradgradcheck(rms_norm, (x, weight))
