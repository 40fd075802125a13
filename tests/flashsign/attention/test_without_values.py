"""Calls whose tensors have shapes and no values: on the meta device, in FakeTensorMode, and under
torch.export.
"""

from contextlib import nullcontext

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.export import Dim, export

from flashsign import spherical_attention

DTYPES = [torch.float16, torch.float32, torch.float64]
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]


def dense(queries=60, keys=70, values=16, dtype=torch.float64, device="cpu", seed=0):
    """q, k, v and multiplicity of two cells, four query heads and two key heads."""
    torch.manual_seed(seed)
    shapes = (2, 4, queries, 16), (2, 2, keys, 16), (2, 2, keys, values)
    return *(torch.randn(*shape, dtype=dtype, device=device) for shape in shapes), torch.rand(
        2, keys, device=device
    )


def assert_shapes_of_output_and_gradients(tensors, **options):
    """The output is like q, but for its width, and every gradient like its tensor."""
    leaves = [x.requires_grad_() for x in tensors]
    output = spherical_attention(*leaves, **options)
    assert output.shape == (*leaves[0].shape[:-1], leaves[2].shape[-1])
    assert (output.dtype, output.device) == (leaves[0].dtype, leaves[0].device)
    gradients = torch.autograd.grad(output.sum(), leaves)
    assert [(x.shape, x.dtype) for x in gradients] == [(x.shape, x.dtype) for x in leaves]
    with torch.no_grad():
        assert spherical_attention(*leaves, **options).shape == output.shape


@pytest.mark.parametrize("device", ["meta", *DEVICES])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("values", [16, 5])
def test_tensors_without_values_give_shapes(method, dtype, values, device):
    options = {"values": values, "dtype": dtype, "device": device}
    with nullcontext() if device == "meta" else FakeTensorMode():
        assert_shapes_of_output_and_gradients(dense(**options), method=method)


def test_fake_calls_without_queries_keys_or_cells_have_shapes(method):
    for queries, keys in ((0, 5), (5, 0)):
        with FakeTensorMode():
            tensors = dense(queries, keys)
            assert spherical_attention(*tensors, method=method).shape == (2, 4, queries, 16)


class Attention(torch.nn.Module):
    """A layer as a user has it."""

    def __init__(self, **options):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(1.5))
        self.options = options

    def forward(self, q, k, v, multiplicity):
        output = spherical_attention(
            self.scale * q, k, self.scale * v, multiplicity, **self.options
        )
        return output * self.scale


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("chosen", ["auto", "stream", "moments"])
def test_an_exported_program_gives_the_eager_result_for_any_numbers(chosen, strict):
    module, tensors, others = Attention(method=chosen), dense(), dense(seed=1)
    others[3][:, ::3] = 0
    program = export(module, tensors, strict=strict)
    close(program.module()(*others), module(*others))


def test_sizes_of_an_exported_program_may_be_left_open(method):
    rows = {2: Dim.DYNAMIC}
    for chosen in ("auto", method):
        module = Attention(method=chosen)
        program = export(module, dense(), dynamic_shapes=(rows, rows, rows, {1: Dim.DYNAMIC}))
        for size in ((7, 9), (300, 2), (60, 500)):
            close(program.module()(*dense(*size)), module(*dense(*size)))


def test_an_exported_program_can_be_trained(method):
    module, call = Attention(method=method), dense()
    program = export(module, call).module()
    q = call[0].requires_grad_()
    for each in (module, program):
        each.zero_grad()
    found = torch.autograd.grad(program(*call).square().sum(), [q, program.scale])
    close(found, torch.autograd.grad(module(*call).square().sum(), [q, module.scale]))


def test_an_exported_program_keeps_ill_conditioned_rows_right():
    """They are found by their values, which an export has not; it sums their moments in float64."""
    q, k, v, m = dense(queries=20, keys=30, dtype=torch.float32)
    k[..., 8:] *= 1e-4
    q[:, :, ::3, :8] = 0  # along directions that the keys hardly have
    program = export(Attention(method="moments"), (q, k, v, m)).module()
    found, expected = program(q, k, v, m), Attention(method="stream")(q, k, v, m)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
