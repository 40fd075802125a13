"""The version of ptxas, NVIDIA's assembler, by which Triton compiles: some releases have made right kernels wrong.

Triton brings its own, or takes the one that TRITON_PTXAS_PATH names. It is found here as Triton finds it, without
importing Triton.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from functools import cache
from pathlib import Path

import torch

from flashsign.tuning.device import capability

BLACKWELL = (10, 0)
"""From this compute capability on Triton calls another assembler, ptxas-blackwell."""
NONE, UNKNOWN = "none", "unknown"
"""Where kernels are not assembled by ptxas, as in the interpreter, and where it is missing or says no version."""


def ptxas_version(device: torch.device) -> str:
    """Such as "12.8.93", of the assembler for a device; NONE or UNKNOWN where there is no version."""
    if device.type != "cuda" or torch.version.hip is not None:
        return NONE
    for path in (_named(device), _of_triton(_binary(device))):
        if path and (version := _version(path)):
            return version
    return UNKNOWN


def is_of_triton(device: torch.device) -> bool:
    """Whether Triton takes the assembler that came with it: no other one is named."""
    return not _named(device)


def _binary(device: torch.device) -> str:
    return "ptxas-blackwell" if capability(device) >= BLACKWELL else "ptxas"


def _named(device: torch.device) -> str:
    return os.environ.get(f"TRITON_{_binary(device).upper().replace('-', '_')}_PATH", "")


def _of_triton(binary: str) -> str:
    found = importlib.util.find_spec("triton")
    folders = found.submodule_search_locations if found is not None else None
    return str(Path(folders[0]) / "backends" / "nvidia" / "bin" / binary) if folders else ""


@cache
def _version(path: str) -> str:
    """What the program says, "" where it cannot be run or says none."""
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError, ValueError):
        return ""
    found = re.search(r"release .*?V(\d+(?:\.\d+)+)", said)
    return found[1] if found else ""
