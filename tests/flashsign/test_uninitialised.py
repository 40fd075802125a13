"""Uninitialised memory is poisoned in tests on a GPU, and only there: on a CPU kernels' tests ask
for it by name.
"""

import torch
from torch.utils import deterministic
from uninitialised import poisoned


def test_poison_is_everywhere_within_and_gone_afterwards(monkeypatch):
    monkeypatch.setattr(deterministic, "fill_uninitialized_memory", False)
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    for warn_only in (False, True):
        with poisoned(warn_only=warn_only):
            x = torch.empty(3, 4)
            for each in (
                x,
                torch.empty_like(x),
                x.new_empty(5),
                torch.empty_strided((2, 2), (1, 2)),
                x[:0].resize_(2),
            ):
                assert each.isnan().all()
            assert (torch.empty(2, dtype=torch.int32) == torch.iinfo(torch.int32).max).all()
        after = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )
        assert after == before and not deterministic.fill_uninitialized_memory
