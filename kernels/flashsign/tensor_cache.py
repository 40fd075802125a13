"""A cache of what was computed from a tensor, valid while the tensor lives unchanged.

All layers of a model get the same offsets, so what is computed from offsets is computed once a
step.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, MutableMapping
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

T = TypeVar("T")
_RESULTS: MutableMapping[Tensor, dict[Hashable, Any]] = WeakIdKeyDictionary()


def cached(tensor: Tensor, key: Hashable, compute: Callable[[], T]) -> T:
    """Return compute(), or its earlier result for this key and this tensor if that has not changed
    since.

    Nothing is kept while torch.compile traces, while a CUDA graph is recorded, or for inference
    tensors, whose changes torch does not count.
    """
    recorded = torch.compiler.is_compiling() or (
        tensor.is_cuda and torch.cuda.is_current_stream_capturing()
    )
    if recorded or tensor.is_inference():
        return compute()
    results = _RESULTS.get(tensor)
    if results is None or results["version"] != tensor._version:
        results = _RESULTS[tensor] = {"version": tensor._version}
    if key not in results:
        results[key] = compute()
    result: T = results[key]
    return result
