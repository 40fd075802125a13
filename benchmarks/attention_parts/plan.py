"""The points that are timed, the operations of each, and how long all of them will take."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from attention_parts.clock import run_counts

HEADS = 8  # cells x heads of every point
WAVE = 132 * 128  # queries that an H200 starts at once: 132 multiprocessors, tiles of 128 queries
SIZES = (2048, 4096, 8191, 8192, 13824, WAVE, 27648, 2 * WAVE, 41472)
# The sizes of methods that are not measured at all sizes: weights is eager in another form, compile prepares for long.
FEW = {"weights": (41472,), "compile": (4096, 13824, 41472)}
WIDTHS = (128, 64)
DTYPES = ("fp16", "bf16")
DIRECTIONS = ("forward", "backward", "both")
DEFAULT_METHODS = ("eager", "weights", "compile", "flash", "cudnn", "stream", "moments")
BUDGET_S = 0.1  # for a method in one direction at a point: the default run took 7 minutes

# Scores and weighted values are 4 N M E operations per head, two products. A backward that stores no scores needs five
# such products. The nominal 10 N M E counts for every method, whatever it really does, so that rates compare as times.
OPERATIONS = {"forward": 4, "backward": 10, "both": 14}

# Expected milliseconds at N = 41472, E = 128 on an H200, for the estimate alone.
EXPECTED_MS = {
    "eager": (60, 120, 180),
    "weights": (101, 0, 0),  # its backward does not fit the memory
    "compile": (60, 120, 180),
    "flash": (20, 56, 76),
    "cudnn": (12, 33, 45),
    "stream": (11, 35, 46),
    "moments": (1, 2, 3),
}
# Seconds before the first timed run of a method at a point, on average: compilation, cuDNN's plans, first allocations.
# Triton kernels are compiled once for a width and dtype, and once more for a size that 16 does not divide.
PREPARE_S = {"compile": 5.0, "cudnn": 0.7, "stream": 1.5, "moments": 1.5}


class Point(NamedTuple):
    size: int  # N = M
    width: int
    dtype: str

    def __str__(self) -> str:
        return f"N = {self.size}, E = {self.width}, {self.dtype}"


@dataclass(frozen=True)
class Plan:
    sizes: tuple[int, ...]
    widths: tuple[int, ...]
    dtypes: tuple[str, ...]
    methods: tuple[str, ...]
    directions: tuple[str, ...]
    budget_s: float
    everywhere: bool = False  # whether the methods of FEW are measured at every size

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Plan:
        """The options that were given, and for others the defaults of --smoke, of --quick or of the full run."""
        if arguments.smoke:
            default = cls((32, 33), (16,), DTYPES, ("eager", "flash", "cudnn", "stream", "moments"), DIRECTIONS, 0.02)
        elif arguments.quick:
            quick = tuple(name for name in DEFAULT_METHODS if name not in FEW)
            default = cls((8192, 41472), WIDTHS, ("fp16",), quick, DIRECTIONS, BUDGET_S)
        else:
            default = cls(SIZES, WIDTHS, DTYPES, DEFAULT_METHODS, DIRECTIONS, BUDGET_S)
        asked = {name: getattr(arguments, name) for name in ("sizes", "widths", "dtypes", "methods", "directions")}
        return cls(
            *(tuple(given) if given else getattr(default, name) for name, given in asked.items()),
            arguments.budget_s or default.budget_s,
            bool(arguments.sizes),
        )

    def points(self) -> Iterator[Point]:
        for dtype in self.dtypes:
            for width in self.widths:
                yield from (Point(size, width, dtype) for size in self.sizes)

    def methods_at(self, point: Point) -> tuple[str, ...]:
        """Methods of FEW are measured at their own sizes only, unless --sizes is given."""
        return tuple(name for name in self.methods if self.everywhere or point.size in FEW.get(name, (point.size,)))


def operations(direction: str, queries: int, keys: int, width: int, heads: int = HEADS) -> int:
    return OPERATIONS[direction] * queries * keys * width * heads


def expected_ms(method: str, point: Point, direction: str) -> float:
    """Time grows with N^2 (moments: N); half the width takes 0.6 of the time, or 0.9 where scores are stored."""
    whole = EXPECTED_MS[method][DIRECTIONS.index(direction)]
    growth = (point.size / 41472) ** (1 if method == "moments" else 2)
    narrow = 0.9 if method in ("eager", "weights", "compile") else 0.6
    return max(whole * growth * (narrow if point.width < 128 else 1), 0.02)


def estimate(plan: Plan) -> float:
    """Seconds that the run will take on an H200."""
    seconds = 10.0  # start and rates
    for point in plan.points():
        for method in plan.methods_at(point):
            seconds += PREPARE_S.get(method, 0.1)
            for direction in plan.directions:
                ms = expected_ms(method, point, direction)
                seconds += (sum(run_counts(ms, plan.budget_s)) + 6) * ms / 1000 + 0.01
    return seconds
