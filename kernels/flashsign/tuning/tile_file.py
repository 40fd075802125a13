"""The file of tiles that FLASHSIGN_TILES names: what autotune.py found, by GPU.

    {"NVIDIA H200": {"checked_with": "Triton 3.6.0, kernels 0f3a", "tiles": [{"kernel": "forward", "bytes": 2, ...}]}}

A tile was checked as one compiler made it of one kernel, on one kind of GPU, so it is taken there alone.
"""

from __future__ import annotations

import hashlib
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

from flashsign.errors import UnusableTiles
from flashsign.tuning.tile import TUNED, Kernel, Pass, Tile, in_range

VARIABLE = "FLASHSIGN_TILES"
MEND = (
    f"`python -m flashsign.autotune` makes such files; without {VARIABLE}, tiles are those that flashsign comes with."
)


def read(path: Path, device: str) -> dict[Kernel, Tile | Pass]:
    """The tiles for a device; raises UnusableTiles where the file has none that can be used there."""
    everything = _read_all(path)
    if device not in everything:
        known = ", ".join(everything) or "no GPU"
        raise UnusableTiles(f"{path} has tiles for {known}, and this is {device}. {MEND}")
    entry = everything[device]
    if entry["checked_with"] != checked_with():
        found = f"were checked with {entry['checked_with']}, and this is {checked_with()}"
        raise UnusableTiles(f"{path}: the tiles for {device} {found}. {MEND}")
    try:
        return dict(map(_tile, entry["tiles"]))
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise UnusableTiles(f"{path}: a tile for {device} cannot be used ({problem!r}). {MEND}") from problem


def write(path: Path, device: str, changes: dict[Kernel, Tile | Pass | None]) -> bool:
    """Sets tiles of a device (None: of the tables again) beside all that the file holds, and moves it in when it is
    whole; tiles of the device that were checked with something else go. Returns whether any went."""
    everything = _read_all(path) if path.exists() else {}
    old = everything.get(device, {"checked_with": checked_with(), "tiles": []})
    outdated = bool(old["checked_with"] != checked_with())
    tiles = {} if outdated or device not in everything else read(path, device)
    tiles = {kernel: tile for kernel, tile in (tiles | changes).items() if tile is not None}
    rows = [kernel._asdict() | vars(tile) for kernel, tile in sorted(tiles.items(), key=lambda pair: pair[0])]
    rows = [{"kernel": row.pop("name"), **row} for row in rows]
    everything[device] = {"checked_with": checked_with(), "tiles": rows}
    path = path.resolve()  # a link stays one
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


def kernel_sources() -> list[Path]:
    """Every source file of the kernels, in the folders below too: what the digest covers."""
    return sorted((Path(__file__).parents[1] / "triton").rglob("*.py"))


@cache
def checked_with() -> str:
    """What a tile is right with: the compiler, and what it compiles."""
    import triton

    sources = kernel_sources()
    kernels = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    return f"Triton {triton.__version__}, kernels {kernels[:12]}"


def _read_all(path: Path) -> dict[str, dict[str, Any]]:
    """What the file holds, by the name of a GPU."""
    try:
        everything = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as problem:
        raise UnusableTiles(f"{path} cannot be read as a file of tiles ({problem}). {MEND}") from problem
    if not isinstance(everything, dict) or not all(
        isinstance(entry, dict) and {"checked_with", "tiles"} <= entry.keys() for entry in everything.values()
    ):
        raise UnusableTiles(f"{path} is not a file of tiles. {MEND}")
    return everything


def _tile(row: dict[str, Any]) -> tuple[Kernel, Tile | Pass]:
    numbers = dict(row)
    kernel = Kernel(numbers.pop("kernel"), numbers.pop("bytes"), numbers.pop("width"))
    if kernel.bytes not in (2, 4) or kernel.width not in (16, 32, 64, 128, 256):
        raise ValueError(f"bytes {kernel.bytes!r}, width {kernel.width!r}")
    tile = TUNED[kernel.name](**numbers)
    if not all(type(number) is int for number in numbers.values()) or not in_range(tile):
        raise ValueError(repr(tile))
    return kernel, tile
