"""Weights of a network: how rows are balanced, how members agree."""

import numpy as np
import pytest
import torch

from grn.network.weights import balanced, members_agreement


def test_identical_members_agree_and_random_ones_agree_by_chance():
    one = torch.randn(200, 30, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(members_agreement(one.expand(5, -1, -1)), torch.ones(200, 30))
    for members in (4, 16, 64):
        drawn = torch.randn(members, 200, 30, generator=torch.Generator().manual_seed(1))
        found = members_agreement(drawn)
        # The mean of P draws is 1 / sqrt(P) of a normal number, whose mean magnitude is sqrt(2 / pi).
        assert float(found.mean()) == pytest.approx((2 / np.pi / members) ** 0.5, rel=0.1)
        assert found.min() >= 0 and found.max() <= 1 + 1e-6
    assert (members_agreement(one[None]) == 0.5).all(), "one member says nothing about agreement"
    assert (members_agreement(torch.zeros(3, 2, 2)) == 0).all()


def test_balanced_rows_have_the_root_of_their_norm_and_keep_their_signs():
    weight = np.random.default_rng(0).normal(size=(6, 4)) * np.array([[1e-3], [1], [50], [2], [0], [9]])
    found = balanced(weight)
    norm = np.linalg.norm(weight, axis=1)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), norm**0.5, rtol=1e-6)
    np.testing.assert_array_equal(np.sign(found), np.sign(weight))
    assert (found[4] == 0).all() and found.dtype == np.float32
