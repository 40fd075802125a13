"""What was computed from a tensor is kept for as long as the tensor stays as it is."""

import pytest
import torch

from flashsign.tensor_cache import cached


@pytest.fixture
def total():
    """total(tensor): its sum by way of the cache; total.computed: how often it was computed."""

    def compute(tensor, key="sum"):
        def find():
            compute.computed += 1
            return float(tensor.sum())

        return cached(tensor, key, find)

    compute.computed = 0
    return compute


def test_a_result_is_computed_once_for_a_tensor_and_a_key(total):
    x = torch.ones(3)
    assert [total(x), total(x), total(x, "again"), total(x, "again")] == [3.0] * 4
    assert total.computed == 2
    assert total(torch.ones(3)) == 3 and total.computed == 3


def test_a_tensor_that_changed_is_asked_again(total):
    x = torch.ones(3)
    total(x)
    x[0] = 5
    assert total(x) == 7 and total.computed == 2


def test_inference_tensors_do_not_count_their_changes_and_are_always_asked(total):
    with torch.inference_mode():
        x = torch.ones(3)
        total(x)
        x[0] = 5
        assert total(x) == 7
