"""Time, memory and rates of calls on a device. On a CPU only the time is measured, to try a
benchmark out.
"""

from __future__ import annotations

import gc
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

Call = Callable[[], Any]
MOST = 100  # warm-up runs, and timed runs
CHUNK = 20  # calls that are issued before the host waits for them
SHORT_MS = 2.0  # a GPU may finish shorter calls faster than the host issues them


class Timing(NamedTuple):
    """Milliseconds (median, quantiles at 20 and 80 %), and the numbers of runs."""

    ms: float
    ms_20: float
    ms_80: float
    warmups: int
    runs: int


class Rates(NamedTuple):
    """Rates that the device reaches: a large matrix product in TFLOP/s per dtype, a copy in TB/s
    (read and written).
    """

    matmul: dict[str, float]
    copy: float


def run_counts(ms: float, budget_s: float) -> tuple[int, int]:
    """Warm-up and timed runs that fit a third and two thirds of the budget: at least 5 and 10, at
    most 100 each.
    """
    fit = 1000 * budget_s / max(ms, 1e-6)
    return int(min(max(fit / 3, 5), MOST)), int(min(max(fit * 2 / 3, 10), MOST))


def measure(calls: Sequence[Call], device: torch.device, budget_s: float) -> Timing:
    """Times the calls one after the other, again and again. Calls on other inputs evict each other
    from the cache.
    """
    repeated = itertools.cycle(calls)
    for call in calls:  # compiles and allocates
        call()
    synchronise(device)
    rough = times(repeated, 2, device)
    warmups, runs = run_counts(min(rough), budget_s)
    issue_s = (
        _issue_seconds(repeated, device) if device.type == "cuda" and min(rough) < SHORT_MS else 0.0
    )
    times(repeated, warmups, device, issue_s)
    found = torch.tensor(times(repeated, runs, device, issue_s), dtype=torch.float64)
    low, middle, high = torch.quantile(
        found, torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64)
    ).tolist()
    return Timing(middle, low, high, warmups, runs)


def recorded(call: Call, device: torch.device, times: int = 1) -> Call:
    """A replay of so many calls as one CUDA graph, where the device does not wait for the host."""
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            call()
    return graph.replay


def times(
    repeated: Iterator[Call], count: int, device: torch.device, issue_s: float = 0.0
) -> list[float]:
    """Milliseconds of `count` calls, each between two events of its own.

    issue_s: the host's time for one call. Short calls are queued while the device pauses, so that
        the device's work is timed without the time that it waits for the host (`--small` measures
        that).
    """
    if device.type != "cuda":
        return [_host_ms(next(repeated)) for _ in range(count)]
    found: list[float] = []
    while len(found) < count:
        chunk = min(CHUNK, count - len(found))
        pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(chunk)]
        if issue_s:
            torch.cuda._sleep(int(2e9 * issue_s * chunk))  # cycles of a clock of about 2 GHz
        for start, end in pairs:
            call = next(repeated)
            start.record()
            call()
            end.record()
        torch.cuda.synchronize(device)
        found += [start.elapsed_time(end) for start, end in pairs]
    return found


def _host_ms(call: Call) -> float:
    begun = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - begun)


def _issue_seconds(repeated: Iterator[Call], device: torch.device) -> float:
    """Seconds of the host for one call, with a margin."""
    torch.cuda.synchronize(device)
    begun = time.perf_counter()
    for _ in range(CHUNK):
        next(repeated)()
    issue_s = 1.2 * (time.perf_counter() - begun) / CHUNK + 2e-5  # 2e-5: two events
    torch.cuda.synchronize(device)
    return min(issue_s, 5e-3)


def peak_mib(call: Call, device: torch.device) -> float:
    """MiB that the call allocates at its peak, its output included (CPU: nan)."""
    if device.type != "cuda":
        return math.nan
    synchronise(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    synchronise(device)
    return (torch.cuda.max_memory_allocated(device) - before) / 2**20


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def release(device: torch.device, *, collect: bool = False) -> None:
    """Returns cached memory to the device. collect: first frees what an exception holds in a
    reference cycle.
    """
    if collect:
        gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def device_rates(
    dtypes: dict[str, torch.dtype], device: torch.device, side: int, budget_s: float
) -> Rates:
    """The highest rates to be expected, measured in the same run as all else, since devices and
    clock rates differ.
    """
    matmul = {
        name: 2 * side**3 / _product_ms(side, dtype, device, budget_s) / 1e9
        for name, dtype in dtypes.items()
    }
    source = torch.randint(0, 255, (2 * side, 8 * side), device=device, dtype=torch.uint8)
    target = torch.empty_like(source)
    ms = measure([partial(target.copy_, source)], device, budget_s).ms
    return Rates(matmul, 2 * source.numel() / ms / 1e9)


def _product_ms(side: int, dtype: torch.dtype, device: torch.device, budget_s: float) -> float:
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    return measure([partial(torch.mm, a, b, out=torch.empty_like(a))], device, budget_s).ms
