"""What the moments' kernels have of their own; laws of all kernels: test_kernels.py."""

import pytest
import torch
from kernel_cases import (
    DEVICE,
    assert_as_accurate_as_torch,
    doubled,
    draw,
    errors,
    exact,
    poison,  # noqa: F401  memory that nobody wrote holds NaN here too
    with_gradients,
)

from flashsign import BackendUnavailable, spherical_attention
from flashsign.triton.moments import calls as moments
from flashsign.triton.moments import forward as moment_forward
from flashsign.triton.moments import ill_conditioned_rows as weak_rows


def kernels(*tensors, **options):
    return spherical_attention(*tensors, method="moments", backend="triton", **options)


def test_shares_of_a_bag_add_up(monkeypatch):
    """Many programs on one bag, as on a GPU: some without rows, each with multiplicities of its own size."""
    *tensors, grad = draw(keys=300, queries=290, cells=1)
    tensors[3][:, 128:256] *= 1e4
    tensors[3][:, 256:] = 0
    whole = with_gradients(kernels, tensors, grad)
    monkeypatch.setattr(moments.Call, "shares", lambda *_: 7)
    shared = with_gradients(kernels, tensors, grad)
    true = with_gradients(exact, doubled(tensors), grad)
    for found in (whole, shared):
        assert max(errors(found, true).values()) < 3e-6


def along_weak_directions(condition, dtype, width=32, keys=300):
    """Keys of a condition number, and a third of the queries along what the keys hardly have."""
    q, k, v, m, grad = draw(cells=1, queries=60, keys=keys, width=width)
    random = torch.Generator().manual_seed(1)
    basis = torch.linalg.qr(torch.randn(width, width, generator=random))[0].to(DEVICE)
    sizes = torch.logspace(0, -float(torch.tensor(condition).log10()), width, device=DEVICE)
    k = k * sizes @ basis
    q[:, :, ::3] = q[:, :, ::3] / sizes / condition @ basis * 5
    return [x.to(dtype) for x in (q, k, v)] + [m], grad.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("condition", [1.0, 1e2, 1e3])
def test_rows_along_weak_directions_are_as_accurate_as_torch(condition, dtype):
    """Of float32's sums of gradients such rows want more digits than there are: 400 units, at a condition of 1000."""
    assert_as_accurate_as_torch(kernels, *along_weak_directions(condition, dtype), ulps=0.4 * condition + 4)


def test_fewer_keys_than_the_width_of_a_head():
    *tensors, grad = draw(keys=5, width=32)
    assert_as_accurate_as_torch(kernels, tensors, grad, ulps=16)


def test_weak_rows_are_listed_and_no_others(monkeypatch):
    (q, k, v, m), _ = along_weak_directions(1e3, torch.float16)
    m = m[:, None]
    found = []
    monkeypatch.setattr(moments.Call, "attend_weak", lambda call, squares, o, inverse, weak: found.append(weak))
    _, inverse, _, totals = moments.forward(q, k, v, m, None, None, 1e-6)
    t = totals[:, 3].sum(-1)  # of keys in units of their multiplicities
    wide = q.double()
    rho = 1 / (inverse.double() ** 2 * wide.square().sum(-1) * t.double()[None].repeat_interleave(2, 1)[..., None])
    rows, count = found[0]
    assert count.tolist() == (rho < 1e-4).view(2, -1).sum(1).tolist()
    for key_head, listed in enumerate(rows.view(2, -1)):
        weak = (rho < 1e-4).view(2, -1)[key_head].nonzero()[:, 0]
        assert listed[: len(weak)].sort().values.tolist() == weak.tolist()


def test_the_random_row_is_never_weak():
    assert weak_rows.WEAK < moment_forward.DOUBTED / moments_widest() < 1 / moments_widest()


def moments_widest():
    from flashsign import dispatch as kernel_attention

    return kernel_attention.WIDEST["moments"]


@pytest.mark.parametrize("condition", [1.0, 1e3])
def test_the_same_call_twice_gives_the_same_bits(condition):
    tensors, grad = along_weak_directions(condition, torch.float16)
    first, second = (with_gradients(kernels, tensors, grad) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


def test_heads_too_wide_for_moments_are_refused_with_the_reason():
    *tensors, _ = draw(width=160)
    with pytest.raises(BackendUnavailable, match="of moments take heads at most 128 wide, and q's are 160"):
        kernels(*tensors)
