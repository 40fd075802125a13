"""Small bags in float64, where a law is a law to twelve digits; and, on a GPU, memory that holds
NaN at first.
"""

import os
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
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


@dataclass(frozen=True)
class Call:
    """The tensors of one dense call, each a leaf that wants a gradient, and a gradient for the
    output.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    m: Tensor
    grad: Tensor

    @property
    def leaves(self):
        return self.q, self.k, self.v, self.m

    def gradients(self, output, grad=None):
        return torch.autograd.grad(
            output, self.leaves, self.grad if grad is None else grad, retain_graph=True
        )


@pytest.fixture
def draw():
    """draw(cells=, heads=, ...) -> Call, seeded."""

    def call(
        cells=2, heads=4, key_heads=2, queries=7, keys=9, width=3, dtype=torch.float64, seed=0
    ):
        random = torch.Generator().manual_seed(seed)

        def normal(*shape):
            return torch.randn(*shape, generator=random, dtype=torch.float64)

        q, grad = normal(cells, heads, queries, width), normal(cells, heads, queries, width)
        k, v = normal(cells, key_heads, keys, width), normal(cells, key_heads, keys, width)
        m = normal(cells, keys).square() + 0.1
        leaves = (x.to(dtype).requires_grad_() for x in (q, k, v, m))
        return Call(*leaves, grad.to(dtype))

    return call


@pytest.fixture
def bag(draw):
    return draw()


@pytest.fixture(params=["stream", "moments"])
def method(request):
    return request.param
