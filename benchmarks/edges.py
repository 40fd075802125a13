"""What does the mean weight of every target and regulator cost, by edge sums and materialised?

    export PYTHONPATH=.:kernels
    python benchmarks/edges.py                         # half a minute on an H200
    python benchmarks/edges.py --block-sizes           # checks shipped block sizes, times others
    python benchmarks/edges.py --smoke --device cpu    # tiny sizes, without a GPU: seconds

Prints a table and writes `edges.csv` (columns: COLUMNS), where rows of other devices stay. Means
are over cells and heads. The cells are simulated: normal q and k, multiplicities of which a third
are 0. Every method adds to one signed and one absolute table; `materialised` stores all weights of
one cell and head before it adds them, the least that is possible without tiles.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd
import torch
from arguments import SMOKE, Option, all_of, read_options
from results_file import merged, ordered, versions, write
from torch import Tensor

# Without a GPU the kernel runs in Triton's interpreter; the variable must be set before Triton is
# imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from flashsign import EdgeSums, edge_weights
from flashsign.edges.parts import inverse_norms, scaled
from flashsign.tuning import tables
from flashsign.tuning.block_sizes import BlockSizes

HERE = Path(__file__).resolve().parent
SIZES = ((20_000, 2_000), (20_000, 20_000))
SMALL = ((70, 20), (70, 70))
WIDTHS = (16, 64)
HEADS, KEY_HEADS = 4, 2
DTYPES = {"float32": torch.float32, "float16": torch.float16}
KEYS = ("targets", "regulators", "width", "dtype", "method", "device")
COLUMNS = {
    "targets": "",
    "regulators": "",
    "width": "of a head; 4 query heads and 2 key heads",
    "dtype": "of q and k; sums are float32",
    "method": "kernel; kernel signed: no absolute table (float32 alone); torch: the same fold in "
    "torch; materialised",
    "cells": "added in one call",
    "ms_per_cell": "median milliseconds, norms included",
    "norms_ms": "milliseconds per cell of the first pass, over the norms",
    "peak_gib": "peak memory beyond q, k and multiplicities, the tables included",
    "tables_gib": "of the tables alone",
    "error": "relative, of the signed mean against float64, over some rows of targets",
    "error_absolute": "of the absolute mean",
    "status": "ok, OOM, or the reason why nothing was measured",
    "device": "",
    "torch": "",
    "triton": "",
}


@dataclass(frozen=True)
class Cells:
    """q [C, H, N, E], k [C, K, R, E], multiplicity [C, R]."""

    q: Tensor
    k: Tensor
    m: Tensor

    @classmethod
    def draw(
        cls, cells: int, targets: int, regulators: int, width: int, dtype: torch.dtype, device: str
    ) -> Cells:
        random = torch.Generator(device).manual_seed(0)
        q = torch.randn(cells, HEADS, targets, width, generator=random, device=device)
        k = torch.randn(cells, KEY_HEADS, regulators, width, generator=random, device=device)
        m = 3 * torch.rand(cells, regulators, generator=random, device=device)
        return cls(q.to(dtype), k.to(dtype), torch.where(m < 1, 0, m))

    def means_of(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Signed and absolute mean weights of some targets in float64, [rows, R] each."""
        q, k, m = self.q[:, :, rows].double(), self.k.double(), self.m.double()
        each = [
            edge_weights(q[cell : cell + 1], k[cell : cell + 1], m[cell : cell + 1])
            for cell in range(len(q))
        ]
        signed = sum(weights.mean((0, 1)) for weights in each) / len(each)
        return signed, sum(weights.abs().mean((0, 1)) for weights in each) / len(each)


def fold(cells: Cells, backend: str, absolute: bool) -> EdgeSums:
    shape = (cells.q.shape[2], cells.k.shape[2])
    sums = EdgeSums(*shape, absolute=absolute, pairs=False, device=cells.q.device)
    return sums.add(cells.q, cells.k, cells.m, backend=backend)


def materialised(cells: Cells) -> EdgeSums:
    """All weights of one cell and head at a time; they have the inputs' dtype, the sums are
    float32.
    """
    targets, regulators = cells.q.shape[2], cells.k.shape[2]
    sums = EdgeSums(targets, regulators, pairs=False, device=cells.q.device)
    for cell in range(len(cells.q)):
        for head in range(HEADS):
            keys = cells.k[cell, head // (HEADS // KEY_HEADS)] * cells.m[cell, :, None].to(
                cells.k.dtype
            )
            weights = cells.q[cell, head] @ keys.mT
            weights = weights / torch.linalg.vector_norm(
                weights, dim=1, keepdim=True, dtype=torch.float32
            )
            sums.signed.add_(weights, alpha=1 / HEADS)
            sums.absolute.add_(weights.abs_(), alpha=1 / HEADS)
    sums.listed += len(cells.q)
    return sums


METHODS: dict[str, Callable[[Cells], EdgeSums]] = {
    "kernel": lambda cells: fold(cells, "triton", True),
    "kernel signed": lambda cells: fold(cells, "triton", False),
    "torch": lambda cells: fold(cells, "torch", True),
    "materialised": materialised,
}


def synchronise(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def median_ms(call: Callable[[], object], device: str, runs: int) -> float:
    """Median milliseconds of a call, after a first one that compiles."""
    call()
    found = []
    for _ in range(runs):
        synchronise(device)
        begun = time.perf_counter()
        call()
        synchronise(device)
        found.append(1000 * (time.perf_counter() - begun))
    return statistics.median(found)


def peak_gib(call: Callable[[], object], device: str) -> float:
    if not device.startswith("cuda"):
        return math.nan
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**30


def errors(
    sums: EdgeSums, true: dict[int, tuple[Tensor, Tensor]], rows: int
) -> tuple[float, float]:
    """Relative errors of the signed and the absolute means over some rows of targets.

    true: first row of a block of `rows` targets -> their signed and absolute means in float64.
    """
    squares = [[0.0, 0.0], [0.0, 0.0]]
    for start, expected in true.items():
        for kind, found in enumerate(sums.mean(slice(start, start + rows), over="targets")):
            if found is None:
                continue
            squares[kind][0] += float((found.double() - expected[kind]).square().sum())
            squares[kind][1] += float(expected[kind].square().sum())
    signed, absolute = (math.sqrt(off / whole) if whole else math.nan for off, whole in squares)
    return signed, absolute


def rows_at(
    targets: int, regulators: int, width: int, dtype: str, arguments: argparse.Namespace
) -> list[dict[str, object]]:
    device = arguments.device
    cells = Cells.draw(arguments.cells, targets, regulators, width, DTYPES[dtype], device)
    rows = min(32, targets)
    true = {
        start: cells.means_of(slice(start, start + rows))
        for start in (0, (targets - rows) // 2, targets - rows)
    }
    keys = scaled(cells.k, cells.m, cells.k.dtype)[0]
    norms = (
        median_ms(partial(inverse_norms, cells.q, keys, 1e-6), device, arguments.runs)
        / arguments.cells
    )
    found = []
    for name in arguments.methods:
        if name == "kernel signed" and dtype != "float32":
            continue
        row: dict[str, object] = dict.fromkeys(COLUMNS, math.nan)
        row |= {
            "targets": targets,
            "regulators": regulators,
            "width": width,
            "dtype": dtype,
            "method": name,
        }
        row |= {"cells": arguments.cells, "norms_ms": norms if name != "materialised" else math.nan}
        row["tables_gib"] = targets * regulators * 4 * (1 if name == "kernel signed" else 2) / 2**30
        try:
            call = METHODS[name]
            row["error"], row["error_absolute"] = errors(call(cells), true, rows)
            runs = arguments.runs if name.startswith("kernel") else 1
            row["ms_per_cell"] = median_ms(partial(call, cells), device, runs) / arguments.cells
            row["peak_gib"] = peak_gib(partial(call, cells), device)
            row["status"] = "ok"
        except torch.OutOfMemoryError:
            row["status"] = "OOM"
        except Exception as problem:  # a method that fails must not end the run of the others
            row["status"] = repr(problem)[:200]
        if device.startswith("cuda"):
            torch.cuda.empty_cache()
        found.append(row)
        print(line(row), flush=True)
    return found


HEADER = (
    f"{'targets':>8}{'regulators':>11}{'width':>6} "
    f"{'dtype':<9}{'method':<14}{'ms/cell':>9}{'norms':>8}{'GiB':>8}"
    f"{'tables':>8}{'error':>10}{'of |w|':>10}"
)


def line(row: dict[str, object]) -> str:
    start = (
        f"{row['targets']:>8}{row['regulators']:>11}{row['width']:>6} "
        f"{row['dtype']:<9}{row['method']:<14}"
    )
    if row["status"] != "ok":
        return f"{start} {row['status']}"
    numbers = (
        f"{row['ms_per_cell']:>9.3f}{row['norms_ms']:>8.3f}"
        f"{row['peak_gib']:>8.2f}{row['tables_gib']:>8.2f}"
    )
    return f"{start}{numbers}{row['error']:>10.1e}{row['error_absolute']:>10.1e}".replace(
        "nan", "  -"
    )


def measure(arguments: argparse.Namespace) -> None:
    known = versions(torch.device(arguments.device))
    print(
        ", ".join(f"{name} {value}" for name, value in known.items() if value) + f"\n{HEADER}",
        flush=True,
    )
    begun, found = time.monotonic(), []
    for targets, regulators in SMALL if arguments.smoke else SIZES:
        for width in arguments.widths:
            for dtype in arguments.dtypes:
                found += [
                    row | known for row in rows_at(targets, regulators, width, dtype, arguments)
                ]
    if not any(row["status"] == "ok" for row in found):
        raise SystemExit("Nothing was measured.")
    path = arguments.output / "edges.csv"
    table = merged(path, pd.DataFrame(found, columns=list(COLUMNS)), KEYS)
    sizes = sorted(set(table["regulators"]))
    write(
        path,
        ordered(
            table, regulators=sizes, width=list(WIDTHS), dtype=list(DTYPES), method=list(METHODS)
        ),
    )
    print(f"{time.monotonic() - begun:.0f} s; wrote {path}")
    # Sums and products are as exact as float32; a 16-bit key is rounded once, when it is scaled.
    limits = {"float32": 1e-5, "float16": 5e-3}
    ours = [row for row in found if row["status"] == "ok" and row["method"] != "materialised"]
    wrong = [row for row in ours if not row["error"] <= limits[str(row["dtype"])]]
    if wrong:
        raise SystemExit("\n".join(["Too far from float64:", *map(line, wrong)]))


TRIALS = [
    (64, 64, 4, 3),
    (64, 128, 4, 3),
    (64, 128, 8, 3),
    (128, 128, 8, 3),
    (128, 128, 4, 2),
    (128, 256, 8, 3),
]


def check_block_sizes(arguments: argparse.Namespace) -> None:
    """Checks all shipped block sizes against float64 on uneven sizes, then times them beside a few
    others.
    """
    wrong, device = [], arguments.device
    for (size, width), (shipped, *_) in tables.TABLES["edge_sums"].items():
        dtype = {2: "float16", 4: "float32"}[size]
        worst = 0.0
        for targets, regulators in (
            ((1, 7), (70, 33)) if arguments.smoke else ((1, 7), (113, 130), (1000, 1025))
        ):
            cells = Cells.draw(3, targets, regulators, width, DTYPES[dtype], device)
            found = fold(cells, "triton", True)
            worst = max(worst, *errors(found, {0: cells.means_of(slice(None))}, targets))
        good = worst <= {"float32": 4e-6, "float16": 4e-3}[dtype]
        wrong += [] if good else [f"{dtype} {width} {shipped}: {worst:.1e}"]
        print(
            f"{dtype} width {width}: {shipped} error {worst:.1e} {'ok' if good else 'WRONG'}",
            flush=True,
        )
    if not arguments.smoke:
        for dtype in arguments.dtypes:
            for width in arguments.widths:
                trials(dtype, width, device)
    if wrong:
        raise SystemExit("\n".join(["Too far from float64:", *wrong]))


def trials(dtype: str, width: int, device: str) -> None:
    """Prints the times of the shipped block sizes and of others at 20 000 x 20 000."""
    from flashsign.triton.edge_sums import add_weights

    cells = Cells.draw(4, *SIZES[-1], width, DTYPES[dtype], device)
    keys = scaled(cells.k, cells.m, cells.k.dtype)[0]
    sums = torch.zeros(2, *SIZES[-1], device=device)
    call = partial(add_weights, cells.q, keys, inverse_norms(cells.q, keys, 1e-6).float(), *sums)
    own = tables.TABLES["edge_sums"][cells.q.element_size(), width][0]
    for trial in dict.fromkeys([own, *(BlockSizes(*numbers) for numbers in TRIALS)]):
        try:
            outcome = f"{median_ms(partial(call, trial), device, 3) / len(cells.q):.3f} ms/cell"
        except Exception as problem:  # too little shared memory
            outcome = type(problem).__name__
        print(
            f"{dtype} width {width} {trial}: {outcome}{' (shipped)' if trial == own else ''}",
            flush=True,
        )


def parsed(argv: list[str] | None) -> argparse.Namespace:
    arguments = read_options(
        __doc__,
        argv,
        block_sizes=Option(False, "check the shipped block sizes, and time others"),
        smoke=SMOKE,
        widths=list(WIDTHS),
        dtypes=all_of(DTYPES),
        methods=all_of(METHODS),
        cells=Option(help="cells of a call (default: 8, with --smoke 2)", kind=int),
        runs=Option(3, "timed runs of flashsign's kernel (default: 3)"),
        device="cuda" if torch.cuda.is_available() else "cpu",
        output=Option(help="default: benchmarks/results; --smoke: a new folder", kind=Path),
    )
    arguments.cells = arguments.cells or (2 if arguments.smoke else 8)
    if arguments.output is None:
        arguments.output = (
            Path(tempfile.mkdtemp(prefix="edges-")) if arguments.smoke else HERE / "results"
        )
    return arguments


def main(argv: list[str] | None = None) -> None:
    arguments = parsed(argv)
    if not arguments.smoke and not arguments.device.startswith("cuda"):
        raise SystemExit(
            f"Full sizes need a GPU, and --device is {arguments.device}; --smoke runs tiny ones "
            "anywhere."
        )
    (check_block_sizes if arguments.block_sizes else measure)(arguments)


if __name__ == "__main__":
    main()
