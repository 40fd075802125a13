"""The Triton kernels against float64 references: on a GPU where there is one, else in Triton's interpreter."""

import functools

import pytest
import torch

from flashsign import BackendUnavailable, ShapeMismatch, kernel_attention, operators, spherical_attention
from flashsign.reference import reference_spherical_attention

pytest.importorskip("triton")
stream = pytest.importorskip("flashsign.triton.stream")
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


def kernels(*tensors, **options):
    return spherical_attention(*tensors, method="stream", backend="triton", **options)


def exact(*tensors, **options):
    return spherical_attention(*tensors, method="stream", backend="torch", **options)


def doubled(tensors):
    return [x.double() for x in tensors]


def errors(found, true):
    return {
        name: float((x.double() - y).norm() / y.norm().clamp_min(1e-30))
        for name, x, y in zip(NAMES, found, true, strict=True)
    }


def assert_as_accurate_as_torch(tensors, grad):
    """Errors against float64 at most one and a half times those of materialised torch in the same dtype, and a slack.

    The slack counts where there are so few numbers that torch's error is a matter of luck: half a unit in the last
    place of 16 bits, and four of float32, whose products the kernels make of three TF32 ones.
    """
    true = with_gradients(reference_spherical_attention, doubled(tensors), grad.double())
    ours = errors(with_gradients(kernels, tensors, grad), true)
    m = tensors[3].to(tensors[0].dtype)
    torchs = errors(with_gradients(reference_spherical_attention, (*tensors[:3], m), grad), true)
    eps = torch.finfo(tensors[0].dtype).eps
    slack = 4 * eps if tensors[0].dtype == torch.float32 else eps / 2
    assert all(ours[name] <= 1.5 * torchs[name] + slack for name in NAMES), (ours, torchs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"queries": 1, "keys": 7},
        {"queries": 67, "keys": 3, "heads": 2, "key_heads": 1},
        {"width": 20, "keys": 33},
        {"width": 33, "heads": 2},
        {"per_head": True},
        {"width": 64, "queries": 9, "keys": 130, "cells": 1},
    ],
    ids=str,
)
def test_outputs_and_gradients_are_as_accurate_as_torch_in_the_same_dtype(sizes, dtype):
    *tensors, grad = draw(dtype=dtype, **sizes)
    assert_as_accurate_as_torch(tensors, grad)


def test_eps_counts_forward_and_backward():
    *tensors, grad = draw()
    for eps in (1e-6, 0.3):
        found = with_gradients(lambda *x, eps=eps: kernels(*x, eps=eps), tensors, grad)
        true = with_gradients(lambda *x, eps=eps: exact(*x, eps=eps), doubled(tensors), grad)
        assert max(errors(found, true).values()) < 2e-6


def test_absent_keys_matter_to_nothing_whatever_they_hold():
    q, k, v, m, grad = draw()
    m[:, 5:9] = 0
    clean = with_gradients(kernels, (q, k, v, m), grad)
    k[:, :, 6], v[:, :, 7], v[:, :, 8] = torch.nan, torch.nan, torch.inf
    q_broken = with_gradients(kernels, (q, k, v, m), grad)
    true = with_gradients(exact, doubled((q, k, v, m)), grad)
    torch.testing.assert_close(q_broken[0], clean[0])
    assert max(errors(q_broken, true).values()) < 1e-6
    assert true[4][:, 5].abs().min() > 0  # an absent key has a derivative all the same


def test_a_broken_number_of_a_present_key_is_not_hidden():
    q, k, v, m, _ = draw()
    v[0, 0, 3, 2] = torch.nan
    assert kernels(q, k, v, m)[0, 0, :, 2].isnan().all()


def packed(q, k, v, m, grad):
    """A few bags of one dense cell, packed, some of them empty."""
    offsets = torch.tensor([0, 5, 5, 33, 40], device=DEVICE)
    query_offsets = torch.tensor([0, 3, 10, 29, 30], device=DEVICE)
    rows = [x[0].transpose(0, 1).contiguous() for x in (q, k, v)]
    return [*rows, m[0].mT.contiguous() if m.ndim == 3 else m[0]], grad[0].transpose(0, 1), offsets, query_offsets


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("per_head", [False, True])
def test_packed_bags_are_the_bags_one_by_one(dtype, per_head):
    tensors, grad, offsets, query_offsets = packed(*draw(cells=1, width=20, dtype=dtype, per_head=per_head))
    cut = {"offsets": offsets, "query_offsets": query_offsets}
    found = with_gradients(lambda *x: kernels(*x, **cut), tensors, grad)
    true = with_gradients(lambda *x: exact(*x, **cut), doubled(tensors), grad)
    assert max(errors(found, true).values()) < 4 * torch.finfo(dtype).eps


def test_packed_bags_work_in_inference_mode():
    (q, k, v, m), _, offsets, query_offsets = packed(*draw(cells=1))
    expected = kernels(q, k, v, m, offsets=offsets, query_offsets=query_offsets)
    with torch.inference_mode():
        cut = {"offsets": offsets.clone(), "query_offsets": query_offsets.clone()}
        assert torch.equal(kernels(q, k, v, m, **cut), expected)


def test_offsets_that_change_are_looked_at_again():
    (q, k, v, m), _, offsets, query_offsets = packed(*draw(cells=1))
    kernels(q, k, v, m, offsets=offsets, query_offsets=query_offsets)
    offsets[1:3] = 12
    changed = kernels(q, k, v, m, offsets=offsets, query_offsets=query_offsets)
    assert torch.equal(changed, kernels(q, k, v, m, offsets=offsets.clone(), query_offsets=query_offsets))


def test_a_broken_bag_leaves_its_neighbours_alone():
    (q, k, v, m), grad, offsets, query_offsets = packed(*draw(cells=1))
    cut = {"offsets": offsets, "query_offsets": query_offsets}
    clean = with_gradients(lambda *x: kernels(*x, **cut), (q, k, v, m), grad)
    k[40 - 7 :], v[40 - 7 :], q[29:], grad[29:] = (torch.nan,) * 4
    broken = with_gradients(lambda *x: kernels(*x, **cut), (q, k, v, m), grad)
    last = (29, 29, 33, 33, 33)
    for name, x, y, end in zip(NAMES, broken, clean, last, strict=True):
        torch.testing.assert_close(x[:end], y[:end], msg=name)


@pytest.mark.parametrize("strided", [False, True])
def test_layout_is_nobodys_business(strided):
    q, k, v, m, grad = draw()
    if strided:
        q, k, v, grad = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v, grad))
    else:
        q, k = (torch.cat([x, x], -1)[..., 1:17] for x in (q, k))  # rows that do not start at 16 bytes
    found = with_gradients(kernels, (q, k, v, m), grad)
    true = with_gradients(exact, doubled((q, k, v, m)), grad)
    assert max(errors(found, true).values()) < 1e-6


@pytest.mark.parametrize("power", [-6, 5])
def test_powers_of_two_in_queries_or_multiplicities_change_no_bit(power):
    q, k, v, m, _ = draw()
    output = kernels(q, k, v, m)
    assert torch.equal(kernels(q * 2.0**power, k, v, m), output)
    assert torch.equal(kernels(q, k, v, m * 2.0 ** (4 * power)), output)


def test_a_multiplicity_of_100000_beside_one_of_1():
    q, k, v, m, grad = draw(dtype=torch.float16)
    m[:, ::5] = 1e5
    found = with_gradients(kernels, (q, k, v, m), grad)
    true = with_gradients(exact, doubled((q, k, v, m)), grad)
    assert max(errors(found, true).values()) < 2e-3


@pytest.mark.parametrize("moments", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_dq_is_the_same_streamed_and_from_moments(moments, dtype):
    q, k, v, m, grad = draw(dtype=dtype, keys=70)
    o, inverse = stream.forward(q, k, v, m[:, None], None, None, 1e-6)
    dq = stream.backward(grad, q, k, v, m[:, None], o, inverse, None, None, 1e-6, moments=moments)[0]
    true = with_gradients(exact, doubled((q, k, v, m)), grad)[1]
    assert float((dq.double() - true).norm() / true.norm()) < 4 * torch.finfo(dtype).eps


@pytest.mark.parametrize("condition", [1e2, 1e3])
def test_queries_along_directions_that_keys_hardly_have_get_an_accurate_dq(condition):
    """Moments have lost such directions to rounding, so these tiles are streamed."""
    q, k, v, m, grad = draw(queries=40, keys=90)
    basis = torch.linalg.qr(torch.randn(16, 16, generator=torch.Generator().manual_seed(1)))[0].to(DEVICE)
    k = k * torch.logspace(0, -float(torch.tensor(condition).log10()), 16, device=DEVICE) @ basis
    q[:, :, ::3] = basis[-1] + 1e-3 * q[:, :, ::3] * 1e-2
    o, inverse = stream.forward(q, k, v, m[:, None], None, None, 1e-6)
    dq = stream.backward(grad, q, k, v, m[:, None], o, inverse, None, None, 1e-6, moments=True)[0]
    true = with_gradients(exact, doubled((q, k, v, m)), grad)[1]
    weak = slice(None, None, 3)
    assert float((dq[:, :, weak].double() - true[:, :, weak]).norm() / true[:, :, weak].norm()) < 1e-3


def test_the_same_call_twice_gives_the_same_bits():
    *tensors, grad = draw(dtype=torch.float16, keys=150)
    first, second = (with_gradients(kernels, tensors, grad) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


def test_second_derivatives_are_those_of_torch():
    *tensors, grad = draw(cells=1, queries=5, keys=6)

    def norm_of_gradients(attend):
        leaves = [x.detach().clone().requires_grad_() for x in tensors]
        first = torch.autograd.grad(attend(*leaves), leaves, grad, create_graph=True)
        return torch.autograd.grad(sum(x.square().sum() for x in first), leaves)

    for x, y in zip(norm_of_gradients(kernels), norm_of_gradients(exact), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)


# --- what torch knows about the operators ----------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["dense", "packed"])
def test_opcheck(form):
    """The operators themselves have no derivative: autograd is the function around them, checked below."""
    q, k, v, m, grad = draw(cells=1, queries=12, keys=12)
    offsets = torch.tensor([0, 5, 12], device=DEVICE) if form == "packed" else None
    arguments = (q, k, v, m[:, None])
    cut = (offsets, offsets, 1e-6)
    torch.library.opcheck(torch.ops.flashsign.stream.default, (*arguments, *cut))
    totals = torch.ops.flashsign.stream(*arguments, *cut)
    torch.library.opcheck(torch.ops.flashsign.stream_backward.default, (grad, *arguments, *totals, *cut))


def test_gradcheck_of_the_operators():
    """In float32, which the kernels have: differences over 1e-2 are exact to about 1e-4 there."""
    q, k, v, m, _ = draw(cells=1, heads=2, key_heads=1, queries=4, keys=5, width=4)
    leaves = [x.requires_grad_() for x in (q, k, v, m[:, None])]
    attend = functools.partial(operators.stream, offsets=None, query_offsets=None, eps=1e-6)
    assert torch.autograd.gradcheck(attend, leaves, eps=1e-2, atol=2e-3, rtol=1e-2)


def test_compile_takes_a_call_whole():
    *tensors, grad = draw(cells=1, queries=12, keys=12)
    backend = "inductor" if DEVICE.type == "cuda" else "aot_eager"
    compiled = torch.compile(kernels, fullgraph=True, backend=backend)
    for x, y in zip(with_gradients(compiled, tensors, grad), with_gradients(kernels, tensors, grad), strict=True):
        assert torch.equal(x, y)


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dtype": torch.float64}, "no kernel for torch.float64"),
        ({"width": 320}, "at most 256 wide, and q's are 320"),
    ],
)
def test_calls_that_no_kernel_can_take_are_refused_with_the_reason(change, words):
    dtype = change.pop("dtype", torch.float32)
    *tensors, _ = draw(**change)
    with pytest.raises(BackendUnavailable, match=words):
        kernels(*(x.to(dtype) for x in tensors))


def test_a_device_without_kernels_is_named(monkeypatch):
    monkeypatch.setattr(kernel_attention, "INTERPRETED", False)
    with pytest.raises(BackendUnavailable, match="run on CUDA devices, and q is on cpu"):
        kernels(*(x.cpu() for x in draw()[:4]))


@pytest.mark.parametrize(("capability", "old"), [((7, 0), True), ((8, 0), False), ((9, 0), False)])
def test_gpus_before_ampere_take_torch(monkeypatch, capability, old):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    kernel_attention.too_old.cache_clear()
    assert kernel_attention.too_old(torch.device("cuda", 7)) == old
    kernel_attention.too_old.cache_clear()


def test_offsets_that_do_not_cut_the_rows_are_named():
    (q, k, v, m), *_ = packed(*draw(cells=1))
    with pytest.raises(ShapeMismatch, match="rise from 0 to the 40 packed rows; found 0 to 39"):
        kernels(q, k, v, m, offsets=torch.tensor([0, 39], device=DEVICE))


def test_an_empty_bag_reads_zeros():
    q, k, v, m, _ = draw()
    assert kernels(q, k[:, :, :0], v[:, :, :0], m[:, :0]).abs().max() == 0
