"""What the autograd functions of the folds' kernels share: tensors as kernels read them, and first derivatives only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from flashsign.eager.transforms import in_batches, without_autocast


def contiguous(x: Any) -> Any:
    """x with adjacent rows that begin at a multiple of 16 bytes, as descriptors read them; None as it is."""
    if x is None:
        return None
    x = x.contiguous()
    return x if x.data_ptr() % 16 == 0 else x.clone()


def beyond_kernels(grad: Tensor) -> bool:
    """Whether a backward is differentiated itself, or over batched gradients: then it takes plain operations."""
    return torch.is_grad_enabled() or in_batches(grad)


@contextmanager
def around_kernels(x: Tensor) -> Iterator[None]:
    """x's device is the current one, on which kernels start, and autocast rounds no product beside them."""
    with without_autocast(x):
        if x.is_cuda and x.get_device() != torch.cuda.current_device():
            with torch.cuda.device(x.device):
                yield
        else:
            yield
