"""How many cells a second does `grn train` train, with flashsign's attention and with softmax in its place?

    PYTHONPATH=.:kernels python benchmarks/training.py                 # 4 minutes on an H200
    PYTHONPATH=.:kernels python benchmarks/training.py --genes 5000    # one size: 1.5 minutes
    PYTHONPATH=.:kernels python benchmarks/training.py --whole         # whole transcriptomes: minutes
    PYTHONPATH=.:kernels python benchmarks/training.py --picture docs/img/whole.png    # draws training_whole.csv alone
    PYTHONPATH=.:kernels python benchmarks/training.py --trace         # which CUDA kernels take the time: a minute
    PYTHONPATH=.:kernels python benchmarks/training.py --agree         # losses on the CPU and on the GPU: minutes
    PYTHONPATH=.:kernels python benchmarks/training.py --smoke --device cpu    # tiny sizes, without a GPU: seconds

--agree, --trace, --whole and --measure can be combined and run in this order; without any of them --measure runs.
- --measure prints a table with cells/s over those of softmax in the same run, and writes `training.csv` after every
  point (columns: COLUMNS below).
- --whole (training_parts/whole.py) measures rates at 20 000 genes per cell, for the default model and a wider one, and
  time and memory against the number of genes. It writes `training_whole.csv`.
- --agree and --trace end with exit status 1, after all parts have run, where losses differ or kernels did not run.
- --compile lets torch.compile fuse the small operations, for all methods.

The cells are simulated and already on the device: a step is forward, objectives, backward, clipping and AdamW
(training_parts/steps.py). training_parts/methods.py says how softmax replaces flashsign, and how that favours softmax.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from attention_parts.methods import attempt
from machine import versions
from results_file import merged, write
from training_parts.agree import STEPS, agree
from training_parts.cells import MODELS, Point, batches
from training_parts.methods import METHODS, attending, methods_at
from training_parts.steps import BATCHES, LEAST, PRECISIONS, flashsign_path, measured
from training_parts.trace import trace
from training_parts.whole import PARTS, describe, points_of_whole

HERE = Path(__file__).resolve().parent
BAGS, KEYS = ("dense", "packed"), ("5 %", "all")
SIZES = (2000, 5000, 20000)
COLUMNS = {
    "bags": "dense: all cells have the same genes; packed: each has its own, of a vocabulary of 40 000",
    "genes": "of a cell; packed: the mean, sizes vary by 20 %",
    "keys": "the genes that gene queries read: all, or the 5 % that data.regulators lists",
    "cells": "of a batch",
    "members": "ensemble members of the frozen regulation layer in the model (grn/model/signed/regulation_layer.py)",
    "model": "default: configs/own_data.yaml; wide: width 256, 4 query heads of 64, 2 key heads, hidden width 512",
    "vocabulary": "genes that the model knows",
    "precision": "bf16-mixed (the default of grn train on a GPU) or 32-true, Lightning's names",
    "compiled": "whether torch.compile fused the small operations (trainer.compile)",
    "method": "flashsign: as the model calls it; flashsign stream: the stream where flashsign chooses moments; SDPA: "
    "backend chosen by torch; SDPA cuDNN: cuDNN forced; varlen: FlashAttention on packed bags without padding",
    "kernel": "flashsign's method for gene queries (stream, moments, or torch on a CPU), or the backend of SDPA",
    "s_per_step": "median seconds of a training step",
    "s_20": "quantile at 20 %",
    "s_80": "quantile at 80 %",
    "steps": "timed steps",
    "cells_per_s": "cells / s_per_step",
    "memory_gib": "torch.cuda.max_memory_allocated over the timed steps, in GiB",
    "ratio_sdpa": "cells_per_s over that of SDPA at the same point: above 1 is faster",
    "ratio_fastest": "cells_per_s over that of the fastest softmax at the same point",
    "status": "ok, OOM, or the reason why nothing was measured",
    "device": "",
    "torch": "",
    "triton": "",
}


def rows_at(
    point: Point,
    names: tuple[str, ...],
    device: torch.device,
    precision: str,
    budget_s: float,
    *,
    compiled: bool = False,
    least: int = LEAST,
    count: int = BATCHES,
) -> list[dict[str, Any]]:
    """A row for each method; one that fails does not stop the others. least: fewest steps.   count: batches."""
    made = batches(point, count)
    timing = {"least": least, "compiled": compiled}
    path = flashsign_path(point, precision, device)
    rows = []
    for name in methods_at(names, point.bags, path):
        make = METHODS[name]
        attention = make() if make else None
        with attending(attention):
            found, status = attempt(partial(measured, point, made, device, precision, budget_s, **timing), device)
        row = dict.fromkeys(COLUMNS, math.nan) | {name: getattr(point, name) for name in list(COLUMNS)[:7]}
        row |= {"precision": precision, "compiled": compiled, "method": name, "status": status}
        row["kernel"] = getattr(attention, "kernel", path if name == "flashsign" else "stream")
        if found is not None:
            row |= found._asdict() | {"cells_per_s": point.cells / found.s_per_step}
        rows.append(row)
    return with_ratios(rows)


def with_ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of one point, each with its rate over SDPA's and over that of the fastest softmax (nan: none ran)."""
    softmax = {row["method"]: row["cells_per_s"] for row in rows if "flashsign" not in row["method"]}
    measured_rates = [rate for rate in softmax.values() if not math.isnan(rate)]
    fastest = max(measured_rates, default=math.nan)
    for row in rows:
        row["ratio_sdpa"] = row["cells_per_s"] / softmax.get("SDPA", math.nan)
        row["ratio_fastest"] = row["cells_per_s"] / fastest
    return rows


HEADER = (
    f"{'bags':<7}{'model':<8}{'genes':>6}{'keys':>5}{'cells':>6}  {'method':<17}{'ms/step':>9}{'20 %':>8}{'80 %':>8}"
    f"{'cells/s':>10}{'GiB':>8}{'x SDPA':>8}{'x best':>8}  kernel"
)


def line(row: dict[str, Any]) -> str:
    start = f"{row['bags']:<7}{row['model']:<8}{row['genes']:>6}{row['keys']:>5}{row['cells']:>6}  {row['method']:<17}"
    if row["status"] != "ok":
        return f"{start} {row['status'][:110]}"
    ms = (1000 * row[name] for name in ("s_per_step", "s_20", "s_80"))
    shown = "{:>9.2f}{:>8.2f}{:>8.2f}".format(*ms) + f"{row['cells_per_s']:>10.1f}{row['memory_gib']:>8.2f}"
    return f"{start}{shown}{row['ratio_sdpa']:>8.2f}{row['ratio_fastest']:>8.2f}  {row['kernel']}".replace("nan", "  -")


def measure(
    arguments: argparse.Namespace, points: list[Point], device: torch.device, path: Path, grows: bool, **counts: int
) -> list[dict[str, Any]]:
    """Measures all points; prints a row when it is measured, and writes the CSV after every point.

    grows: whether the CSV keeps rows of earlier runs.   counts: see rows_at.
    """
    begun, known = time.monotonic(), versions(device)
    print(", ".join(f"{name} {value}" for name, value in known.items() if value) + f", {arguments.precision}")
    print(
        f"x SDPA, x best: cells/s over those of SDPA and of the fastest softmax; above 1: faster\n{HEADER}",
        flush=True,
    )
    found: list[dict[str, Any]] = []
    for point in points:
        if time.monotonic() - begun > arguments.limit_s:
            print(f"from {point} on: not measured, because --limit-s {arguments.limit_s:.0f} had passed")
            break
        methods, compiled = tuple(arguments.methods), arguments.compile
        options = {"compiled": compiled, **counts}
        for row in rows_at(point, methods, device, arguments.precision, arguments.budget_s, **options):
            found.append(row | known)
            print(line(row), flush=True)
        table = pd.DataFrame(found, columns=list(COLUMNS))
        write(path, merged(path, table, [*list(COLUMNS)[:7], "precision", "compiled", "method"]) if grows else table)
    if not any(row["status"] == "ok" for row in found):
        raise SystemExit("Nothing was measured.")
    print(f"{time.monotonic() - begun:.0f} s; wrote {path}")
    return found


def draw(table: pd.DataFrame, file: Path) -> None:
    """Draws the series of `--whole genes`: the model and number of cells of which the table has most sizes."""
    from training_parts.drawing import against_genes

    series = max(
        (rows for _, rows in table.groupby(["model", "keys", "cells"])), key=lambda rows: rows["genes"].nunique()
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    against_genes(series).savefig(file, dpi=150)
    print(f"wrote {file}")


def parsed(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="seconds per step and memory (the default part)")
    parser.add_argument("--trace", action="store_true", help="CUDA kernels of three steps at one point")
    parser.add_argument(
        "--whole", nargs="*", choices=PARTS, metavar="PART", help=f"20 000 genes and more: {', '.join(PARTS)}"
    )
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw time and memory of training_whole.csv")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, help="default: only with --whole")
    parser.add_argument("--model", choices=MODELS, default="default")
    parser.add_argument("--agree", action="store_true", help="losses on the device against those on the CPU")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, to see that everything runs")
    parser.add_argument("--genes", nargs="+", type=int, metavar="N")
    parser.add_argument("--bags", nargs="+", choices=BAGS)
    parser.add_argument("--keys", nargs="+", choices=("regulators", "all"))
    parser.add_argument("--cells", type=int, metavar="C", help="of a batch; default: 32, 16 or 4 by size")
    parser.add_argument(
        "--methods", nargs="+", choices=METHODS, help="default: all; with --whole: flashsign, cuDNN and varlen"
    )
    parser.add_argument("--precision", choices=PRECISIONS, help="default: bf16-mixed on a GPU, 32-true on a CPU")
    parser.add_argument("--budget-s", type=float, metavar="S", help="time for a method at a point; 20 steps at least")
    parser.add_argument("--limit-s", type=float, default=480, metavar="S", help="start no new point after this time")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", type=Path, metavar="DIR", help="default: benchmarks/results; --smoke: a new folder")
    arguments = parser.parse_args(argv)
    whole = arguments.whole is not None
    arguments.compile = whole if arguments.compile is None else arguments.compile
    arguments.methods = arguments.methods or (["flashsign", "SDPA cuDNN", "varlen"] if whole else list(METHODS))
    arguments.precision = arguments.precision or PRECISIONS[not arguments.device.startswith("cuda")]
    arguments.budget_s = arguments.budget_s or (0.01 if arguments.smoke else 1.5)
    if arguments.output is None:
        arguments.output = Path(tempfile.mkdtemp(prefix="training-")) if arguments.smoke else HERE / "results"
    return arguments


def points_of(arguments: argparse.Namespace, sizes: tuple[int, ...], **more: int) -> list[Point]:
    """The points of all options given; an option that is not given takes all its values."""
    keys = [KEYS[name == "all"] for name in arguments.keys or ("regulators", "all")]
    more |= {"cells": arguments.cells} if arguments.cells else {}
    return [
        replace(Point.of(bags, genes, each, **more), model=arguments.model)
        for genes in arguments.genes or sizes
        for bags in arguments.bags or BAGS
        for each in keys
    ]


def main(argv: list[str] | None = None) -> None:
    arguments = parsed(argv)
    whole_csv = arguments.output / "training_whole.csv"
    only_a_picture = arguments.picture is not None and arguments.whole is None and not arguments.measure
    if not (arguments.smoke or only_a_picture or arguments.device.startswith("cuda")):
        raise SystemExit(f"Full sizes need a GPU, and --device is {arguments.device}; --smoke runs tiny ones anywhere.")
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
            complaints += trace(point, device, arguments.precision, arguments.compile)
    if arguments.whole is not None:
        points = points_of_whole(arguments.whole or list(PARTS), arguments.cells, tiny=arguments.smoke)
        counts = {"least": 2, "count": 1} if arguments.smoke else {"least": 10, "count": 2}
        print(describe(measure(arguments, points, device, whole_csv, True, **counts)))
    if arguments.picture is not None:
        draw(pd.read_csv(whole_csv), arguments.picture)
    other = arguments.agree or arguments.trace or arguments.whole is not None or arguments.picture is not None
    if arguments.measure or not other:
        points = points_of(arguments, (40,) if arguments.smoke else SIZES, **tiny)
        measure(arguments, points, device, arguments.output / "training.csv", False)
    if complaints:
        raise SystemExit("\n".join(complaints))


if __name__ == "__main__":
    main()
