"""Training steps of the model that `grn train` trains, with flashsign's attention and with softmax in its place.

    PYTHONPATH=.:kernels python benchmarks/training.py                 # an H200: four minutes
    PYTHONPATH=.:kernels python benchmarks/training.py --genes 5000    # one size: a minute and a half
    PYTHONPATH=.:kernels python benchmarks/training.py --trace         # which CUDA kernels take the time
    PYTHONPATH=.:kernels python benchmarks/training.py --agree         # losses on the CPU and on the GPU
    PYTHONPATH=.:kernels python benchmarks/training.py --smoke --device cpu

--agree, --trace and --measure may stand together and run in this order; --measure is what runs without any of them.
What the first two have to complain of is the exit status, after everything has run. --measure prints a table and writes
`training.csv` after every point, whose columns are COLUMNS below. The cells are made up and wait on the device: times
are those of forward, objectives, backward, clipping and AdamW (training_parts/steps.py). How softmax is put in
flashsign's place, and how that favours softmax, stands in training_parts/methods.py.
"""

from __future__ import annotations

import argparse
import math
import platform
import tempfile
import time
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from attention_parts.methods import attempt
from training_parts.agree import STEPS, agree
from training_parts.cells import Point, batches
from training_parts.methods import METHODS, attending, methods_at
from training_parts.steps import BATCHES, PRECISIONS, measured, road_of
from training_parts.trace import trace

HERE = Path(__file__).resolve().parent
BAGS, KEYS = ("dense", "packed"), ("5 %", "all")
SIZES = (2000, 5000, 20000)
COLUMNS = {
    "bags": "dense: every cell over the same genes; packed: each over its own, of 40000",
    "genes": "of a cell; packed: on average, sizes vary by 20 %",
    "keys": "the genes that gene queries read: 5 % of them, as data.regulators lists them, or all",
    "cells": "of a batch",
    "members": "of the (frozen) regulation layer, which is a part of the model: grn/regulation.py",
    "precision": "bf16-mixed (what grn train takes on a GPU) or 32-true, as Lightning calls them",
    "method": "flashsign: its door as the model calls it; flashsign stream: the kernels where the door takes moments;"
    " SDPA: torch's choice; SDPA cuDNN: forced; varlen: FlashAttention on packed bags without padding",
    "kernel": "what gene queries ran on",
    "s_per_step": "median seconds of a training step",
    "s_20": "quantile at 20 %",
    "s_80": "quantile at 80 %",
    "steps": "timed steps",
    "cells_per_s": "cells / s_per_step",
    "memory_gib": "torch.cuda.max_memory_allocated over the timed steps, in GiB",
    "ratio_sdpa": "cells_per_s over that of SDPA at the same point: above 1 is faster",
    "ratio_fastest": "cells_per_s over that of the fastest softmax at the same point",
    "status": "ok, OOM, or why there is no number",
    "device": "",
    "torch": "",
    "triton": "",
}


def versions(device: torch.device) -> dict[str, str]:
    try:
        triton = version("triton")
    except PackageNotFoundError:
        triton = ""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {"device": name, "torch": torch.__version__, "triton": triton}


def rows_at(
    point: Point, names: tuple[str, ...], device: torch.device, precision: str, budget_s: float
) -> list[dict[str, Any]]:
    """A row a method; one that fails leaves the others be."""
    made = batches(point, BATCHES)
    road = road_of(point, precision, device)
    rows = []
    for name in methods_at(names, point.bags, road):
        make = METHODS[name]
        attention = make() if make else None
        with attending(attention):
            found, status = attempt(partial(measured, point, made, device, precision, budget_s), device)
        row = dict.fromkeys(COLUMNS, math.nan) | {name: getattr(point, name) for name in list(COLUMNS)[:5]}
        row |= {"precision": precision, "method": name, "status": status}
        row["kernel"] = getattr(attention, "kernel", road if name == "flashsign" else "kernels")
        if found is not None:
            row |= found._asdict() | {"cells_per_s": point.cells / found.s_per_step}
        rows.append(row)
    return with_ratios(rows)


def with_ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of one point, each with its rate over SDPA's and over the fastest softmax's (nan: there is none)."""
    softmax = {row["method"]: row["cells_per_s"] for row in rows if "flashsign" not in row["method"]}
    measured_rates = [rate for rate in softmax.values() if not math.isnan(rate)]
    fastest = max(measured_rates, default=math.nan)
    for row in rows:
        row["ratio_sdpa"] = row["cells_per_s"] / softmax.get("SDPA", math.nan)
        row["ratio_fastest"] = row["cells_per_s"] / fastest
    return rows


HEADER = (
    f"{'bags':<7}{'genes':>6}{'keys':>5}{'cells':>6}  {'method':<17}{'ms/step':>9}{'20 %':>8}{'80 %':>8}"
    f"{'cells/s':>10}{'GiB':>8}{'x SDPA':>8}{'x best':>8}  kernel"
)


def line(row: dict[str, Any]) -> str:
    start = f"{row['bags']:<7}{row['genes']:>6}{row['keys']:>5}{row['cells']:>6}  {row['method']:<17}"
    if row["status"] != "ok":
        return f"{start} {row['status'][:110]}"
    ms = (1000 * row[name] for name in ("s_per_step", "s_20", "s_80"))
    shown = "{:>9.2f}{:>8.2f}{:>8.2f}".format(*ms) + f"{row['cells_per_s']:>10.1f}{row['memory_gib']:>8.2f}"
    return f"{start}{shown}{row['ratio_sdpa']:>8.2f}{row['ratio_fastest']:>8.2f}  {row['kernel']}".replace("nan", "  -")


def measure(arguments: argparse.Namespace, points: list[Point], device: torch.device) -> None:
    """The table, line by line; what is known so far is in the CSV."""
    begun, known, path = time.monotonic(), versions(device), arguments.output / "training.csv"
    print(", ".join(f"{name} {value}" for name, value in known.items() if value) + f", {arguments.precision}")
    print(
        f"x SDPA, x best: cells/s over those of SDPA and of the fastest softmax, above 1 is faster\n{HEADER}",
        flush=True,
    )
    found: list[dict[str, Any]] = []
    for point in points:
        if time.monotonic() - begun > arguments.limit_s:
            print(f"from {point} on: not measured, --limit-s {arguments.limit_s:.0f} is over")
            break
        for row in rows_at(point, tuple(arguments.methods), device, arguments.precision, arguments.budget_s):
            found.append(row | known)
            print(line(row), flush=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        pd.DataFrame(found, columns=list(COLUMNS)).to_csv(path, index=False, float_format="%.6g")
    if not any(row["status"] == "ok" for row in found):
        raise SystemExit("Nothing was measured.")
    print(f"{time.monotonic() - begun:.0f} s; wrote {path}")


def parsed(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="seconds a step and memory (the default part)")
    parser.add_argument("--trace", action="store_true", help="CUDA kernels of three steps at one point")
    parser.add_argument("--agree", action="store_true", help="losses on the CPU against those on the device")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, to see that everything runs")
    parser.add_argument("--genes", nargs="+", type=int, metavar="N")
    parser.add_argument("--bags", nargs="+", choices=BAGS)
    parser.add_argument("--keys", nargs="+", choices=("regulators", "all"))
    parser.add_argument("--cells", type=int, metavar="C", help="of a batch; default: 32, 16 or 4 by size")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--precision", choices=PRECISIONS, help="default: bf16-mixed on a GPU, 32-true on a CPU")
    parser.add_argument("--budget-s", type=float, metavar="S", help="of a method at a point, after its 20 steps")
    parser.add_argument("--limit-s", type=float, default=480, metavar="S", help="no new point after this")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", type=Path, metavar="DIR", help="default: benchmarks/results; --smoke: a new folder")
    arguments = parser.parse_args(words)
    arguments.precision = arguments.precision or PRECISIONS[not arguments.device.startswith("cuda")]
    arguments.budget_s = arguments.budget_s or (0.01 if arguments.smoke else 1.5)
    if arguments.output is None:
        arguments.output = Path(tempfile.mkdtemp(prefix="training-")) if arguments.smoke else HERE / "results"
    return arguments


def points_of(arguments: argparse.Namespace, sizes: tuple[int, ...], **more: int) -> list[Point]:
    """All that was asked for; what was not named is everything."""
    keys = [KEYS[name == "all"] for name in arguments.keys or ("regulators", "all")]
    more |= {"cells": arguments.cells} if arguments.cells else {}
    return [
        Point.of(bags, genes, each, **more)
        for genes in arguments.genes or sizes
        for bags in arguments.bags or BAGS
        for each in keys
    ]


def main(words: list[str] | None = None) -> None:
    arguments = parsed(words)
    if not arguments.smoke and not arguments.device.startswith("cuda"):
        raise SystemExit("Full sizes need a GPU, and none was chosen; --smoke runs tiny ones anywhere.")
    device = torch.device(arguments.device)
    tiny = {"cells": 3, "vocabulary": 80} if arguments.smoke else {}
    complaints: list[str] = []
    if arguments.agree:
        small = {"cells": 8, "vocabulary": 2000} | tiny
        steps, sizes = (3, (40,)) if arguments.smoke else (STEPS, (1000,))
        complaints += agree(points_of(arguments, sizes, **small), device, steps)
    if arguments.trace:
        asked = argparse.Namespace(**vars(arguments))
        asked.bags, asked.keys = arguments.bags or ["packed"], arguments.keys or ["all"]
        for point in points_of(asked, (40,) if arguments.smoke else (5000,), **tiny):
            complaints += trace(point, device, arguments.precision)
    if arguments.measure or not (arguments.agree or arguments.trace):
        measure(arguments, points_of(arguments, (40,) if arguments.smoke else SIZES, **tiny), device)
    if complaints:
        raise SystemExit("\n".join(complaints))


if __name__ == "__main__":
    main()
