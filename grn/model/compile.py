"""Methods of a model that torch.compile may fuse, so that many small passes over every gene become few.

Such a method neither synchronises with the GPU nor contains attention, whose kernels are fused already. One compilation
serves every layer and every number of genes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any

import torch
from torch import nn


class Fusible(nn.Module):
    """A module with methods that are `fusible`."""

    fused = False


def fusible(method: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a method of a Fusible: it is compiled while its module is `fused`, and plain Python otherwise."""

    @cache
    def compiled() -> Callable[..., Any]:
        return torch.compile(method, dynamic=True)

    @wraps(method)
    def either(self: Fusible, *arguments: Any) -> Any:
        return (compiled() if self.fused else method)(self, *arguments)

    return either


@contextmanager
def fusing(model: nn.Module, wanted: bool = True) -> Iterator[None]:
    """Within it, the model's fusible methods are compiled, if wanted."""
    parts = [part for part in model.modules() if isinstance(part, Fusible)]
    for part in parts:
        part.fused = wanted
    try:
        yield
    finally:
        for part in parts:
            part.fused = False
