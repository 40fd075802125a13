"""Sorting. On a processor NumPy takes a third of torch's time; on a GPU torch sorts."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def ascending(values: Tensor) -> Tensor:
    """Return the values of the last axis in ascending order."""
    return values.sort()[0] if values.is_cuda else torch.from_numpy(np.sort(values.numpy()))


def ascending_order(values: Tensor) -> Tensor:
    """Return the positions that sort `values`, int64. Equal values are in any order."""
    return values.argsort() if values.is_cuda else torch.from_numpy(np.argsort(values.numpy()))
