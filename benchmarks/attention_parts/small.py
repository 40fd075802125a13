"""Many small bags, where launches take longer than the arithmetic: time in a CUDA graph, and time of a plain call."""

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
IN_GRAPH = 20  # calls in one graph, so that the launch of the graph itself hardly counts
IN_A_ROW = 200


def small_rows(
    dtypes: tuple[str, ...], methods: tuple[str, ...], backend: str, device: torch.device, budget_s: float, smoke: bool
) -> Iterator[dict[str, Any]]:
    """A row for each method, dtype and direction, in microseconds; overhead: a call's time beyond the device's work."""
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
    """Microseconds per call, of many calls in a loop that synchronises with the GPU once, after the last."""
    for _ in range(5):
        call()
    synchronise(device)
    begun = time.perf_counter()
    for _ in range(count):
        call()
    synchronise(device)
    return 1e6 * (time.perf_counter() - begun) / count


def graph_us(call: Call, device: torch.device, budget_s: float) -> float:
    """Microseconds per call inside a CUDA graph, where the device does not wait for the host."""
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(IN_GRAPH):
            call()
    return 1000 * measure([graph.replay], device, budget_s).ms / IN_GRAPH
