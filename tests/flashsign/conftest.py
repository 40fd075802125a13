"""Small bags in float64, where a law is a law to twelve digits; and, on a GPU, memory that holds
NaN at first.
"""

import os
from functools import partial

import kernel_cases
import pytest
import torch
from uninitialised import poisoned

if torch.cuda.is_available():  # deterministic products of cuBLAS need it, before the first one
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@pytest.fixture(autouse=True)
def poisoned_on_a_gpu():
    """On a GPU uninitialised memory holds NaN in every test: a kernel that reads what nobody wrote
    fails.
    """
    if not torch.cuda.is_available():
        yield
        return
    with poisoned(warn_only=True):
        yield


@pytest.fixture
def draw():
    """kernel_cases.draw, for small bags in float64 on the CPU."""
    return partial(kernel_cases.draw, queries=7, keys=9, width=3, dtype=torch.float64, device="cpu")


@pytest.fixture
def bag(draw):
    return draw()


@pytest.fixture(params=["stream", "moments"])
def method(request):
    return request.param
