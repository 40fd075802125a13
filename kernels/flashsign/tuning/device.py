"""Facts about a device, each asked once: what decides which kernels can run there, and with which
block sizes.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from flashsign.attention.validation import has_values

# Found out once at import, because torch.compile cannot trace these calls.
HAS_TRITON = importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@dataclass(frozen=True)
class Device:
    """Facts about a device on which decisions depend.

    kind: "cuda", "cpu", ...; capability: CUDA's compute capability; triton: version of Triton, ""
        where it is not installed; interpreted: whether kernels run in Triton's interpreter, on a
        CPU.
    """

    kind: str
    capability: tuple[int, int] = (0, 0)
    triton: str = ""
    interpreted: bool = False


@cache
def device_facts(device: torch.device) -> Device:
    """Return the facts about a device of this machine."""
    if device.type == "cuda":
        return Device("cuda", capability(device), _triton_version())
    return Device(
        device.type, triton=_triton_version() if INTERPRETED else "", interpreted=INTERPRETED
    )


def facts_of(x: Tensor) -> Device:
    """Return the facts about a tensor's device.

    While torch traces, and for tensors without values, they cannot be looked up, and the device
    need not be here: calls are planned for one that has kernels.
    """
    if has_values(x):
        return device_facts(x.device)
    if x.is_cuda:
        return _TRACED_CUDA
    return _TRACED_META if x.is_meta else _TRACED_CPU


_TRACED_CUDA = Device("cuda", (8, 0), triton="traced" if HAS_TRITON else "")
_TRACED_CPU = Device("cpu", triton="traced" if HAS_TRITON else "", interpreted=INTERPRETED)
_TRACED_META = Device("meta", triton="traced" if HAS_TRITON else "", interpreted=INTERPRETED)


def _triton_version() -> str:
    if not HAS_TRITON:
        return ""
    import triton

    return str(triton.__version__)


@cache
def device_limits(device: torch.device) -> tuple[int, int]:
    """Return the number of multiprocessors and the bytes of shared memory of a program; of a CPU 1
    and 1 GiB.
    """
    if device.type != "cuda":
        return 1, 2**30
    limits = torch.cuda.get_device_properties(device)
    # Not every build of torch reports how much shared memory there is.
    return limits.multi_processor_count, getattr(limits, "shared_memory_per_block_optin", 2**30)


def multiprocessor_count(device: torch.device) -> int:
    """Return the number of multiprocessors of a device."""
    return device_limits(device)[0]


def device_name(device: torch.device) -> str:
    """Return the name of a device, such as "NVIDIA H200", or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


@cache
def capability(device: torch.device) -> tuple[int, int]:
    """Return the compute capability of a CUDA device; cached, because torch.compile cannot trace
    the call.
    """
    return torch.cuda.get_device_capability(device)
