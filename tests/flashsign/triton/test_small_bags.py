"""What the kernels that do a small bag in one program have of their own; laws of all:
attention/test_spherical_attention.py.
"""

import pytest
import torch
from kernel_cases import (
    assert_accurate,
    doubled,
    draw,
    errors,
    exact,
    poison,  # noqa: F401
    with_gradients,
)

from flashsign import spherical_attention
from flashsign.attention import dispatch
from flashsign.tuning import tables
from flashsign.tuning.block_sizes import SmallBagBlockSizes
from flashsign.tuning.tables import SmallBags

pytest.importorskip("triton")
small_bags = pytest.importorskip("flashsign.triton.small_bags")
stream = pytest.importorskip("flashsign.triton.streaming.stream_launches")


def kernels(*tensors, **options):
    return spherical_attention(*tensors, method="stream", backend="triton", **options)


@pytest.mark.parametrize(
    "sizes",
    [
        {"queries": 40, "keys": 64, "width": 20, "cells": 1, "dtype": torch.float32},
        {"queries": 20, "keys": 70, "width": 64, "cells": 1, "per_head": True},
    ],
    ids=str,
)
def test_other_sizes_are_as_accurate_as_the_dtype_allows(sizes):
    *tensors, grad = draw(**{"dtype": torch.float16, **sizes})
    with dispatch.only("triton_small_bags"):
        assert_accurate(kernels, tensors, grad)


def test_queries_a_few_at_a_time_are_the_queries_all_at_once(monkeypatch):
    *tensors, grad = draw(queries=40)
    whole = with_gradients(kernels, tensors, grad)
    sixteen = SmallBagBlockSizes(16, 4)
    monkeypatch.setitem(tables.SMALL_BAGS, (4, 16), SmallBags(128, sixteen, sixteen))
    parts = with_gradients(kernels, tensors, grad)
    assert max(errors(parts, [x.double() for x in whole]).values()) < 1e-6


def test_scores_beyond_float16_are_weights_within_it():
    q, k, v, m, grad = draw(dtype=torch.float16)
    q, k = q * 200, k * 200
    m[:, ::5] = 1e5
    found = with_gradients(kernels, (q, k, v, m), grad)
    true = with_gradients(exact, doubled((q, k, v, m)), grad)
    assert max(errors(found, true).values()) < 2e-3
