"""Calls of either form reach the kernels in one layout, and their outputs come back in the form of the call."""

import pytest
import torch

from flashsign.operators.call_kernels import call_kernels
from flashsign.operators.layout import (
    has_contiguous_rows,
    heads_first,
    multiplicity_heads_first,
    multiplicity_rows_first,
    rows_first,
)


def test_packed_rows_go_and_come_back():
    rows = torch.randn(7, 3, 5)
    assert heads_first(rows).shape == (1, 3, 7, 5)
    assert torch.equal(rows_first(heads_first(rows)), rows)
    assert rows_first(heads_first(rows)).data_ptr() == rows.data_ptr()


@pytest.mark.parametrize(
    ("shape", "packed", "expected"),
    [
        ((2, 9), False, (2, 1, 9)),
        ((2, 3, 9), False, (2, 3, 9)),
        ((9,), True, (1, 1, 9)),
        ((9, 3), True, (1, 3, 9)),
    ],
)
def test_multiplicity_is_of_all_heads_or_of_each(shape, packed, expected):
    m = torch.rand(shape)
    found = multiplicity_heads_first(m, packed)
    assert found.shape == expected
    if packed:
        assert torch.equal(multiplicity_rows_first(found), m.reshape(9, -1))


def test_rows_that_are_apart_overlap_or_are_transposed_are_not_contiguous():
    rows = torch.randn(2, 3, 5, 8)
    assert (
        has_contiguous_rows(rows) and has_contiguous_rows(rows.transpose(1, 2)) and has_contiguous_rows(rows[..., :4])
    )
    assert not has_contiguous_rows(rows.mT)
    assert not has_contiguous_rows(rows[:, :, :1].expand(-1, -1, 5, -1))
    assert not has_contiguous_rows(rows[..., ::2])


@pytest.mark.parametrize("form", ["dense", "packed"])
@pytest.mark.parametrize("width", [16, 20])
def test_kernels_get_padded_heads_and_float32_multiplicities_and_give_back_the_calls_form(form, width):
    seen = []

    def attend(q, k, v, m, offsets, query_offsets, eps):
        seen.append((q, k, v, m, offsets, query_offsets, eps))
        return 2 * q

    if form == "dense":
        q, k, m, cut = torch.randn(2, 4, 5, width), torch.randn(2, 2, 6, width), torch.rand(2, 6).double(), (None, None)
        layout = (2, 4, 5), (2, 2, 6), (2, 1, 6)
    else:
        q, k, m = torch.randn(5, 4, width), torch.randn(6, 2, width), torch.rand(6).double()
        cut = torch.tensor([0, 2, 6]), torch.tensor([0, 4, 5])
        layout = (1, 4, 5), (1, 2, 6), (1, 1, 6)
    output = call_kernels(attend, q, k, k, m, *cut, 1e-6)
    assert torch.equal(output, 2 * q)
    ((dense_q, dense_k, dense_v, dense_m, *rest),) = seen
    padded = 16 if width == 16 else 32
    assert dense_q.shape == (*layout[0], padded) and dense_k.shape == dense_v.shape == (*layout[1], padded)
    assert dense_m.shape == layout[2] and dense_m.dtype == torch.float32
    assert rest[-1] == 1e-6 and rest[0] is cut[0] and rest[1] is cut[1]
    assert not dense_q[..., width:].any() and not dense_k[..., width:].any()
