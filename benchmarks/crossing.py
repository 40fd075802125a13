"""From how many genes on are moments faster than the stream, and does "auto" choose the faster one?

    export PYTHONPATH=.:kernels
    python benchmarks/crossing.py                                    # 2 minutes on an H200
    python benchmarks/crossing.py --quick                            # fewer: less than a minute
    python benchmarks/crossing.py --picture docs/img/crossing.png    # draws the table alone

Times both methods in a CUDA graph, so that the host's time does not count: forward alone, and
forward with backward, for N = M from 64 to 65 536 (of many cells to 4096) and E from 16 to 128. The
choice is that of flashsign.attention.dispatch.plan for these shapes. It counts as right where it
takes at most 10 % or 5 microseconds longer than the faster method.
Prints and writes a row for every point (`results/crossing.csv`, columns: COLUMNS below).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import seaborn as sns
import torch
from arguments import RESULTS, Option, read_options
from attention_parts.clock import measure, recorded
from matplotlib.figure import Figure
from pictures import finish
from results_file import write

from flashsign import spherical_attention
from flashsign.attention.dispatch import plan

COLOURS = {32: "#e69f00", 64: "#0072b2", 128: "#111111"}
TITLES = {"forward": "forward", "both": "forward and backward"}


def crossing(table: pd.DataFrame, softmax: pd.DataFrame) -> Figure:
    """table: crossing.csv. softmax: attention.csv, of which the rows of cuDNN in fp16 are drawn."""
    rows = table[(table["dtype"] == "float16") & (table["bags"] == 1)]
    long = rows.melt(
        ["genes", "width", "direction"], ["moments_us", "stream_us"], "method", "microseconds"
    )
    long["method"] = long["method"].str.removesuffix("_us")
    peer = softmax[(softmax["method"] == "SDPA cuDNN") & (softmax["dtype"] == "fp16")]
    peer = peer.rename(columns={"N": "genes", "E": "width"})
    peer = peer[peer["width"].isin(COLOURS)].assign(microseconds=1000 * peer["ms"])
    long = pd.concat([long, peer])
    grid = sns.relplot(
        long[long["direction"].isin(TITLES)].replace({"direction": TITLES}),
        x="genes",
        y="microseconds",
        hue="width",
        palette=COLOURS,
        style="method",
        col="direction",
        kind="line",
        height=4,
    )
    finish(grid)
    grid.set_axis_labels("genes of a bag, 8 heads", "microseconds (H200, 16-bit)").tight_layout()
    return grid.figure


BUDGET_S = 0.1  # for a method at a point
COLUMNS = {
    "genes": "N = M",
    "width": "E",
    "dtype": "",
    "bags": "cells, or packed bags of equal size",
    "heads": "query heads",
    "key_heads": "",
    "packed": "",
    "direction": "forward, or both: forward and backward",
    "stream_us": "microseconds of the device: median of replays of a CUDA graph",
    "moments_us": "",
    "choice": "the method that auto takes",
    "lost": "time of the choice over that of the faster method, minus one",
    "right": "lost is at most a tenth, or five microseconds",
}
Point = tuple[int, int, torch.dtype, int, int, int, bool, str]


def points(quick: bool) -> Iterator[Point]:
    """genes, width, dtype, bags, heads, key heads, packed, direction."""
    half, single = torch.float16, torch.float32
    for direction in ("forward", "both"):
        for width in (32, 64, 128):
            for genes in (2**i for i in range(6, 17, 2 if quick else 1)):
                yield genes, width, half, 1, 8, 8, False, direction
        for width in (16, 32, 64, 128):
            for genes in (64, 128, 256, 512, 1024, 2048, 4096):
                yield genes, width, half, 32, 4, 2, False, direction
        for width in (16, 64):
            for genes in (256, 1024, 4096):
                yield genes, width, half, 32, 4, 2, True, direction
        for width in (16, 32, 64, 128):
            for genes in (256, 1024, 4096):
                yield genes, width, single, 1, 8, 8, False, direction


def call(point: Point, method: str) -> Callable[[], Any]:
    """A call of one method at a point, on random inputs."""
    genes, width, dtype, bags, heads, key_heads, packed, direction = point
    random = torch.Generator("cuda").manual_seed(0)

    def draw(heads: int) -> torch.Tensor:
        shape = (bags * genes, heads, width) if packed else (bags, heads, genes, width)
        return torch.randn(shape, generator=random, device="cuda").to(dtype)

    q, k, v, grad = draw(heads), draw(key_heads), draw(key_heads), draw(heads)
    m = torch.rand(bags * genes if packed else (bags, genes), generator=random, device="cuda") + 0.1  # type: ignore[arg-type]
    packing = {"offsets": torch.arange(bags + 1, device="cuda") * genes} if packed else {}
    if direction == "forward":
        return torch.no_grad()(lambda: spherical_attention(q, k, v, m, method=method, **packing))  # type: ignore[arg-type]
    leaves = [x.requires_grad_() for x in (q, k, v)]
    return lambda: torch.autograd.grad(
        spherical_attention(*leaves, m, method=method, **packing), leaves, grad
    )  # type: ignore[arg-type]


def choice_at(point: Point) -> str:
    """The method that method="auto" takes on this device."""
    genes, width, dtype, bags, heads, key_heads, packed, direction = point
    rows = (bags * genes,) if packed else (bags,)
    sizes = [(*rows, h, width) if packed else (*rows, h, genes, width) for h in (heads, key_heads)]
    return plan(
        *sizes, dtype=dtype, bags=bags if packed else None, gradients=direction == "both"
    ).method


def row_of(point: Point) -> dict[str, Any]:
    device = torch.device("cuda")
    us = {
        method: 1000 * measure([recorded(call(point, method), device)], device, BUDGET_S).ms
        for method in ("stream", "moments")
    }
    choice, best = choice_at(point), min(us.values())
    row = dict(zip(COLUMNS, point, strict=False))
    row |= {"dtype": str(row["dtype"]).removeprefix("torch."), "choice": choice}
    row |= {f"{method}_us": time for method, time in us.items()}
    right = us[choice] <= max(1.1 * best, best + 5)
    return row | {"lost": us[choice] / best - 1, "right": right}


def main() -> int:
    chosen = read_options(
        __doc__,
        quick=Option(False, "every other size"),
        output=RESULTS / "crossing.csv",
        picture=Option(help="draw the table --output, and measure nothing", kind=Path),
    )
    if chosen.picture:
        softmax = pd.read_csv(RESULTS / "attention.csv")
        crossing(pd.read_csv(chosen.output), softmax).savefig(chosen.picture, dpi=150)
        print(f"wrote {chosen.picture}")
        return 0
    if not torch.cuda.is_available():
        print(
            "This benchmark times kernels of a GPU, and this machine has none; --picture draws a "
            "table without one.",
            file=sys.stderr,
        )
        return 2
    rows = []
    for point in points(chosen.quick):
        rows.append(row_of(point) | {"device": torch.cuda.get_device_name()})
        print(pd.DataFrame(rows[-1:]).to_string(index=False, header=len(rows) == 1), flush=True)
    write(chosen.output, pd.DataFrame(rows, columns=[*COLUMNS, "device"]))
    wrong = sum(not row["right"] for row in rows)
    print(
        'method="auto" takes the faster method, or one within 10 % or 5 microseconds of it, at '
        f"{len(rows) - wrong} of {len(rows)} points. Wrote {chosen.output}."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
