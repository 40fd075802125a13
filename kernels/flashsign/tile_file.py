"""The file of tiles that FLASHSIGN_TILES names: what autotune.py found, by GPU.

    {"NVIDIA H200": {"triton": "3.6.0", "tiles": [{"kernel": "forward", "bytes": 2, "width": 64, "own": 128, ...}]}}

A tile was checked as one compiler makes it, on one kind of GPU, so it is taken there alone.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flashsign.errors import UnusableTiles
from flashsign.tile import Kernel, Pass, Tile

VARIABLE = "FLASHSIGN_TILES"
MEND = (
    f"`python -m flashsign.autotune` makes such files; without {VARIABLE}, tiles are those that flashsign comes with."
)


def read(path: Path, device: str) -> dict[Kernel, Tile | Pass]:
    """The tiles for a device; raises UnusableTiles where the file has none that can be used there."""
    everything = read_all(path)
    if device not in everything:
        known = ", ".join(everything) or "no GPU"
        raise UnusableTiles(f"{path} has tiles for {known}, and this is {device}. {MEND}")
    entry = everything[device]
    if entry["triton"] != triton_version():
        found = f"were checked with Triton {entry['triton']}, and this is {triton_version()}"
        raise UnusableTiles(f"{path}: the tiles for {device} {found}. {MEND}")
    try:
        return dict(map(_tile, entry["tiles"]))
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise UnusableTiles(f"{path}: a tile for {device} cannot be read ({problem!r}). {MEND}") from problem


def read_all(path: Path) -> dict[str, dict[str, Any]]:
    """What the file holds, by the name of a GPU."""
    try:
        everything = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as problem:
        raise UnusableTiles(f"{path} cannot be read as a file of tiles ({problem}). {MEND}") from problem
    if not isinstance(everything, dict) or not all(
        isinstance(entry, dict) and {"triton", "tiles"} <= entry.keys() for entry in everything.values()
    ):
        raise UnusableTiles(f"{path} is not a file of tiles. {MEND}")
    return everything


def write(path: Path, device: str, tiles: Mapping[Kernel, Tile | Pass]) -> None:
    """Puts the tiles of a device into the file, beside those of other devices, and moves it in when it is whole."""
    everything = read_all(path) if path.exists() else {}
    rows = [
        {"kernel": kernel.name, "bytes": kernel.bytes, "width": kernel.width, **vars(tile)}
        for kernel, tile in sorted(tiles.items())
    ]
    everything[device] = {"triton": triton_version(), "tiles": rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".json", delete=False, encoding="utf-8") as beside:
        json.dump(everything, beside, indent=1)
    os.chmod(beside.name, 0o644)
    os.replace(beside.name, path)


def triton_version() -> str:
    return importlib.metadata.version("triton")


def _tile(row: dict[str, Any]) -> tuple[Kernel, Tile | Pass]:
    numbers = dict(row)
    kernel = Kernel(str(numbers.pop("kernel")), int(numbers.pop("bytes")), int(numbers.pop("width")))
    for name, number in numbers.items():
        if not isinstance(number, int) or number < 1:
            raise ValueError(f"{name} of {kernel.name} is {number!r}")
    return kernel, Tile(**numbers) if "own" in numbers else Pass(**numbers)
