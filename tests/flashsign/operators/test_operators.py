"""What torch knows about the operators: schemas, fakes, derivatives, and one node each under
torch.compile.

The kernels run on a GPU where there is one, else in Triton's interpreter.
"""

import functools

import pytest
import torch
from kernel_cases import DEVICE, draw, with_gradients

from flashsign import spherical_attention
from flashsign.attention import dispatch
from flashsign.attention.call import AttentionCall, has_contiguous_rows
from flashsign.attention.dispatch import Plan
from flashsign.operators.kernel_operators import attend

pytest.importorskip("triton")


@pytest.mark.parametrize("form", ["dense", "packed"])
@pytest.mark.parametrize("name", ["stream", "moments"])
def test_opcheck(name, form):
    """The operators themselves have no derivative: autograd is the function around them, checked
    below.
    """
    q, k, v, m, grad = draw(cells=1, heads=2, key_heads=1, queries=12, keys=12)
    offsets = torch.tensor([0, 5, 12], device=DEVICE) if form == "packed" else None
    arguments = (q, k, v, m[:, None])
    cut = (offsets, offsets, 1e-6)
    forward, backward = (
        getattr(torch.ops.flashsign, name + of).default for of in ("", "_backward")
    )
    torch.library.opcheck(forward, (*arguments, *cut))
    torch.library.opcheck(backward, (grad, *arguments, *forward(*arguments, *cut), *cut))


@pytest.mark.parametrize("kernel", ["triton_stream", "triton_moments"])
def test_gradcheck_of_the_operators(kernel):
    """In float32, which the kernels have: differences over 1e-2 are exact to about 1e-4 there."""
    q, k, v, m, _ = draw(cells=1, heads=2, key_heads=1, queries=4, keys=5, width=4)
    leaves = [x.requires_grad_() for x in (q, k, v, m[:, None])]

    def attended(*tensors):
        return attend(Plan(kernel), AttentionCall(*tensors, None, None, 1e-6))

    assert torch.autograd.gradcheck(
        attended, leaves, eps=1e-2, atol=2e-3, rtol=1e-2, fast_mode=True
    )


@pytest.mark.parametrize("kernel", ["triton_stream", "triton_moments"])
def test_a_compiled_call_has_no_graph_break(kernel):
    """float32 heads of 128, of which no bag is small: compiled backwards on a GPU do not know of
    `only`.
    """
    *tensors, grad = draw(cells=1, heads=2, key_heads=1, queries=12, keys=12, width=128)
    kernels = functools.partial(
        spherical_attention, method=dispatch.KERNELS[kernel][1], backend="triton"
    )
    backend = "inductor" if DEVICE.type == "cuda" else "aot_eager"
    compiled = torch.compile(kernels, fullgraph=True, backend=backend)
    for x, y in zip(
        with_gradients(compiled, tensors, grad), with_gradients(kernels, tensors, grad), strict=True
    ):
        assert torch.equal(x, y)


def test_rows_that_are_apart_overlap_or_are_transposed_are_not_contiguous():
    rows = torch.randn(2, 3, 5, 8)
    assert (
        has_contiguous_rows(rows)
        and has_contiguous_rows(rows.transpose(1, 2))
        and has_contiguous_rows(rows[..., :4])
    )
    assert not has_contiguous_rows(rows.mT)
    assert not has_contiguous_rows(rows[:, :, :1].expand(-1, -1, 5, -1))
    assert not has_contiguous_rows(rows[..., ::2])


@pytest.mark.parametrize("form", ["dense", "packed"])
@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize(("width", "values"), [(16, 16), (20, 20), (40, 3)])
def test_the_layout_of_a_call_is_padded_and_its_output_has_the_calls_form(
    form, per_head, width, values
):
    if form == "dense":
        q, k, v, m = (
            torch.randn(2, *shape)
            for shape in ((4, 5, width), (2, 6, width), (2, 6, values), (2, 6))
        )
        cut, layout = (None, None), ((2, 4, 5), (2, 2, 6), (2, 2 if per_head else 1, 6))
        m = m if per_head else m[:, 0]
    else:
        q, k, v, m = (
            torch.randn(5, 4, width),
            torch.randn(6, 2, width),
            torch.randn(6, 2, values),
            torch.rand(6, 2),
        )
        cut = torch.tensor([0, 2, 6]), torch.tensor([0, 4, 5])
        layout, m = ((1, 4, 5), (1, 2, 6), (1, 2 if per_head else 1, 6)), m if per_head else m[:, 0]
    call = AttentionCall.of(q, k, v, m.double(), *cut, 1e-6)
    padded, padded_values = width + -width % 16, values + -values % 16
    assert call.q.shape == (*layout[0], padded) and call.k.shape == (*layout[1], padded)
    assert call.v.shape == (*layout[1], padded_values) and call.empty_output().shape == (
        *layout[0],
        padded_values,
    )
    assert call.m.shape == layout[2] and call.m.dtype == torch.float32
    assert (call.offsets, call.query_offsets) == cut and call.bags == 2
    assert not call.q[..., width:].any() and not call.v[..., values:].any()
    assert torch.equal(call.output(call.q, width), q)
    assert call.output(call.empty_output(), values).shape == (*q.shape[:-1], values)
