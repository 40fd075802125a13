"""Calls whose tensors have shapes and no values: on the meta device, in FakeTensorMode, and under
torch.export.
"""

from contextlib import nullcontext

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.export import Dim, export

from flashsign import ShapeMismatch, spherical_attention

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


def packed(rows=30, values=16, dtype=torch.float64, device="cpu", seed=0):
    """The same of packed bags of `rows` genes in all."""
    torch.manual_seed(seed)
    shapes = (rows, 4, 16), (rows, 2, 16), (rows, 2, values)
    return *(torch.randn(*shape, dtype=dtype, device=device) for shape in shapes), torch.rand(
        rows, device=device
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
        offsets = torch.tensor([0, 10, 30]).to(device)
        assert_shapes_of_output_and_gradients(packed(**options), offsets=offsets, method=method)


def test_the_meta_device_refuses_what_does_not_fit():
    q, k, v, m = packed(device="meta")
    with pytest.raises(ShapeMismatch):
        spherical_attention(q, k, v, m, offsets=torch.tensor([0, 10, 30]))
    with pytest.raises(ShapeMismatch):
        spherical_attention(q[:7], k, v, m, offsets=torch.empty(3, dtype=torch.long, device="meta"))


def test_fake_calls_without_queries_keys_or_cells_have_shapes(method):
    for queries, keys in ((0, 5), (5, 0)):
        with FakeTensorMode():
            tensors = dense(queries, keys)
            assert spherical_attention(*tensors, method=method).shape == (2, 4, queries, 16)
            none = torch.tensor([0])
            assert spherical_attention(*packed(0), offsets=none, method=method).shape == (0, 4, 16)


class Attention(torch.nn.Module):
    """A layer as a user has it."""

    def __init__(self, **options):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(1.5))
        self.options = options

    def forward(self, q, k, v, multiplicity, offsets=None):
        output = spherical_attention(
            self.scale * q, k, self.scale * v, multiplicity, offsets=offsets, **self.options
        )
        return output * self.scale


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("chosen", ["auto", "stream", "moments"])
def test_an_exported_program_gives_the_eager_result_for_any_numbers_and_offsets(chosen, strict):
    module, tensors, others = Attention(method=chosen), dense(), dense(seed=1)
    others[3][:, ::3] = 0
    program = export(module, tensors, strict=strict)
    close(program.module()(*others), module(*others))
    program = export(module, (*packed(), torch.tensor([0, 10, 30])), strict=strict)
    for offsets in ([0, 10, 30], [0, 0, 30], [0, 29, 30]):
        call = *packed(seed=1), torch.tensor(offsets)
        close(program.module()(*call), module(*call))
    with pytest.raises(ShapeMismatch):
        program.module()(*packed(), torch.tensor([0, 10, 20]))


def test_sizes_of_an_exported_program_may_be_left_open(method):
    first, rows = {0: Dim.DYNAMIC}, {2: Dim.DYNAMIC}
    for chosen in ("auto", method):
        module = Attention(method=chosen)
        program = export(module, dense(), dynamic_shapes=(rows, rows, rows, {1: Dim.DYNAMIC}))
        for size in ((7, 9), (300, 2), (60, 500)):
            close(program.module()(*dense(*size)), module(*dense(*size)))
        program = export(
            module, (*packed(), torch.tensor([0, 10, 30])), dynamic_shapes=(first,) * 5
        )
        call = *packed(90), torch.tensor([0, 0, 15, 50, 90])
        close(program.module()(*call), module(*call))


@pytest.mark.parametrize("form", ["dense", "packed"])
def test_an_exported_program_can_be_trained(method, form):
    module = Attention(method=method)
    call = dense() if form == "dense" else (*packed(), torch.tensor([0, 10, 30]))
    program = export(module, call).module()
    q = call[0].requires_grad_()
    for each in (module, program):
        each.zero_grad()
    found = torch.autograd.grad(program(*call).square().sum(), [q, program.scale])
    close(found, torch.autograd.grad(module(*call).square().sum(), [q, module.scale]))


def test_an_exported_program_of_packed_bags_has_the_derivatives_of_eager_mode(method):
    """In forward mode torch's own tangent of an operator is 0, without a word."""
    module = Attention(method=method)
    q, *rest = call = *packed(), torch.tensor([0, 10, 30])
    program, tangent = export(module, call).module(), torch.randn_like(q)
    leaf = q.clone().requires_grad_()
    found = []
    for each in (program, module):
        (slope,) = torch.autograd.grad(each(leaf, *rest).square().sum(), leaf, create_graph=True)
        found.append(
            (
                torch.func.jvp(lambda q, each=each: each(q, *rest), (q,), (tangent,)),
                torch.func.grad(lambda q, each=each: each(q, *rest).sum())(q),
                torch.autograd.grad(slope.square().sum(), leaf),
            )
        )
    close(*found)
    assert found[0][0][1].abs().max() > 1e-2


def test_an_exported_program_keeps_ill_conditioned_rows_right():
    """They are found by their values, which an export has not; it sums their moments in float64."""
    q, k, v, m = dense(queries=20, keys=30, dtype=torch.float32)
    k[..., 8:] *= 1e-4
    q[:, :, ::3, :8] = 0  # along directions that the keys hardly have
    program = export(Attention(method="moments"), (q, k, v, m)).module()
    found, expected = program(q, k, v, m), Attention(method="stream")(q, k, v, m)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


# its own checks read .grad of tensors that are no leaves
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_the_operator_of_packed_bags_is_as_torch_expects(method):
    call = *packed(), torch.tensor([0, 10, 30]), torch.tensor([0, 4, 30]), 1e-6, method
    leaves = [x.requires_grad_() for x in call[:4]]
    torch.library.opcheck(torch.ops.flashsign.packed.default, (*leaves, *call[4:]))
    found = torch.ops.flashsign.packed_backward(torch.ones(30, 4, 16, dtype=torch.float64), *call)
    with FakeTensorMode() as fake:
        promised = torch.ops.flashsign.packed_backward(
            fake.from_tensor(found[0]), *map(as_fake(fake), call)
        )
    assert [(x.shape, x.dtype, x.stride()) for x in found] == [
        (x.shape, x.dtype, x.stride()) for x in promised
    ]


def as_fake(mode):
    return lambda x: mode.from_tensor(x) if isinstance(x, torch.Tensor) else x
