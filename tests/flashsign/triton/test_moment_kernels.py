"""What the moments' kernels have of their own; laws of all:
attention/test_spherical_attention.py.
"""

import pytest
import torch
from kernel_cases import (
    assert_accurate,
    draw,
    ill_conditioned,
    poison,  # noqa: F401  uninitialised memory holds NaN here too
    with_gradients,
)

from flashsign import spherical_attention
from flashsign.triton.moments import moment_launches as moments


def kernels(*tensors, **options):
    return spherical_attention(*tensors, method="moments", backend="triton", **options)


def test_the_parts_of_a_bag_add_up(monkeypatch):
    """Many programs on one bag, as on a GPU: some without rows, each with multiplicities of its own
    size.
    """
    *tensors, grad = draw(keys=300, queries=290, cells=1, values=20, width=32)
    tensors[3][:, 128:256] *= 1e4
    tensors[3][:, 256:] = 0
    assert_accurate(kernels, tensors, grad)
    monkeypatch.setattr(moments.Passes, "splits", lambda *_: 7)
    assert_accurate(kernels, tensors, grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("condition", "values"), [(1.0, None), (1e2, 5), (1e3, None), (1e3, 5)])
def test_ill_conditioned_rows_are_accurate(condition, values, dtype):
    """The same bounds refuse a single TF32 product, m k rounded to 16 bits and more:
    test_accuracy.py.
    """
    assert_accurate(kernels, *ill_conditioned(condition, dtype, values=values))


@pytest.mark.parametrize("seed", [7, 22, 48])
def test_two_keys_leave_a_direction_of_a_narrow_head_empty(seed):
    """Absent keys along it, whose multiplicities have the largest gradients, show every error of
    the norms.
    """
    *tensors, grad = draw(keys=20, queries=50, width=3, values=33, dtype=torch.float16, seed=seed)
    tensors[3][:, 2:] = 0
    assert_accurate(kernels, tensors, grad)


@pytest.mark.parametrize("condition", [1.0, 1e3])
def test_the_same_call_twice_gives_the_same_bits(condition):
    tensors, grad = ill_conditioned(condition, torch.float16)
    first, second = (with_gradients(kernels, tensors, grad) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))
