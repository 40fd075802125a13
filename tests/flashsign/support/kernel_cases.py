"""What the tests of attention share: bags, gradients, and how errors are measured.

The Triton kernels run on a GPU where there is one, else in Triton's interpreter.
"""

import functools
import inspect
import itertools
import math
from itertools import starmap
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from uninitialised import poisoned

from flashsign import spherical_attention
from flashsign.attention.reference import reference_spherical_attention
from flashsign.tuning.accuracy import TENSORS, Case, error, table

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
try:
    from triton.language.core import is_builtin
    from triton.runtime import interpreter
except ImportError:
    interpreter = None  # there is no Triton for this system


@functools.cache
def builtins_of(place: object) -> list[str]:
    return [name for name, member in inspect.getmembers(place) if is_builtin(member)]


def replace_builtins(place: object, builder: object, scope: object) -> None:
    for name in builtins_of(place):
        if is_builtin(member := getattr(place, name)):
            interpreter._patch_attr(place, name, member, builder, scope)


# The interpreter replaces what is built into the language whenever a kernel calls a function, and
# would list all of its members each time: a third of the time of the kernels' tests.
if interpreter is not None:
    interpreter._patch_builtin = replace_builtins


@pytest.fixture(autouse=True)
def poison():
    """Uninitialised memory holds NaN, in the interpreter, too."""
    with poisoned():
        yield


class Call(NamedTuple):
    """The tensors of one dense call, and a gradient for its output."""

    q: Tensor
    k: Tensor
    v: Tensor
    m: Tensor
    grad: Tensor


def draw(
    cells=2,
    heads=4,
    key_heads=2,
    queries=30,
    keys=40,
    width=16,
    dtype=torch.float32,
    per_head=False,
    seed=0,
    values=None,
    device=DEVICE,
) -> Call:
    """per_head: multiplicities of every key head; values: width of v."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=random).to(device, dtype)

    m = torch.rand(cells, *([key_heads] if per_head else []), keys, generator=random) * 2 + 0.1
    m = m.to(device, torch.promote_types(dtype, torch.float32))
    values = width if values is None else values
    q, grad = normal(cells, heads, queries, width), normal(cells, heads, queries, values)
    rows = (normal(cells, key_heads, keys, each) for each in (width, values))
    return Call(q, *rows, m, grad)


def with_gradients(attend, tensors, grad):
    """The output and its gradients by each of the tensors."""
    leaves = [
        x.detach().clone(memory_format=torch.preserve_format).requires_grad_() for x in tensors
    ]
    output = attend(*leaves)
    return (output.detach(), *torch.autograd.grad(output, leaves, grad.to(output.dtype)))


def exact(*tensors, **options):
    return spherical_attention(*tensors, method="stream", backend="torch", **options)


def doubled(tensors):
    return [x.double() for x in tensors]


def errors(found, true):
    return {name: error(x, y) for name, x, y in zip(TENSORS, found, true, strict=True)}


def assert_accurate(attend, tensors, grad, **options):
    """Output and gradients of attend(q, k, v, m) are the definition's in float64, and else within
    the bounds of flashsign.tuning.accuracy.
    """
    found = with_gradients(functools.partial(attend, **options), tensors, grad)
    case = Case(*tensors, grad, **options)
    if tensors[0].dtype == torch.float64:
        assert max(errors(found, case.true.values()).values()) < 1e-10
        return
    verdicts = case.judge(dict(zip(TENSORS, found, strict=True)))
    assert all(verdict.good for verdict in verdicts.values()), table(verdicts)


def ill_conditioned(condition, dtype, width=32, keys=300, values=None):
    """Keys of a condition number, and a third of the queries along directions that the keys hardly
    have.

    Largest kappa_i: 6, 1e2 and 6e2 at conditions of 1, 1e2 and 1e3. q, k, v, m and a gradient for
    the output.
    """
    q, k, v, m, grad = doubled(draw(cells=1, queries=60, keys=keys, width=width, values=values))
    random = torch.Generator().manual_seed(1)
    # In float64, so that every machine rounds to the same inputs.
    basis = torch.linalg.qr(torch.randn(width, width, generator=random, dtype=torch.float64))[0].to(
        DEVICE
    )
    sizes = torch.logspace(0, -math.log10(condition), width, device=DEVICE, dtype=torch.float64)
    k = k * sizes @ basis
    q[:, :, ::3] = q[:, :, ::3] / sizes / condition @ basis * 5
    return [x.to(dtype) for x in (q, k, v)] + [m.float()], grad.to(dtype)


def packed(q, k, v, m, grad):
    """A few bags of one dense cell, packed, some of them empty: tensors, gradient and offsets."""
    offsets, query_offsets = (
        torch.tensor(bounds, device=q.device) for bounds in ([0, 5, 5, 33, 40], [0, 3, 10, 29, 30])
    )
    rows = [x[0].transpose(0, 1).contiguous() for x in (q, k, v)]
    tensors = [*rows, m[0].mT.contiguous() if m.ndim == 3 else m[0]]
    return tensors, grad[0].transpose(0, 1), {"offsets": offsets, "query_offsets": query_offsets}


def one_by_one(q, k, v, m, *, offsets, query_offsets):
    """Packed attention: the definition of every bag as a dense cell."""
    outputs = []
    ends = (itertools.pairwise(bounds.tolist()) for bounds in (query_offsets, offsets))
    for queries, keys in zip(*(starmap(slice, each) for each in ends), strict=True):
        rows = (x.transpose(0, 1)[None] for x in (q[queries], k[keys], v[keys]))
        own = (m[keys].mT if m.ndim == 2 else m[keys])[None]
        outputs.append(reference_spherical_attention(*rows, own)[0].transpose(0, 1))
    return torch.cat(outputs)
