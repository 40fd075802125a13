"""Many small bags, where launching costs more than the arithmetic: device time in a CUDA graph, and time per call."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from attention_parts.clock import Call, measure, release, synchronise
from attention_parts.methods import METHODS, Inputs, attempt, call_of

CELLS, GENES, WIDTH, HEADS = 256, 64, 32, 4
DIRECTIONS = ("forward", "both")
PEERS = ("sdpa", "flash", "cudnn")
IN_GRAPH = 20  # calls of one graph, so that its own launch does not count
IN_A_ROW = 200


def small_rows(
    dtypes: tuple[str, ...], methods: tuple[str, ...], backend: str, device: torch.device, budget_s: float, smoke: bool
) -> Iterator[dict[str, Any]]:
    """A row a method, dtype and direction, in microseconds; overhead: what a call takes beyond the device's work."""
    cells, in_a_row = (4, 10) if smoke else (CELLS, IN_A_ROW)
    ours = tuple(name for name in methods if name in ("stream", "moments"))
    for dtype in dtypes:
        inputs = Inputs.draw((cells, HEADS, GENES, WIDTH), (cells, GENES), dtype, device)
        for direction in DIRECTIONS:
            for name in (*ours, *PEERS):
                method = METHODS[name]
                with method.context():
                    call = call_of(method.make(backend), inputs, direction)
                    wall, status = attempt(partial(wall_us, call, device, in_a_row), device)
                    graph, graph_status = math.nan, status
                    if wall is not None and device.type == "cuda":
                        graph, graph_status = attempt(partial(graph_us, call, device, budget_s), device)
                    graph, wall = (math.nan if us is None else us for us in (graph, wall))
                yield {
                    **{"method": method.name, "cells": cells, "N": GENES, "E": WIDTH, "heads": HEADS, "dtype": dtype},
                    **{"direction": direction, "graph_us": graph, "call_us": wall, "overhead_us": wall - graph},
                    "status": graph_status,
                }
        release(device)


def wall_us(call: Call, device: torch.device, count: int) -> float:
    """Microseconds a call, of calls in a row that the host does not wait for, until the last is done."""
    for _ in range(5):
        call()
    synchronise(device)
    begun = time.perf_counter()
    for _ in range(count):
        call()
    synchronise(device)
    return 1e6 * (time.perf_counter() - begun) / count


def graph_us(call: Call, device: torch.device, budget_s: float) -> float:
    """Microseconds a call inside a CUDA graph, where nothing waits for the host."""
    beside = torch.cuda.Stream(device)
    beside.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(beside):
        for _ in range(3):
            call()
    torch.cuda.current_stream(device).wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(IN_GRAPH):
            call()
    return 1000 * measure([graph.replay], device, budget_s).ms / IN_GRAPH
