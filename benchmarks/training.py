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
- --whole measures rates at 20 000 genes per cell, for the default model and a wider one, and
  time and memory against the number of genes. It writes `training_whole.csv`.
- --agree and --trace end with exit status 1, after all parts have run, where losses differ or kernels did not run.
- --compile lets torch.compile fuse the small operations, for all methods.

The cells are simulated and already on the device: a step is forward, objectives, backward, clipping and AdamW
(training_steps.py, which also says how softmax replaces flashsign, and how that favours softmax).
"""

from __future__ import annotations

import argparse
import itertools
import math
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from attention_parts.clock import synchronise, times
from attention_parts.methods import attempt
from matplotlib.figure import Figure
from results_file import merged, versions, write
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from training_steps import (
    BATCHES,
    LEAST,
    METHODS,
    MODELS,
    PRECISIONS,
    VOCABULARY,
    WARMUPS,
    Point,
    Training,
    attending,
    batches,
    flashsign_path,
    measured,
    methods_at,
)

from flashsign import spherical_attention
from grn.plots.style import INK, figure, plain

STEPS = 30
TOLERANCES = {"32-true": 1e-3, "bf16-mixed": 2e-2}  # largest relative difference of a loss


def losses(point: Point, steps: int, device: torch.device, precision: str, options: dict[str, str]) -> torch.Tensor:
    """The loss of every step, float64 [steps]; the learning rate goes from warm-up to zero within them."""
    with attending(partial(spherical_attention, **options)):
        training = Training(point, batches(point, BATCHES), device, precision, total=steps, dropout=0.0)
        return torch.stack([training.step() for _ in range(steps)]).double().cpu()


def agree(points: list[Point], device: torch.device, steps: int = STEPS) -> list[str]:
    """Prints the largest relative difference for each point and precision; returns a complaint where one is too large.

    A GPU runs the Triton kernels. A CPU runs the stream in torch, to try this out.
    """
    options = {"backend": "triton"} if device.type == "cuda" else {"method": "stream", "backend": "torch"}
    chosen = ", ".join(f"{name} {value}" for name, value in options.items())
    print(
        f"{steps} steps on the CPU in float32 with torch, and on {device} with {chosen}: first and last loss on the "
        "CPU, largest relative difference"
    )
    bad: list[str] = []
    for point in points:
        reference = losses(point, steps, torch.device("cpu"), "32-true", {"backend": "torch"})
        for precision, tolerance in TOLERANCES.items():
            found = losses(point, steps, device, precision, options)
            difference = float(((found - reference) / reference).abs().max())
            good = difference <= tolerance  # False for nan
            print(
                f"{point!s:<52} {precision:<11} {float(reference[0]):.4f} - {float(reference[-1]):.4f}"
                f"  {difference:.1e}, {'within' if good else 'NOT WITHIN'} {tolerance:g}",
                flush=True,
            )
            bad += [] if good else [f"Losses differ too much: {point} in {precision}, {difference:.1e}."]
    return bad


TRACED, SHOWN = 3, 15
LAUNCHED = {
    "stream": ("scaled_keys", "stream_forward", "scaled_queries", "key_gradients", "stream_query_gradient"),
    "moments": ("sum_keys", "attend_moments", "sum_queries", "query_gradients", "key_gradients"),
    "torch": (),
}
"""Path -> flashsign's kernels that every step on it launches."""
OURS = (
    *dict.fromkeys(name for names in LAUNCHED.values() for name in names), "moment_query_gradient", "key_moments",
    "add_parts", "attend_rows", "small_forward", "small_backward",
)  # fmt: skip


def fraction(kernels: dict[str, float], wanted: tuple[str, ...]) -> tuple[float, list[str]]:
    """flashsign's fraction of the kernels' time, and the wanted kernels that did not run. kernels: name -> time."""
    ours = sum(time for name, time in kernels.items() if any(each in name for each in OURS))
    missing = [each for each in wanted if not any(each in name for name in kernels)]
    return ours / max(sum(kernels.values()), 1e-12), missing


def trace(point: Point, device: torch.device, precision: str, compiled: bool = False) -> list[str]:
    """Prints the kernels; returns a complaint where one of flashsign's did not run on a GPU."""
    cuda = device.type == "cuda"
    with attending(None):
        training = Training(point, batches(point, BATCHES), device, precision, compiled=compiled)
        for _ in range(WARMUPS):
            training.step()
        synchronise(device)
        wall = min(times(itertools.repeat(training.step), 10, device))
        with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]) as found:
            for _ in range(TRACED):
                training.step()
            synchronise(device)
    where = DeviceType.CUDA if cuda else DeviceType.CPU
    # Annotations such as "Optimizer.step" span kernels that are listed themselves.
    events = [
        event
        for event in found.key_averages()
        if event.device_type == where and not getattr(event, "is_user_annotation", False)
    ]
    time = "self_device_time_total" if cuda else "self_cpu_time_total"
    kernels: dict[str, float] = {}
    calls: dict[str, int] = {}
    for event in events:
        kernels[event.key] = kernels.get(event.key, 0.0) + getattr(event, time)
        calls[event.key] = calls.get(event.key, 0) + event.count
    total = sum(kernels.values())
    ours, missing = fraction(kernels, LAUNCHED[flashsign_path(point, precision, device)])
    print(f"{TRACED} steps, {precision}: {point}\n{'ms/step':>10}{'of all':>8}{'calls':>8}  kernel")
    for name in sorted(kernels, key=lambda each: -kernels[each])[:SHOWN]:
        ms, calls_a_step = kernels[name] / 1000 / TRACED, calls[name] / TRACED
        print(f"{ms:>10.3f}{kernels[name] / total:>8.1%}{calls_a_step:>8.1f}  {name[:90]}")
    print(f"{total / 1000 / TRACED:>10.3f}{1:>8.1%}{sum(calls.values()) / TRACED:>8.1f}  all {len(kernels)}")
    print(f"A step without the profiler takes {wall:.3f} ms. flashsign's kernels take {ours:.1%} of the kernels' time:")
    for each in OURS:
        ms = sum(spent for name, spent in kernels.items() if each in name) / 1000 / TRACED
        print(f"{ms:>10.3f}{'':>16}  {each}")
    return [f"flashsign's kernels did not run: {point}, {', '.join(missing)}."] if cuda and missing else []


WHOLE_GENES = 20000
WHOLE_CELLS = {"default": 64, "wide": 16}  # of a batch; 64 is the default of trainer.batch_size
SERIES, SERIES_CELLS, SERIES_VOCABULARY = (5000, 10000, 20000, 40000, 60000), 8, 80000
PARTS = {
    "rates": "20 000 of 40 000 genes, the default and a wider model, all keys and 5 %",
    "genes": "5000 to 60 000 of 80 000 genes, 8 cells: time and memory",
}


def points_of_whole(parts: list[str], cells: int | None = None, *, tiny: bool = False) -> list[Point]:
    """Points with packed cells of one size. cells: of a batch, instead of WHOLE_CELLS and SERIES_CELLS."""
    found: list[Point] = []
    genes, vocabulary = (40, 80) if tiny else (WHOLE_GENES, VOCABULARY)
    if "rates" in parts:
        for model, many in WHOLE_CELLS.items():
            for keys in ("all", "5 %"):
                many = 3 if tiny else many
                found.append(replace(Point.of("packed", genes, keys, cells or many, vocabulary), model=model))
    if "genes" in parts:
        for size in (20, 40, 60) if tiny else SERIES:
            many, known = (2, 80) if tiny else (SERIES_CELLS, SERIES_VOCABULARY)
            found.append(Point.of("packed", size, "all", cells or many, known))
    return [replace(point, spread=0.0) for point in found]


def describe(rows: list[dict[str, Any]]) -> str:
    """Lines with flashsign's cells/s over cuDNN's, and with a linear fit of memory to the number of genes."""
    rates: dict[tuple, dict[str, float]] = {}
    memory: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for row in rows:
        setting = row["model"], row["keys"], row["genes"], row["cells"], row["vocabulary"]
        rates.setdefault(setting, {})[row["method"]] = row["cells_per_s"]
        if row["vocabulary"] in (SERIES_VOCABULARY, 80) and not math.isnan(row["memory_gib"]):
            memory.setdefault((row["method"], row["cells"]), []).append((row["genes"], row["memory_gib"]))
    lines = []
    for (model, keys, genes, cells, _), found in rates.items():
        ratio = found.get("flashsign", math.nan) / found.get("SDPA cuDNN", math.nan)
        if not math.isnan(ratio):
            lines.append(f"{model} model, {genes} genes x {cells} cells, {keys} as keys: {ratio:.2f} x cuDNN's cells/s")
    for (method, cells), points in memory.items():
        genes, gib = np.array(points).T
        if len(points) > 2:
            slope, rest = np.polyfit(genes, gib, 1)
            off = np.abs(slope * genes + rest - gib).max() / gib.max()
            lines.append(
                f"{method}, {cells} cells: {rest:.2f} GiB + {slope * 2**20 / cells:.2f} KiB per gene and cell, "
                f"at most {off:.1%} of the largest value off that line"
            )
    return "\n".join(lines)


# Okabe and Ito's colours, which colour-blind readers can tell apart; ours is black, drawn last and thickest.
LINES = {
    "varlen": ("#56b4e9", "s", "softmax, FlashAttention-2 (varlen)"),
    "SDPA": ("#e69f00", "^", "softmax, torch's choice"),
    "SDPA cuDNN": ("#0072b2", "o", "softmax, cuDNN"),
    "flashsign": ("black", "D", "spherical, flashsign"),
}
PANELS = (("s_per_step", 1000.0, "milliseconds per step"), ("memory_gib", 1.0, "peak memory, GiB"))


def against_genes(table: pd.DataFrame) -> Figure:
    """table: the rows of one series (a model, a number of cells) -> two panels."""
    table = table[table["status"] == "ok"].sort_values("genes")
    one = table.iloc[0]
    picture = figure(10, 3.8)
    for panel, (column, unit, what) in zip(picture.subplots(1, len(PANELS)), PANELS, strict=True):
        for method, (colour, marker, label) in LINES.items():
            rows = table[table["method"] == method]
            if len(rows):
                width = 2.4 if method == "flashsign" else 1.4
                values = unit * rows[column]
                panel.plot(rows["genes"], values, color=colour, marker=marker, linewidth=width, label=label)
        panel.set_xlim(0)
        panel.set_ylim(0)
        panel.grid(color="#dddddd", linewidth=0.6)
        panel.set_xlabel("genes of a cell")
        plain(panel, what)
    handles, labels = picture.axes[0].get_legend_handles_labels()
    picture.legend(
        handles[::-1], labels[::-1], loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9
    )
    fused = "small operations compiled" if one["compiled"] else "nothing compiled"
    picture.suptitle(
        f"{one['device']}, {one['cells']} cells per step, {one['precision']}, {fused}", fontsize=9, color=INK
    )
    return picture


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
