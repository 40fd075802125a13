"""The tile file that FLASHSIGN_TILES names: block sizes that flashsign.autotune found, by GPU.

    {"NVIDIA H200": {"checked_with": "Triton 3.6.0, kernels 0f3a", "tiles": [{"kernel": "forward", "bytes": 2, ...}]}}

Block sizes were checked with one Triton, one version of the kernels and one kind of GPU, and are used only with these.
"""

from __future__ import annotations

import hashlib
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

from flashsign.errors import UnusableTiles
from flashsign.tuning.block_sizes import TUNABLE, BlockSizes, Kernel, RowBlockSizes, in_range

VARIABLE = "FLASHSIGN_TILES"
KERNELS = Path(__file__).parents[1] / "triton"
ADVICE = f"`python -m flashsign.autotune` writes such files; without {VARIABLE}, flashsign uses its own block sizes."


def read(path: Path, device: str) -> dict[Kernel, BlockSizes | RowBlockSizes]:
    """The file's block sizes for a device, by kernel. Raises UnusableTiles where it has none that can be used there."""
    everything = _read_all(path)
    if device not in everything:
        known = ", ".join(everything) or "no GPU"
        raise UnusableTiles(f"{path} has block sizes for {known}, and this is {device}. {ADVICE}")
    entry = everything[device]
    if entry["checked_with"] != checked_with():
        found = f"were checked with {entry['checked_with']}, and these are {checked_with()}"
        raise UnusableTiles(f"{path}: the block sizes for {device} {found}. {ADVICE}")
    try:
        return dict(map(_block_sizes, entry["tiles"]))
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise UnusableTiles(f"{path}: an entry for {device} is not valid ({problem!r}). {ADVICE}") from problem


def write(path: Path, device: str, changes: dict[Kernel, BlockSizes | RowBlockSizes | None]) -> bool:
    """Writes block sizes of some kernels on a device (None: removes them, so that the tables are used).

    What the file holds for other kernels and devices stays. Block sizes of the device that were checked with another
    Triton or other kernels are removed; returns whether there were any. The file is replaced in one step.
    """
    everything = _read_all(path) if path.exists() else {}
    old = everything.get(device, {"checked_with": checked_with(), "tiles": []})
    outdated = bool(old["checked_with"] != checked_with())
    known = {} if outdated or device not in everything else read(path, device)
    kept = {kernel: sizes for kernel, sizes in (known | changes).items() if sizes is not None}
    rows = [kernel._asdict() | vars(sizes) for kernel, sizes in sorted(kept.items(), key=lambda pair: pair[0])]
    rows = [{"kernel": row.pop("name"), **row} for row in rows]
    everything[device] = {"checked_with": checked_with(), "tiles": rows}
    path = path.resolve()  # so that a link stays a link
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("w", encoding="utf-8") as file:
            json.dump(everything, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    return outdated


def kernel_sources(folder: Path = KERNELS) -> list[Path]:
    """Every *.py below a folder, sorted: what the digest covers. Raises FileNotFoundError where there is none."""
    sources = sorted(folder.rglob("*.py"))
    if not sources:
        raise FileNotFoundError(f"There is no kernel source below {folder}, so no tile file can be checked against it.")
    return sources


def kernel_digest(*folders: Path) -> str:
    """Twelve hexadecimal digits that change with any byte of any source below the folders (default: KERNELS)."""
    sources = (source for folder in folders or (KERNELS,) for source in kernel_sources(folder))
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]


@cache
def checked_with() -> str:
    """What block sizes are checked with here: the version of Triton and the digest of the kernels' source."""
    import triton

    return f"Triton {triton.__version__}, kernels {kernel_digest()}"


def _read_all(path: Path) -> dict[str, dict[str, Any]]:
    """The whole file: GPU name -> {"checked_with": ..., "tiles": [...]}. Raises UnusableTiles for another file."""
    try:
        everything = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as problem:
        raise UnusableTiles(f"{path} cannot be read as a tile file ({problem}). {ADVICE}") from problem
    if not isinstance(everything, dict) or not all(
        isinstance(entry, dict) and {"checked_with", "tiles"} <= entry.keys() for entry in everything.values()
    ):
        raise UnusableTiles(f"{path} is not a tile file. {ADVICE}")
    return everything


def _block_sizes(row: dict[str, Any]) -> tuple[Kernel, BlockSizes | RowBlockSizes]:
    """The kernel and the block sizes of an entry of "tiles". Raises KeyError, TypeError or ValueError for others."""
    numbers = dict(row)
    kernel = Kernel(numbers.pop("kernel"), numbers.pop("bytes"), numbers.pop("width"))
    if kernel.bytes not in (2, 4) or kernel.width not in (16, 32, 64, 128, 256):
        raise ValueError(f"bytes {kernel.bytes!r}, width {kernel.width!r}")
    sizes = TUNABLE[kernel.name](**numbers)
    if not all(type(number) is int for number in numbers.values()) or not in_range(sizes):
        raise ValueError(repr(sizes))
    return kernel, sizes
