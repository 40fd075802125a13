"""Packed bags of uneven sizes against equal ones, and many small bags, whose launches outlast their
arithmetic.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import pandas as pd
import torch
from attention_parts.clock import Call, measure, recorded, release, synchronise
from attention_parts.dense import OPERATIONS
from attention_parts.methods import METHODS, Attend, Inputs, attempt, call_of, public_call
from torch import Tensor

HEADS, WIDTH, BAGS = 8, 128, 64
LARGEST = 5000
DIRECTIONS = ("forward", "both")


def bag_sizes(kind: str, bags: int = BAGS, seed: int = 0, largest: int = LARGEST) -> Tensor:
    """Genes of each bag, between `largest` / 25 and `largest`: lognormal around a quarter of it, or
    uniform.
    """
    random = torch.Generator().manual_seed(seed)
    smallest = largest // 25
    if kind == "lognormal":
        sizes = largest / 4 * torch.exp(0.6 * torch.randn(bags, generator=random))
    else:
        sizes = smallest + (largest - smallest) * torch.rand(bags, generator=random)
    return sizes.round().long().clamp(smallest, largest)


def equal_sizes(sizes: Tensor) -> Tensor:
    """As many bags of one size, with the same sum of N^2 as closely as whole genes allow."""
    return torch.full_like(sizes, int(sizes.double().square().mean().sqrt().round()))


def packed_rows(
    dtypes: tuple[str, ...], backend: str, device: torch.device, budget_s: float, smoke: bool
) -> pd.DataFrame:
    """A row for each kind of sizes, dtype, direction and layout; ratio: its rate over that of equal
    dense bags.
    """
    rows = []
    layouts = ("equal, dense", "equal, packed", "uneven, packed")
    for kind, dtype, layout in product(("lognormal", "uniform"), dtypes, layouts):
        sizes = bag_sizes(kind, 3, largest=50) if smoke else bag_sizes(kind)
        chosen = sizes if layout.startswith("uneven") else equal_sizes(sizes)
        attend, inputs = _layout(layout, chosen, dtype, backend, device)
        pairs = int(chosen.square().sum())
        size = {"bags": len(chosen), "genes": int(chosen.sum()), "pairs": pairs}
        for direction in DIRECTIONS:
            calls = [call_of(attend, one, direction) for one in inputs]
            timing, status = attempt(partial(measure, calls, device, budget_s), device)
            row = {"sizes": kind, "layout": layout, "dtype": dtype, "direction": direction}
            row |= size | {"status": status, "tflops": math.nan}
            if timing is not None:
                operations = OPERATIONS[direction] * pairs * HEADS * WIDTH
                row |= {**timing._asdict(), "tflops": operations / timing.ms / 1e9}
            rows.append(row)
        release(device)
    table = pd.DataFrame(rows)
    same = ["sizes", "dtype", "direction"]
    dense = table[table["layout"] == layouts[0]].set_index(same)["tflops"].rename("dense")
    return table.assign(ratio=table["tflops"] / table.join(dense, on=same)["dense"])


def _layout(
    layout: str, sizes: Tensor, dtype: str, backend: str, device: torch.device
) -> tuple[Attend, list[Inputs]]:
    """flashsign's call and two sets of inputs.

    Packed: q, k, v [T, H, E], multiplicity [T], offsets [C + 1]; dense: [C, H, N, E], multiplicity
        [C, N].
    """
    options: dict[str, Any] = {"method": "stream", "backend": backend}
    if layout.endswith("dense"):
        size = int(sizes[0])
        shape, bags = (len(sizes), HEADS, size, WIDTH), (len(sizes), size)
    else:
        options["offsets"] = torch.cat((sizes.new_zeros(1), sizes.cumsum(0))).to(device)
        shape, bags = (int(sizes.sum()), HEADS, WIDTH), (int(sizes.sum()),)
    return public_call(**options), [
        Inputs.draw(shape, bags, dtype, device, seed) for seed in (0, 1)
    ]


SMALL_CELLS, SMALL_GENES, SMALL_WIDTH, SMALL_HEADS = 256, 64, 32, 4
PEERS = ("sdpa", "flash", "cudnn")
IN_GRAPH = 20  # calls in one graph, so that the launch of the graph itself hardly counts
IN_A_ROW = 200


def small_rows(
    dtypes: tuple[str, ...],
    methods: tuple[str, ...],
    backend: str,
    device: torch.device,
    budget_s: float,
    smoke: bool,
) -> Iterator[dict[str, Any]]:
    """A row for each method, dtype and direction, in microseconds; overhead: a call's time beyond
    the device's work.
    """
    cells, in_a_row = (4, 10) if smoke else (SMALL_CELLS, IN_A_ROW)
    ours = tuple(name for name in methods if name in ("stream", "moments"))
    size = {"cells": cells, "N": SMALL_GENES, "E": SMALL_WIDTH, "heads": SMALL_HEADS}
    shape = cells, SMALL_HEADS, SMALL_GENES, SMALL_WIDTH
    for dtype in dtypes:
        inputs = Inputs.draw(shape, (cells, SMALL_GENES), dtype, device)
        for direction, name in product(DIRECTIONS, (*ours, *PEERS)):
            method, graph = METHODS[name], None
            with method.context():
                call = call_of(method.make(backend), inputs, direction)
                wall, status = attempt(partial(wall_us, call, device, in_a_row), device)
                if wall is not None and device.type == "cuda":
                    graph, status = attempt(partial(graph_us, call, device, budget_s), device)
            graph, wall = (math.nan if us is None else us for us in (graph, wall))
            times = {"graph_us": graph, "call_us": wall, "overhead_us": wall - graph}
            what = {"method": method.name, "dtype": dtype, "direction": direction}
            yield what | size | times | {"status": status}
        release(device)


def wall_us(call: Call, device: torch.device, count: int) -> float:
    """Microseconds per call, of many calls in a loop that synchronises with the GPU once, after the
    last.
    """
    for _ in range(5):
        call()
    synchronise(device)
    begun = time.perf_counter()
    for _ in range(count):
        call()
    synchronise(device)
    return 1e6 * (time.perf_counter() - begun) / count


def graph_us(call: Call, device: torch.device, budget_s: float) -> float:
    """Microseconds per call inside a CUDA graph."""
    replay = recorded(call, device, IN_GRAPH)
    return 1000 * measure([replay], device, budget_s).ms / IN_GRAPH
