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
from flashsign.attention.call import AttentionCall
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


@pytest.mark.filterwarnings("ignore:Input #. requires gradient and is not a double")
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
