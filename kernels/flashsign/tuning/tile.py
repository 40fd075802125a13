"""What a launch is shaped by, a tile that others stream by or a pass over rows, and in what range its numbers lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Kernel(NamedTuple):
    """A kernel of tuning.TABLES or PASSES, for numbers of so many bytes and heads of a padded width."""

    name: str
    bytes: int
    width: int


@dataclass(frozen=True)
class Tile:
    """Rows of a program's own tile, rows of the tiles that stream by, warps of a program, stages of the pipeline."""

    own: int
    other: int
    warps: int
    stages: int

    def shared(self, kept: int, row: int) -> int:
        """Bytes of shared memory: own tiles that are kept, and two tensors' tiles streaming by; row: bytes of one."""
        return (kept * self.own + 2 * self.stages * self.other) * row


@dataclass(frozen=True)
class Pass:
    """A pass over rows: rows of a tile, warps, stages, and how many programs a multiprocessor has."""

    rows: int
    warps: int
    stages: int
    programs: int


LEAST = {"own": 16, "other": 16, "rows": 16, "warps": 2, "stages": 1, "programs": 1}
MOST = {"own": 256, "other": 256, "rows": 256, "warps": 8, "stages": 6, "programs": 8}
"""More rows than triton.launch.GAP at once would reach from a packed bag into the next one."""

TUNED: dict[str, type[Tile] | type[Pass]] = {
    "forward": Tile,
    "key_gradients": Tile,
    "query_gradient": Tile,
    "moment_keys": Pass,
    "moment_queries": Pass,
    "moment_query_sums": Pass,
    "moment_query_gradients": Pass,
    "moment_key_gradients": Pass,
}
"""Kernels whose tiles autotune.py looks for."""


def in_range(tile: Tile | Pass) -> bool:
    """Whether every number lies between LEAST and MOST, and rows and warps are powers of two."""
    return all(
        LEAST[name] <= number <= MOST[name] and (name in ("stages", "programs") or number & (number - 1) == 0)
        for name, number in vars(tile).items()
    )
