"""The main part: every method at every point, in every direction."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from attention_parts.clock import Rates, measure, peak_mib, release
from attention_parts.methods import METHODS, Attend, Inputs, Method, attempt, call_of
from torch import Tensor

from flashsign.attention.reference import reference_spherical_attention

HEADS = 8  # cells x heads of every point
WAVE = 132 * 128  # queries that an H200 starts at once: 132 multiprocessors, tiles of 128 queries
SIZES = (2048, 4096, 8191, 8192, 13824, WAVE, 27648, 2 * WAVE, 41472)
# The sizes of methods that are not measured at all sizes: compile prepares for long.
FEW = {"compile": (4096, 13824, 41472)}
WIDTHS = (128, 64)
DTYPES = ("fp16", "bf16")
DIRECTIONS = ("forward", "backward", "both")
DEFAULT_METHODS = ("eager", "compile", "flash", "cudnn", "stream", "moments")
BUDGET_S = 0.1  # for a method in one direction at a point: the default run took 7 minutes

# Scores and weighted values are 4 N M E operations per head, two products. A backward that stores
# no scores needs five such products. The nominal 10 N M E counts for every method, whatever it
# really does, so that rates compare as times.
OPERATIONS = {"forward": 4, "backward": 10, "both": 14}


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
        """The options that were given, and for others the defaults of --smoke, of --quick or of the
        full run.
        """
        default = cls(SIZES, WIDTHS, DTYPES, DEFAULT_METHODS, DIRECTIONS, BUDGET_S)
        several = tuple(name for name in DEFAULT_METHODS if name not in FEW)
        if arguments.smoke:
            default = replace(default, sizes=(32, 33), widths=(16,), methods=several, budget_s=0.02)
        elif arguments.quick:
            default = replace(default, sizes=(8192, 41472), dtypes=("fp16",), methods=several)
        names = ("sizes", "widths", "dtypes", "methods", "directions")
        asked = {name: tuple(given) for name in names if (given := getattr(arguments, name))}
        budget_s = arguments.budget_s or default.budget_s
        return replace(default, **asked, budget_s=budget_s, everywhere=bool(arguments.sizes))

    def points(self) -> Iterator[Point]:
        for dtype in self.dtypes:
            for width in self.widths:
                yield from (Point(size, width, dtype) for size in self.sizes)

    def methods_at(self, point: Point) -> tuple[str, ...]:
        """Methods of FEW are measured at their own sizes only, unless --sizes is given."""
        return tuple(
            name
            for name in self.methods
            if self.everywhere or point.size in FEW.get(name, (point.size,))
        )


def operations(direction: str, queries: int, keys: int, width: int, heads: int = HEADS) -> int:
    return OPERATIONS[direction] * queries * keys * width * heads


ROWS = 256
NEAR = 0.01


def accuracy(
    output: Tensor, inputs: Inputs, eps: float, *, head: int = -1, seed: int = 0
) -> dict[str, float]:
    """Fraction of elements within 0.01, and ||o - ref|| / ||ref||, over 256 queries of one head of
    the first cell.

    The reference reads the same rounded inputs, so this is the error of the computation alone.
    """
    random = torch.Generator().manual_seed(seed)
    rows = torch.randperm(output.shape[2], generator=random)[:ROWS].to(output.device)
    q, k, v = (x.detach()[:1, head, None].double() for x in inputs[:3])
    reference = reference_spherical_attention(q[:, :, rows], k, v, inputs.m[:1].double(), eps)[0, 0]
    return distance(output.detach()[0, head, rows], reference)


def distance(output: Tensor, reference: Tensor) -> dict[str, float]:
    error = output.double() - reference
    return {
        "within_001": float((error.abs() <= NEAR).double().mean()),
        "relative_error": float(error.norm() / reference.norm()),
    }


# The columns of the CSV. ratio_x: the time of x over that of the method, so above 1 the method is
# faster.
COLUMNS = (
    *("method", "N", "E", "dtype", "direction", "ms", "ms_20", "ms_80", "tflops", "matmul_share"),
    *("ratio_cudnn", "ratio_flash", "ratio_eager", "memory_mib", "within_001", "relative_error"),
    *("warmups", "runs", "status", "matmul_tflops", "copy_tbs", "device", "torch", "triton"),
)
PEERS = ("cudnn", "flash", "eager")
Row = dict[str, Any]


def rows_at(
    point: Point,
    plan: Plan,
    methods: tuple[str, ...],
    backend: str,
    device: torch.device,
    rates: Rates,
) -> tuple[list[Row], dict[str, str]]:
    """A row for each method and direction, with ratios; and for each method that did not run, the
    reason.
    """
    shape, bags = (1, HEADS, point.size, point.width), (1, point.size)
    sets = [Inputs.draw(shape, bags, point.dtype, device, seed) for seed in (0, 1)]
    rows: list[Row] = []
    failed: dict[str, str] = {}
    for name in methods:
        method = METHODS[name]
        with method.context():
            attend, status = attempt(partial(method.make, backend), device)
            if attend is None:
                failed[name] = status
                continue
            near = _accuracy(method, attend, sets[0], device)
            for direction in plan.directions:
                found, status = attempt(
                    partial(_timed, method, attend, sets, direction, plan.budget_s, device), device
                )
                if status not in ("ok", "OOM"):
                    failed[name] = status
                if not status.startswith("unavailable"):
                    numbers = {**near, **(found or {}), "status": status.split(":")[0]}
                    rows.append({"key": name, "direction": direction, **numbers})
        release(device)
    return [_filled(row, rows, point, rates) for row in rows], failed


def _accuracy(
    method: Method, attend: Attend, inputs: Inputs, device: torch.device
) -> dict[str, float]:
    if not method.spherical:
        return {}
    found, _ = attempt(
        lambda: accuracy(call_of(attend, inputs, "forward")(), inputs, method.eps), device
    )
    return found or {}


def _timed(
    method: Method,
    attend: Attend,
    sets: list[Inputs],
    direction: str,
    budget_s: float,
    device: torch.device,
) -> Row:
    """Alternates between two sets of inputs; takes one where stored scores already evict all else
    from the cache.
    """
    calls = [
        call_of(attend, inputs, direction)
        for inputs in (sets[:1] if method.stores_scores else sets)
    ]
    timing = measure(calls, device, budget_s)
    return {**timing._asdict(), "memory_mib": peak_mib(calls[0], device)}


def _filled(row: Row, rows: list[Row], point: Point, rates: Rates) -> Row:
    """The row with all columns: the point, rates, and ratios to the peers' times in the same
    direction.
    """
    ms = row.get("ms", math.nan)
    tflops = operations(row["direction"], point.size, point.size, point.width) / ms / 1e9
    peers = {
        other["key"]: other.get("ms", math.nan)
        for other in rows
        if other["direction"] == row["direction"]
    }
    columns = {
        "method": METHODS[row["key"]].name,
        "N": point.size,
        "E": point.width,
        "dtype": point.dtype,
    }
    ceiling = rates.matmul[point.dtype]
    ratios = {f"ratio_{peer}": peers.get(peer, math.nan) / ms for peer in PEERS}
    known = {
        "tflops": tflops,
        "matmul_share": tflops / ceiling,
        "matmul_tflops": ceiling,
        "copy_tbs": rates.copy,
    }
    everything = {**columns, **row, **ratios, **known}
    return {column: everything.get(column, math.nan) for column in COLUMNS}


SHOWN = COLUMNS[:6] + COLUMNS[8:16] + ("status",)
LEGEND = """\
ms: median.
tflops: for every method 4 N M E operations per head forward, 10 backward and 14 both, so that
rates compare as times do; moments do far fewer and can exceed the chip's rate.
matmul_share: tflops over those of a large matrix product.
ratio_x: the peer's time in this run over the method's; above 1 the method is faster.
memory_mib: extra memory at the peak (backward alone: without what forward saved).
within_001: the share of elements within 0.01 of float64, and relative_error, both over 256 rows of
one head and for spherical methods only.
Multiplicities get no gradient. Short calls are timed without the time in which the GPU waits for
the host (--small measures that)."""
