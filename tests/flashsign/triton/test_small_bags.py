"""What the kernels that do a small bag in one program have of their own; laws of all kernels: test_kernels.py."""

import pytest
import torch
from kernel_cases import (
    assert_as_accurate_as_torch,
    doubled,
    draw,
    errors,
    exact,
    packed,
    poison,  # noqa: F401
    with_gradients,
)

from flashsign import spherical_attention
from flashsign.tuning import tables as tuning
from flashsign.tuning.tables import SmallBags, SmallTile

pytest.importorskip("triton")
small_bags = pytest.importorskip("flashsign.triton.small_bags")
stream = pytest.importorskip("flashsign.triton.streaming.calls")


def kernels(*tensors, **options):
    return spherical_attention(*tensors, method="stream", backend="triton", **options)


@pytest.mark.parametrize(
    "sizes",
    [
        {"queries": 70, "keys": 3, "heads": 2, "key_heads": 1},
        {"queries": 40, "keys": 64, "width": 20, "cells": 1, "dtype": torch.float32},
        {"queries": 20, "keys": 70, "width": 64, "cells": 1, "per_head": True},
    ],
    ids=str,
)
def test_other_tiles_are_as_accurate_as_torch_in_the_same_dtype(sizes, monkeypatch):
    monkeypatch.delattr(stream, "Keys")
    *tensors, grad = draw(**{"dtype": torch.float16, **sizes})
    assert_as_accurate_as_torch(kernels, tensors, grad)


def test_a_multiplicity_flips_no_sign_of_a_single_keys_weight():
    """Queries as good as orthogonal to the key: of a rounded m k their scores would have either sign."""
    q, k, v, m, grad = draw(queries=60, keys=1, heads=2, dtype=torch.float16)
    wide = k.float()
    q = (q - (q.float() @ wide.mT) / wide.square().sum(-1, keepdim=True) * wide).half()
    output = with_gradients(kernels, (q, k, v, m), grad)[0]
    true = exact(*doubled((q, k, v, m)))
    assert float((output - true).norm() / true.norm()) < 1e-3


def test_queries_a_few_at_a_time_are_the_queries_all_at_once(monkeypatch):
    *tensors, grad = draw(queries=40)
    whole = with_gradients(kernels, tensors, grad)
    monkeypatch.setitem(tuning.SMALL_BAGS, (4, 16), SmallBags(128, SmallTile(16, 4), SmallTile(16, 4)))
    parts = with_gradients(kernels, tensors, grad)
    assert max(errors(parts, [x.double() for x in whole]).values()) < 1e-6


def test_scores_beyond_float16_are_weights_within_it():
    q, k, v, m, grad = draw(dtype=torch.float16)
    q, k = q * 200, k * 200
    m[:, ::5] = 1e5
    found = with_gradients(kernels, (q, k, v, m), grad)
    true = with_gradients(exact, doubled((q, k, v, m)), grad)
    assert max(errors(found, true).values()) < 2e-3


def test_streamed_and_small_kernels_agree():
    """Each one's backward takes what the other's forward left."""
    q, k, v, m, grad = draw()
    one = small_bags.forward(q, k, v, m[:, None], None, None, 1e-6)
    other = stream.forward(q, k, v, m[:, None], None, None, 1e-6, stream.tuning.SMALL)
    torch.testing.assert_close(one, other)
    call = (grad, q, k, v, m[:, None])
    small = small_bags.backward(*call, *other, None, None, 1e-6)
    streamed = stream.backward(*call, *one, None, None, 1e-6, moments=False)
    torch.testing.assert_close(small, streamed, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("sizes", "small"),
    [
        ({"queries": 128, "keys": 64}, True),
        ({"queries": 128, "keys": 128, "dtype": torch.float16}, True),
        ({"queries": 129, "keys": 8}, False),
        ({"queries": 8, "keys": 129, "dtype": torch.float16}, False),
        ({"queries": 8, "keys": 65}, False),  # float32: 64 keys
        ({"queries": 8, "keys": 8, "width": 128, "dtype": torch.float16}, False),
    ],
    ids=str,
)
def test_bags_that_do_not_fit_are_streamed(sizes, small):
    q, k, *_ = draw(cells=1, **sizes)
    assert small_bags.fits(q, k, None, None) == small


def test_packed_bags_are_measured_once(monkeypatch):
    (q, k, *_), _, offsets, _ = packed(*draw(cells=1))
    looks = []
    monkeypatch.setattr("flashsign.validation._cut", lambda x: looks.append(x) or (0, 40, True, 28))
    assert [small_bags.largest_bag(q, k, offsets, offsets) for _ in range(2)] == [(28, 28)] * 2
    assert len(looks) == 1
