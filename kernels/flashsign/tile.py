"""What a launch is shaped by: a tile that others stream by, or a pass over rows."""

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
