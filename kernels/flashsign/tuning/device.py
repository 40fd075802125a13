"""Facts about a GPU that block sizes and split keys depend on, each asked once."""

from __future__ import annotations

from functools import cache

import torch


@cache
def device_limits(device: torch.device) -> tuple[int, int]:
    """The number of multiprocessors, and the bytes of shared memory that a program may have; for a CPU 1 and 1 GiB."""
    if device.type != "cuda":
        return 1, 2**30
    limits = torch.cuda.get_device_properties(device)
    # Not every build of torch reports how much shared memory there is.
    return limits.multi_processor_count, getattr(limits, "shared_memory_per_block_optin", 2**30)


def multiprocessor_count(device: torch.device) -> int:
    return device_limits(device)[0]


def device_name(device: torch.device) -> str:
    """Return the name of a device, such as "NVIDIA H200", or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


@cache
def capability(device: torch.device) -> tuple[int, int]:
    """Compute capability of a CUDA device. Cached, because torch.compile cannot trace the call."""
    return torch.cuda.get_device_capability(device)
