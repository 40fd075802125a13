"""The version of ptxas, NVIDIA's assembler, by which Triton compiles: some releases have made right
kernels wrong.

Triton brings two, or takes those that TRITON_PTXAS_PATH and TRITON_PTXAS_BLACKWELL_PATH name; which
of them assembles for a GPU differs from release to release. So Triton is asked, the one that runs.
"""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import torch

from flashsign.tuning.device import capability

NONE, UNKNOWN = "none", "unknown"
"""Where kernels are not assembled by ptxas, as in the interpreter, and where it is missing or says
no version.
"""


def ptxas_version(device: torch.device) -> str:
    """Return the version of the assembler for a device, such as "12.8.93".

    NONE or UNKNOWN where there is no version.
    """
    if device.type != "cuda" or torch.version.hip is not None:
        return NONE
    return _version(_path(device)) or UNKNOWN


def is_of_triton(device: torch.device) -> bool:
    """Return whether Triton takes an assembler that came with it."""
    import triton

    return Path(triton.__file__).parent in Path(_path(device)).parents


def _path(device: torch.device) -> str:
    """Return the assembler that Triton takes for a device, "" where it has none."""
    try:
        from triton.backends.nvidia import compiler

        major, minor = capability(device)
        return str(compiler.get_ptxas(10 * major + minor).path)
    except (ImportError, AttributeError, TypeError, OSError, RuntimeError):
        return ""


@cache
def _version(path: str) -> str:
    """Return the version that the program prints, "" where it cannot be run or prints none."""
    try:
        said = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=20, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError, ValueError):
        return ""
    match = re.search(r"release .*?V(\d+(?:\.\d+)+)", said)
    return match[1] if match else ""
