"""The device and the software that a benchmark ran on."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import torch


def versions(device: torch.device) -> dict[str, str]:
    """The device's name, and the releases of torch and Triton ("": none)."""
    try:
        triton = version("triton")
    except PackageNotFoundError:
        triton = ""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {"device": name, "torch": torch.__version__, "triton": triton}
