"""The kernels' one layout: which rows are copied, and strides as arguments."""

import pytest
import torch

pytest.importorskip("triton")
from flashsign.triton.common.layout import aligned, multiplicity_strides, strides, with_gaps


def test_rows_that_are_not_a_multiple_of_16_numbers_apart_are_copied():
    rows = torch.randn(2, 3, 5, 48)
    assert aligned(rows) is rows and strides(q=rows) == {"q_bag": 720, "q_head": 240, "q_row": 48}
    apart = torch.randn(2, 3, 5, 40)[..., :32]
    copy = aligned(apart)
    assert torch.equal(copy, apart) and list(strides(q=copy).values()) == [480, 160, 32]
    for other in (rows[:1].expand(2, -1, -1, -1), rows.mT, rows.flatten()[1:-47].view(1, 1, -1, 48)):
        assert aligned(other) is not other


def test_the_stride_of_an_axis_of_one_does_not_count():
    rows = torch.randn(1000).as_strided((1, 2, 1, 16), (7, 32, 9, 1))
    assert aligned(rows) is rows and list(strides(q=rows).values()) == [0, 32, 0]


def test_strides_of_several_tensors_come_in_their_order():
    found = strides(o=torch.empty(2, 2, 3, 16), dq=torch.empty(2, 4, 5, 16))
    assert list(found.items()) == [
        ("o_bag", 96), ("o_head", 48), ("o_row", 16), ("dq_bag", 320), ("dq_head", 80), ("dq_row", 16)
    ]  # fmt: skip


def test_multiplicities_that_all_key_heads_share_have_no_stride_between_heads():
    assert multiplicity_strides(torch.empty(3, 1, 7)) == {"m_bag": 7, "m_head": 0}
    assert multiplicity_strides(torch.empty(3, 2, 7)) == {"m_bag": 14, "m_head": 7}


def test_gaps_behind_packed_bags_are_zeros_and_heads_begin_at_a_multiple_of_four_rows():
    found = with_gaps(torch.ones(1, 2, 9, 16), 3, 4)
    assert found.shape == (1, 2, 21, 16) and found.eq(0).all()
    assert found.stride(1) == 24 * 16
