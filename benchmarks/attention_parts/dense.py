"""The main part: every method at every point, in every direction."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch

from attention_parts.accuracy import accuracy
from attention_parts.clock import Rates, measure, peak_mib, release
from attention_parts.methods import METHODS, Attend, Inputs, Method, attempt, call_of
from attention_parts.plan import HEADS, Plan, Point, operations

# The columns of the CSV. ratio_x: the time of x over that of the method, so above 1 the method is faster.
COLUMNS = (
    *("method", "N", "E", "dtype", "direction", "ms", "ms_20", "ms_80", "tflops", "matmul_share"),
    *("ratio_cudnn", "ratio_flash", "ratio_eager", "memory_mib", "within_001", "relative_error"),
    *("warmups", "runs", "status", "matmul_tflops", "copy_tbs", "device", "torch", "triton"),
)
PEERS = ("cudnn", "flash", "eager")
Row = dict[str, Any]


def rows_at(
    point: Point, plan: Plan, methods: tuple[str, ...], backend: str, device: torch.device, rates: Rates
) -> tuple[list[Row], dict[str, str]]:
    """A row for each method and direction, with ratios; and for each method that did not run, the reason."""
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
                found, status = attempt(partial(_timed, method, attend, sets, direction, plan.budget_s, device), device)
                if status not in ("ok", "OOM"):
                    failed[name] = status
                if not status.startswith("unavailable"):
                    numbers = {**near, **(found or {}), "status": status.split(":")[0]}
                    rows.append({"key": name, "direction": direction, **numbers})
        release(device)
    return [_filled(row, rows, point, rates) for row in rows], failed


def _accuracy(method: Method, attend: Attend, inputs: Inputs, device: torch.device) -> dict[str, float]:
    if not method.spherical:
        return {}
    found, _ = attempt(lambda: accuracy(call_of(attend, inputs, "forward")(), inputs, method.eps), device)
    return found or {}


def _timed(
    method: Method, attend: Attend, sets: list[Inputs], direction: str, budget_s: float, device: torch.device
) -> Row:
    """Alternates between two sets of inputs; takes one where stored scores already evict all else from the cache."""
    calls = [call_of(attend, inputs, direction) for inputs in (sets[:1] if method.stores_scores else sets)]
    timing = measure(calls, device, budget_s)
    return {**timing._asdict(), "memory_mib": peak_mib(calls[0], device)}


def _filled(row: Row, rows: list[Row], point: Point, rates: Rates) -> Row:
    """The row with all columns: the point, rates, and ratios to the peers' times in the same direction."""
    ms = row.get("ms", math.nan)
    tflops = operations(row["direction"], point.size, point.size, point.width) / ms / 1e9
    peers = {other["key"]: other.get("ms", math.nan) for other in rows if other["direction"] == row["direction"]}
    columns = {"method": METHODS[row["key"]].name, "N": point.size, "E": point.width, "dtype": point.dtype}
    ceiling = rates.matmul[point.dtype]
    ratios = {f"ratio_{peer}": peers.get(peer, math.nan) / ms for peer in PEERS}
    known = {"tflops": tflops, "matmul_share": tflops / ceiling, "matmul_tflops": ceiling, "copy_tbs": rates.copy}
    everything = {**columns, **row, **ratios, **known}
    return {column: everything.get(column, math.nan) for column in COLUMNS}
