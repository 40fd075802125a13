"""The most bytes that tensors hold at one time, counted operation by operation, on any device."""

from __future__ import annotations

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class PeakBytes(TorchDispatchMode):
    """`with PeakBytes() as memory: ...; memory.peak`: of storages that were made inside and were
    alive together.
    """

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self.alive = set()

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        found = function(*arguments, **(options or {}))
        for tensor in found if isinstance(found, (tuple, list)) else (found,):
            if isinstance(tensor, torch.Tensor):
                self.count(tensor.untyped_storage(), arguments)
        return found

    def count(self, storage, arguments):
        if storage._cdata in self.alive or any(
            isinstance(x, torch.Tensor) and x.untyped_storage()._cdata == storage._cdata
            for x in arguments
        ):
            return
        self.alive.add(storage._cdata)
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self.freed, storage._cdata, storage.nbytes())

    def freed(self, key, size):
        self.alive.discard(key)
        self.now -= size
