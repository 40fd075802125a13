"""Random calls are judged: right ones pass, and one wrong row does not."""

import random

import pytest
import random_calls
import torch

CPU = torch.device("cpu")


def calls(count):
    dice = random.Random(5)
    return [random_calls.drawn(dice, 70, ("float16", "float32")) for _ in range(count)]


@pytest.mark.parametrize("of", calls(8), ids=str)
def test_a_right_call_is_within_its_bounds(of):
    assert max(random_calls.judged(of, CPU, "torch").values()) <= 1


def test_a_wrong_row_is_found(monkeypatch):
    right = random_calls.spherical_attention

    def wrong(*tensors, **options):
        output = right(*tensors, **options)
        return torch.cat([output[..., :-1, :], output[..., -1:, :] * 1.05], -2)

    of = next(of for of in calls(50) if not of["packed"] and of["keys"] > 20 and of["absent"] < 0.5)
    monkeypatch.setattr(random_calls, "spherical_attention", wrong)
    assert max(random_calls.judged(of, CPU, "torch").values()) > 1
