"""What does the mean weight of every target and regulator cost, by edge sums and materialised?

    export PYTHONPATH=.:kernels
    python benchmarks/edges.py                         # half a minute on an H200
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
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pandas as pd
import torch
from arguments import (
    OUTPUT,
    SMOKE,
    Option,
    all_of,
    read_options,
    refuse_full_sizes_without_a_gpu,
    settle_places,
)
from attention_parts.clock import measure, peak_mib, release
from attention_parts.methods import attempt
from results_file import merged, ordered, versions, write
from torch import Tensor

# Without a GPU the kernel runs in Triton's interpreter; the variable must be set before Triton is
# imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from flashsign import EdgeSums, edge_weights
from flashsign.edges.parts import inverse_norms, scaled

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
# Sums and products are as exact as float32; a 16-bit key is rounded once, when it is scaled.
LIMITS = {"float32": 1e-5, "float16": 5e-3}


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


def errors(sums: EdgeSums, true: dict[int, tuple[Tensor, Tensor]], rows: int) -> list[float]:
    """Relative errors of the signed and the absolute means over some rows of targets.

    true: first row of a block of `rows` targets -> their signed and absolute means in float64.
    """
    blocks = [sums.mean(slice(start, start + rows), over="targets") for start in true]
    found = []
    for kind, means in enumerate(zip(*blocks, strict=True)):
        if means[0] is None:
            found.append(math.nan)
            continue
        exact = torch.stack([expected[kind] for expected in true.values()])
        off = torch.stack(means).double() - exact
        found.append(float(off.norm() / exact.norm()))
    return found


def rows_at(
    targets: int, regulators: int, width: int, dtype: str, arguments: argparse.Namespace
) -> list[dict[str, object]]:
    device, cells = torch.device(arguments.device), arguments.cells
    drawn = Cells.draw(cells, targets, regulators, width, DTYPES[dtype], arguments.device)
    rows = min(32, targets)
    starts = (0, (targets - rows) // 2, targets - rows)
    true = {start: drawn.means_of(slice(start, start + rows)) for start in starts}
    keys = scaled(drawn.k, drawn.m, drawn.k.dtype)[0]

    def ms_per_cell(call: Callable[[], object]) -> float:
        return measure([call], device, arguments.budget_s).ms / cells

    def measured(method: Callable[[Cells], EdgeSums]) -> dict[str, float]:
        error, error_absolute = errors(method(drawn), true, rows)
        call = partial(method, drawn)
        peak = peak_mib(call, device) / 1024
        row = {"ms_per_cell": ms_per_cell(call), "peak_gib": peak}
        return row | {"error": error, "error_absolute": error_absolute}

    norms = ms_per_cell(partial(inverse_norms, drawn.q, keys, 1e-6))
    found = []
    for name in arguments.methods:
        if name == "kernel signed" and dtype != "float32":
            continue
        sizes = {"targets": targets, "regulators": regulators, "width": width, "dtype": dtype}
        gib = targets * regulators * 4 * (1 if name == "kernel signed" else 2) / 2**30
        row = sizes | {"method": name, "cells": cells, "tables_gib": gib}
        row["norms_ms"] = math.nan if name == "materialised" else norms
        numbers, status = attempt(partial(measured, METHODS[name]), device)
        found.append(row | (numbers or {}) | {"status": status})
        release(device)
    return found


def measure_all(arguments: argparse.Namespace) -> None:
    known, found = versions(torch.device(arguments.device)), []
    for targets, regulators in SMALL if arguments.smoke else SIZES:
        for width in arguments.widths:
            for dtype in arguments.dtypes:
                rows = rows_at(targets, regulators, width, dtype, arguments)
                found += [row | known for row in rows]
                print(pd.DataFrame(rows).to_string(index=False), flush=True)
    table = pd.DataFrame(found, columns=list(COLUMNS))
    if not (table["status"] == "ok").any():
        raise SystemExit("Nothing was measured.")
    path = arguments.output / "edges.csv"
    whole = merged(path, table, KEYS)
    order = {"regulators": sorted(set(whole["regulators"])), "width": WIDTHS, "dtype": DTYPES}
    write(path, ordered(whole, **order, method=METHODS))
    print(f"wrote {path}")
    limit = table["dtype"].map(LIMITS)
    ours = (table["status"] == "ok") & (table["method"] != "materialised")
    wrong = table[ours & ~(table["error"] <= limit)]
    if len(wrong):
        raise SystemExit(f"Too far from float64:\n{wrong.to_string(index=False)}")


def parsed(argv: list[str] | None) -> argparse.Namespace:
    arguments = read_options(
        __doc__,
        argv,
        smoke=SMOKE,
        widths=list(WIDTHS),
        dtypes=all_of(DTYPES),
        methods=all_of(METHODS),
        cells=Option(help="cells of a call (default: 8, with --smoke 2)", kind=int),
        budget_s=Option(1.0, "time for a method at a size"),
        device="cuda" if torch.cuda.is_available() else "cpu",
        output=OUTPUT,
    )
    arguments.cells = arguments.cells or (2 if arguments.smoke else 8)
    settle_places(arguments, "edges")
    return arguments


def main(argv: list[str] | None = None) -> None:
    arguments = parsed(argv)
    refuse_full_sizes_without_a_gpu(arguments)
    measure_all(arguments)


if __name__ == "__main__":
    main()
