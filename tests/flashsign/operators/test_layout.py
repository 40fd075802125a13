"""Calls of either form reach the kernels in one layout, and their outputs come back in the form of the call."""

import pytest
import torch

from flashsign.call import AttentionCall, has_contiguous_rows


def test_rows_that_are_apart_overlap_or_are_transposed_are_not_contiguous():
    rows = torch.randn(2, 3, 5, 8)
    assert (
        has_contiguous_rows(rows) and has_contiguous_rows(rows.transpose(1, 2)) and has_contiguous_rows(rows[..., :4])
    )
    assert not has_contiguous_rows(rows.mT)
    assert not has_contiguous_rows(rows[:, :, :1].expand(-1, -1, 5, -1))
    assert not has_contiguous_rows(rows[..., ::2])


@pytest.mark.parametrize("form", ["dense", "packed"])
@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize(("width", "values"), [(16, 16), (20, 20), (40, 3)])
def test_kernels_get_padded_heads_and_float32_multiplicities_and_give_back_the_calls_form(
    form, per_head, width, values
):
    if form == "dense":
        q, k, v, m = (torch.randn(2, *shape) for shape in ((4, 5, width), (2, 6, width), (2, 6, values), (2, 6)))
        cut, layout = (None, None), ((2, 4, 5), (2, 2, 6), (2, 2 if per_head else 1, 6))
        m = m if per_head else m[:, 0]
    else:
        q, k, v, m = torch.randn(5, 4, width), torch.randn(6, 2, width), torch.randn(6, 2, values), torch.rand(6, 2)
        cut = torch.tensor([0, 2, 6]), torch.tensor([0, 4, 5])
        layout, m = ((1, 4, 5), (1, 2, 6), (1, 2 if per_head else 1, 6)), m if per_head else m[:, 0]
    call = AttentionCall.of(q, k, v, m.double(), *cut, 1e-6)
    padded, padded_values = width + -width % 16, values + -values % 16
    assert call.q.shape == (*layout[0], padded) and call.k.shape == (*layout[1], padded)
    assert call.v.shape == (*layout[1], padded_values) and call.empty_output().shape == (*layout[0], padded_values)
    assert call.m.shape == layout[2] and call.m.dtype == torch.float32
    assert (call.offsets, call.query_offsets) == cut and call.bags == 2
    assert not call.q[..., width:].any() and not call.v[..., values:].any()
    assert torch.equal(call.output(call.q, width), q)
    assert call.output(call.empty_output(), values).shape == (*q.shape[:-1], values)
