"""Calls that do not fit together are refused in one sentence that says what was found."""

import pytest
import torch

from flashsign import ShapeMismatch, spherical_attention
from flashsign.validation import bag_sizes, largest_bag_size

Q, K = (2, 4, 7, 3), (2, 2, 9, 3)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ((Q[1:], K, K), "dense call .* found q \\[4, 7, 3\\]"),
        ((Q, K, (2, 2, 8, 3)), "the same shape, but for their widths"),
        ((Q, (2, 2, 9, 5), (2, 2, 9, 5)), "the same head width"),
        ((Q, (2, 3, 9, 3), (2, 3, 9, 3)), "multiple of the number of key heads"),
        ((Q, (1, 2, 9, 3), (1, 2, 9, 3)), "same number of cells"),
        ((Q, K, K, (2, 7)), r"multiplicity must have shape \[2, 9\] or \[2, 2, 9\].* found \[2, 7\]"),
    ],
)
def test_shapes_that_do_not_fit_are_named(shapes, words):
    with pytest.raises(ShapeMismatch, match=words):
        spherical_attention(*(torch.zeros(shape) for shape in shapes))


def test_dtypes_that_differ_are_named():
    with pytest.raises(ShapeMismatch, match=r"share one dtype, .*; found torch.float16, torch.float32"):
        spherical_attention(torch.zeros(Q).half(), torch.zeros(K), torch.zeros(K))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.float32])
def test_offsets_that_could_run_over_are_refused(dtype):
    rows = torch.ones(3, 1, 4)
    with pytest.raises(ShapeMismatch, match="offsets must be int32 or int64"):
        spherical_attention(rows, rows, rows, offsets=torch.tensor([0, 3], dtype=dtype))


def test_offsets_elsewhere_are_named():
    rows = torch.ones(3, 1, 4)
    with pytest.raises(ShapeMismatch, match="offsets must be on the packed rows' device cpu; found meta"):
        spherical_attention(rows, rows, rows, offsets=torch.tensor([0, 3], device="meta"))


def test_devices_that_differ_are_named():
    with pytest.raises(ShapeMismatch, match="the same device; found meta, cpu"):
        spherical_attention(torch.zeros(Q, device="meta"), torch.zeros(K), torch.zeros(K))


@pytest.mark.parametrize(
    ("offsets", "words"),
    [
        (torch.tensor([0, 4]), "rise from 0 to the 6 packed rows; found 0 to 4"),
        (torch.tensor([1, 6]), "found 1 to 6"),
        (torch.tensor([0, 5, 4, 6]), "must rise"),
        (torch.tensor([0.0, 6.0]), "must be int32 or int64"),
        (torch.tensor([[0, 6]]), r"shape \[C \+ 1\]"),
    ],
)
def test_offsets_that_do_not_cut_the_rows_are_named(offsets, words):
    rows = torch.randn(6, 2, 3)
    with pytest.raises(ShapeMismatch, match=words):
        spherical_attention(rows, rows, rows, offsets=offsets)


def test_offsets_of_different_numbers_of_bags_are_named():
    rows = torch.randn(6, 2, 3)
    with pytest.raises(ShapeMismatch, match="the same bags; found 2 bags and 1"):
        spherical_attention(rows, rows, rows, offsets=torch.tensor([0, 2, 6]), query_offsets=torch.tensor([0, 6]))


def test_query_offsets_alone_are_refused(bag):
    with pytest.raises(ShapeMismatch, match="query_offsets came without offsets"):
        spherical_attention(*bag.leaves, query_offsets=torch.tensor([0, 2]))


def test_sizes_of_bags():
    offsets = torch.tensor([0, 5, 5, 33, 40])
    assert bag_sizes("offsets", offsets, 40).tolist() == [5, 0, 28, 7]
    assert largest_bag_size(offsets) == 28
    assert largest_bag_size(torch.tensor([0])) == 0
    with pytest.raises(ShapeMismatch, match="offsets must rise from 0 to the 41 packed rows; found 0 to 40"):
        bag_sizes("offsets", offsets, 41)
