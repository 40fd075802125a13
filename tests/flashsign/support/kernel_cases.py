"""What the tests of the Triton kernels share: bags, gradients, and how errors are measured.

The kernels run on a GPU where there is one, else in Triton's interpreter.
"""

import pytest
import torch

from flashsign import spherical_attention
from flashsign.reference import reference_spherical_attention

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NAMES = ("o", "dq", "dk", "dv", "dm")


@pytest.fixture(autouse=True)
def poison():
    """Memory that nobody wrote holds NaN."""
    torch.use_deterministic_algorithms(True)  # which fills what torch.empty gives
    yield
    torch.use_deterministic_algorithms(False)


def draw(cells=2, heads=4, key_heads=2, queries=30, keys=40, width=16, dtype=torch.float32, per_head=False, seed=0):
    """q, k, v, m and a gradient for the output."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=random).to(DEVICE, dtype)

    m = torch.rand(cells, *([key_heads] if per_head else []), keys, generator=random) * 2 + 0.1
    q, grad = normal(cells, heads, queries, width), normal(cells, heads, queries, width)
    return q, normal(cells, key_heads, keys, width), normal(cells, key_heads, keys, width), m.to(DEVICE), grad


def with_gradients(attend, tensors, grad):
    leaves = [x.detach().clone(memory_format=torch.preserve_format).requires_grad_() for x in tensors]
    output = attend(*leaves)
    return (output.detach(), *torch.autograd.grad(output, leaves, grad.to(output.dtype)))


def exact(*tensors, **options):
    return spherical_attention(*tensors, method="stream", backend="torch", **options)


def doubled(tensors):
    return [x.double() for x in tensors]


def errors(found, true):
    return {
        name: float((x.double() - y).norm() / y.norm().clamp_min(1e-30))
        for name, x, y in zip(NAMES, found, true, strict=True)
    }


def assert_as_accurate_as_torch(attend, tensors, grad, ulps=4):
    """Errors against float64 at most one and a half times those of materialised torch in the same dtype, and a slack.

    The slack counts where there are so few numbers that torch's error is a matter of luck: half a unit in the last
    place of 16 bits, and four (ulps) of float32, whose products the kernels make of three TF32 ones.
    """
    true = with_gradients(reference_spherical_attention, doubled(tensors), grad.double())
    ours = errors(with_gradients(attend, tensors, grad), true)
    m = tensors[3].to(tensors[0].dtype)
    torchs = errors(with_gradients(reference_spherical_attention, (*tensors[:3], m), grad), true)
    eps = torch.finfo(tensors[0].dtype).eps
    slack = ulps * eps if tensors[0].dtype == torch.float32 else eps / 2
    assert all(ours[name] <= 1.5 * torchs[name] + slack for name in NAMES), (ours, torchs)


def packed(q, k, v, m, grad):
    """A few bags of one dense cell, packed, some of them empty."""
    offsets = torch.tensor([0, 5, 5, 33, 40], device=DEVICE)
    query_offsets = torch.tensor([0, 3, 10, 29, 30], device=DEVICE)
    rows = [x[0].transpose(0, 1).contiguous() for x in (q, k, v)]
    return [*rows, m[0].mT.contiguous() if m.ndim == 3 else m[0]], grad[0].transpose(0, 1), offsets, query_offsets
