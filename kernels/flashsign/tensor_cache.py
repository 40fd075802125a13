"""What was found out about a tensor, kept while it lives unchanged: the layers of a model share their offsets."""

from __future__ import annotations

from collections.abc import Callable, Hashable, MutableMapping
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

T = TypeVar("T")
_FOUND: MutableMapping[Tensor, dict[Hashable, Any]] = WeakIdKeyDictionary()


def remembered(tensor: Tensor, question: Hashable, find: Callable[[], T]) -> T:
    """find(), or what it gave for the same tensor and question before. Nothing is kept of a CUDA graph's recording."""
    if torch.compiler.is_compiling() or (tensor.is_cuda and torch.cuda.is_current_stream_capturing()):
        return find()
    if tensor.is_inference():  # these do not count their changes
        return find()
    known = _FOUND.get(tensor)
    if known is None or known["version"] != tensor._version:
        known = _FOUND[tensor] = {"version": tensor._version}
    if question not in known:
        known[question] = find()
    found: T = known[question]
    return found
