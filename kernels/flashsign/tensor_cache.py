"""What was computed from a tensor, kept while the tensor lives unchanged: the layers of a model share their offsets."""

from __future__ import annotations

from collections.abc import Callable, Hashable, MutableMapping
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

T = TypeVar("T")
_RESULTS: MutableMapping[Tensor, dict[Hashable, Any]] = WeakIdKeyDictionary()


def cached(tensor: Tensor, key: Hashable, compute: Callable[[], T]) -> T:
    """The result of compute(), or the one that it gave before for the same tensor, unchanged since, and the same key.

    Nothing is kept while torch.compile traces, while a CUDA graph is recorded, or of inference tensors, which do not
    count their changes.
    """
    if torch.compiler.is_compiling() or (tensor.is_cuda and torch.cuda.is_current_stream_capturing()):
        return compute()
    if tensor.is_inference():
        return compute()
    results = _RESULTS.get(tensor)
    if results is None or results["version"] != tensor._version:
        results = _RESULTS[tensor] = {"version": tensor._version}
    if key not in results:
        results[key] = compute()
    result: T = results[key]
    return result
