"""A row of one's own, four functions, is all that the template of attention needs: here cubes over their L4 norm."""

import pytest
import torch
from kernel_cases import DEVICE

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
attention = pytest.importorskip("flashsign.triton.folds.attention")
rows = pytest.importorskip("flashsign.triton.folds.attention_rows")


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
