"""Memory that nobody has written yet holds NaN, so that a kernel which reads it fails its test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils import deterministic


@contextmanager
def poisoned(*, warn_only: bool = False) -> Iterator[None]:
    """Within it torch.empty, empty_like, new_empty and resize_ give NaN, and the largest integers.

    torch fills only together with deterministic algorithms. Operations that have none raise;
    warn_only: they warn.
    """
    mode = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    filled = deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(mode[0], warn_only=mode[1])
        deterministic.fill_uninitialized_memory = filled
