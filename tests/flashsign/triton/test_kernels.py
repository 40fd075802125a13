"""What all Triton kernels obey, the streamed, those of small bags and those of moments, against
float64 references.

On a GPU where there is one, else in Triton's interpreter.
"""

import functools

import pytest
import torch
from kernel_cases import (
    DEVICE,
    assert_accurate,
    doubled,
    draw,
    errors,
    exact,
    packed,
    poison,  # noqa: F401
    with_gradients,
)

from flashsign import spherical_attention
from flashsign.attention import dispatch
from flashsign.attention.call import AttentionCall
from flashsign.tuning.accuracy import TENSORS

pytest.importorskip("triton")
stream = pytest.importorskip("flashsign.triton.streaming.stream_launches")


@pytest.fixture(params=["triton_stream", "triton_small_bags", "triton_moments"])
def kernels(request):
    """spherical_attention by the streamed kernels, by those of small bags, or by those of moments,
    and no others.
    """
    method = dispatch.KERNELS[request.param][1]
    with dispatch.only(request.param):
        yield functools.partial(spherical_attention, method=method, backend="triton")


streamed = pytest.mark.parametrize("kernels", ["triton_stream"], indirect=True)
one_operator_each = pytest.mark.parametrize(
    "kernels", ["triton_stream", "triton_moments"], indirect=True
)


SIZES = [
    {},
    {"queries": 67, "keys": 19, "heads": 2, "key_heads": 1},
    {"width": 20, "keys": 33, "cells": 1, "per_head": True},
    {"queries": 1, "keys": 7},
    {"width": 16, "values": 1},
    {"width": 16, "values": 24},
    {"width": 32, "queries": 9, "keys": 33, "cells": 1, "values": 2},
]


# In the interpreter dtypes differ by their rounding alone; a compiler makes another kernel of each.
@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [(sizes, torch.float32) for sizes in SIZES]
    + [(sizes, torch.float16) for sizes in (SIZES if DEVICE.type == "cuda" else SIZES[1:3])],
    ids=str,
)
def test_outputs_and_gradients_are_as_accurate_as_the_dtype_allows(sizes, dtype, kernels):
    *tensors, grad = draw(dtype=dtype, **sizes)
    assert_accurate(kernels, tensors, grad)


@pytest.mark.parametrize("values", [5, 20])
def test_packed_bags_with_values_of_a_width_of_their_own(values, kernels):
    tensors, grad, offsets, query_offsets = packed(*draw(cells=1, heads=2, width=32, values=values))
    cut = {"offsets": offsets, "query_offsets": query_offsets}
    found = with_gradients(lambda *x: kernels(*x, **cut), tensors, grad)
    true = with_gradients(lambda *x: exact(*x, **cut), doubled(tensors), grad)
    assert max(errors(found, true).values()) < 1e-6


@one_operator_each
@pytest.mark.parametrize(("dtype", "values"), [(torch.float32, 64), (torch.float16, 16)])
def test_long_bags_and_wide_heads(dtype, values, kernels):
    *tensors, grad = draw(dtype=dtype, width=64, queries=9, keys=130, cells=1, values=values)
    assert_accurate(kernels, tensors, grad)


def test_eps_counts_forward_and_backward(kernels):
    *tensors, grad = draw()
    found = with_gradients(lambda *x: kernels(*x, eps=0.3), tensors, grad)
    true = with_gradients(lambda *x: exact(*x, eps=0.3), doubled(tensors), grad)
    assert max(errors(found, true).values()) < 2e-6


def test_absent_keys_change_nothing_whatever_they_hold(kernels):
    q, k, v, m, grad = draw(cells=1)
    m[:, 5:9] = 0
    clean = with_gradients(kernels, (q, k, v, m), grad)
    k[:, :, 6], v[:, :, 7], v[:, :, 8] = torch.nan, torch.nan, torch.inf
    q_broken = with_gradients(kernels, (q, k, v, m), grad)
    true = with_gradients(exact, doubled((q, k, v, m)), grad)
    torch.testing.assert_close(q_broken[0], clean[0])
    assert max(errors(q_broken, true).values()) < 1e-6
    assert true[4][:, 5].abs().min() > 0  # an absent key has a derivative all the same


def test_a_broken_number_of_a_present_key_is_not_hidden(kernels):
    q, k, v, m, _ = draw()
    v[0, 0, 3, 2] = torch.nan
    assert kernels(q, k, v, m)[0, 0, :, 2].isnan().all()


@pytest.mark.parametrize(("dtype", "per_head"), [(torch.float32, True), (torch.float16, False)])
def test_packed_bags_are_the_bags_one_by_one(dtype, per_head, kernels):
    tensors, grad, offsets, query_offsets = packed(
        *draw(cells=1, width=20, dtype=dtype, per_head=per_head)
    )
    cut = {"offsets": offsets, "query_offsets": query_offsets}
    found = with_gradients(lambda *x: kernels(*x, **cut), tensors, grad)
    true = with_gradients(lambda *x: exact(*x, **cut), doubled(tensors), grad)
    assert max(errors(found, true).values()) < 4 * torch.finfo(dtype).eps


@one_operator_each
def test_offsets_that_change_are_read_again(kernels):
    (q, k, v, m), _, offsets, query_offsets = packed(*draw(cells=1))
    kernels(q, k, v, m, offsets=offsets, query_offsets=query_offsets)
    offsets[1:3] = 12
    changed = kernels(q, k, v, m, offsets=offsets, query_offsets=query_offsets)
    assert torch.equal(
        changed, kernels(q, k, v, m, offsets=offsets.clone(), query_offsets=query_offsets)
    )


def test_a_broken_bag_leaves_its_neighbours_alone(kernels):
    (q, k, v, m), grad, offsets, query_offsets = packed(*draw(cells=1))
    cut = {"offsets": offsets, "query_offsets": query_offsets}
    clean = with_gradients(lambda *x: kernels(*x, **cut), (q, k, v, m), grad)
    k[40 - 7 :], v[40 - 7 :], q[29:], grad[29:] = (torch.nan,) * 4
    broken = with_gradients(lambda *x: kernels(*x, **cut), (q, k, v, m), grad)
    last = (29, 29, 33, 33, 33)
    for name, x, y, end in zip(TENSORS, broken, clean, last, strict=True):
        torch.testing.assert_close(x[:end], y[:end], msg=name)


@pytest.mark.parametrize("strided", [False, True])
def test_any_layout_gives_the_same_results(strided, kernels):
    q, k, v, m, grad = draw()
    if strided:
        q, k, v, grad = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v, grad))
    else:
        # rows that do not start at 16 bytes
        q, k = (torch.cat([x, x], -1)[..., 1:17] for x in (q, k))
    found = with_gradients(kernels, (q, k, v, m), grad)
    true = with_gradients(exact, doubled((q, k, v, m)), grad)
    assert max(errors(found, true).values()) < 1e-6


@pytest.mark.parametrize("power", [-6, 5])
def test_powers_of_two_in_queries_or_multiplicities_change_no_bit(power, kernels):
    q, k, v, m, _ = draw(cells=1)
    output = kernels(q, k, v, m)
    assert torch.equal(kernels(q * 2.0**power, k, v, m), output)
    assert torch.equal(kernels(q, k, v, m * 2.0 ** (4 * power)), output)


def test_a_multiplicity_of_100000_beside_one_of_1(kernels):
    q, k, v, m, grad = draw(dtype=torch.float16)
    m[:, ::5] = 1e5
    found = with_gradients(kernels, (q, k, v, m), grad)
    true = with_gradients(exact, doubled((q, k, v, m)), grad)
    assert max(errors(found, true).values()) < 2e-3


@pytest.mark.parametrize("condition", [1e2, 1e3])
def test_queries_along_directions_that_keys_hardly_have_get_an_accurate_dq(condition):
    """Moments have lost such directions to rounding, so these tiles are streamed."""
    q, k, v, m, grad = draw(queries=40, keys=90)
    basis = torch.linalg.qr(torch.randn(16, 16, generator=torch.Generator().manual_seed(1)))[0].to(
        DEVICE
    )
    k = k * torch.logspace(0, -float(torch.tensor(condition).log10()), 16, device=DEVICE) @ basis
    q[:, :, ::3] = basis[-1] + 1e-3 * q[:, :, ::3] * 1e-2
    call = AttentionCall(q, k, v, m[:, None], None, None, 1e-6)
    o, inverse = stream.forward(call)
    dq = stream.backward(call, grad, o, inverse, from_moments=True)[0]
    true = with_gradients(exact, doubled((q, k, v, m)), grad)[1]
    rows = slice(None, None, 3)
    assert (
        float((dq[:, :, rows].double() - true[:, :, rows]).norm() / true[:, :, rows].norm()) < 1e-3
    )


@streamed
def test_the_same_call_twice_gives_the_same_bits(kernels):
    *tensors, grad = draw(cells=1, dtype=torch.float16, keys=150)
    first, second = (with_gradients(kernels, tensors, grad) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


@one_operator_each
def test_second_derivatives_are_those_of_torch(kernels):
    *tensors, grad = draw(cells=1, queries=5, keys=6)

    def norm_of_gradients(attend):
        leaves = [x.detach().clone().requires_grad_() for x in tensors]
        first = torch.autograd.grad(attend(*leaves), leaves, grad, create_graph=True)
        return torch.autograd.grad(sum(x.square().sum() for x in first), leaves)

    for x, y in zip(norm_of_gradients(kernels), norm_of_gradients(exact), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)


def test_bags_of_zeros_give_zeros_forward_and_backward(kernels):
    q, k, v, m, grad = draw(cells=1)
    for tensors in ((q, k, v, m * 0), (q * 0, k, v, m), (q, k * 0, v, m)):
        found = with_gradients(kernels, tensors, grad)
        assert all(x.abs().max() == 0 for x in found)


def test_packed_bags_of_absent_keys_give_zeros_forward_and_backward(kernels):
    tensors, grad, offsets, query_offsets = packed(*draw(cells=1))
    tensors[3][5:33] = 0
    cut = {"offsets": offsets, "query_offsets": query_offsets}
    o, dq, *of_keys = with_gradients(lambda *x: kernels(*x, **cut), tensors, grad)
    assert all(x[10:29].abs().max() == 0 for x in (o, dq)) and all(
        x[5:33].abs().max() == 0 for x in of_keys
    )
    assert o[:10].abs().max() > 0 and of_keys[0][:5].abs().max() > 0


@pytest.mark.parametrize("size", [3e3, 1.6e4])
def test_gradients_of_a_large_key_alone_are_in_the_range_of_16_bits(size, kernels):
    q, k, v, m, grad = draw(keys=1, queries=20, width=64, dtype=torch.float16)
    m = torch.ones_like(m)  # whose products with k are exact
    k = k.sign() * size
    q = q / size
    found, true = (
        with_gradients(f, x, grad)
        for f, x in ((kernels, (q, k, v, m)), (exact, doubled((q, k, v, m))))
    )
    assert float((found[3].double() - true[3]).norm() / true[3].norm()) < 2e-3


def test_a_batched_backward_and_one_under_autocast(kernels):
    *tensors, _ = draw(cells=1, queries=9, keys=11)
    q, *others = (x.requires_grad_() for x in tensors)
    output = kernels(q, *others)
    grads = torch.randn(3, *output.shape, device=DEVICE)
    batched = torch.autograd.grad(output, q, grads, is_grads_batched=True, retain_graph=True)[0]
    for grad, found in zip(grads, batched, strict=True):
        torch.testing.assert_close(
            found, torch.autograd.grad(output, q, grad, retain_graph=True)[0]
        )
    plain = torch.autograd.grad(output, q, grads[0], create_graph=True)[0]
    with torch.autocast(DEVICE.type, torch.bfloat16):
        torch.testing.assert_close(
            torch.autograd.grad(output, q, grads[0], create_graph=True)[0], plain
        )
