"""How fast and how exact is flashsign's attention beside softmax and spherical attention in torch?

    export PYTHONPATH=.:kernels
    python benchmarks/attention.py                         # 7 minutes on an H200
    python benchmarks/attention.py --quick                 # two sizes in fp16: 1 minute
    python benchmarks/attention.py --packed --small        # packed and small bags alone: minutes
    python benchmarks/attention.py --device cpu --smoke    # tiny sizes, without a GPU: seconds
    # the picture alone
    python benchmarks/attention.py --from-csv benchmarks/results/attention.csv

Prints a table of times, with the times of cuDNN, FlashAttention-2 and eager torch in the same run
as ratios. Writes `attention.csv` after every point and the picture `docs/img/attention.png`.
`--packed` and `--small` write `attention_packed.csv` and `attention_small.csv`; with `--dense` they
run beside the main part. What was not measured is printed below the table, with the reason.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import pandas as pd
import torch
from arguments import PICTURES, RESULTS, SMOKE, Option, read_options
from attention_parts.bags import packed_rows, small_rows
from attention_parts.clock import device_rates
from attention_parts.dense import DEFAULT_METHODS, DIRECTIONS, LEGEND, SHOWN, Plan, rows_at
from attention_parts.methods import DTYPES, METHODS, NO_COLUMN
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator
from results_file import versions, write

from grn.plots.style import INK, figure, note, plain, save

TABLE = {"index": False, "float_format": "{:.4g}".format, "na_rep": ""}


def run_dense(arguments: argparse.Namespace, plan: Plan, device: torch.device) -> None:
    """Measures all points;
    prints a row when it is measured, and writes the CSV after every point.
    """
    begun = time.monotonic()
    known = versions(device)
    print(", ".join(f"{name} {value}" for name, value in known.items() if value))
    rates = device_rates(DTYPES, device, *((64, plan.budget_s) if arguments.smoke else (8192, 1.0)))
    products = ", ".join(f"{name} {rate:.0f} TFLOP/s" for name, rate in rates.matmul.items())
    print(f"matrix product: {products}; copy: {rates.copy:.2f} TB/s")
    print(f"{LEGEND}\n{NO_COLUMN}\n", flush=True)
    found: list[dict[str, object]] = []
    remarks: dict[str, str] = {}
    gone: set[str] = set()
    for point in plan.points():
        if time.monotonic() - begun > arguments.limit_s:
            remarks[f"from {point} on"] = (
                f"not measured, because --limit-s {arguments.limit_s:.0f} had passed"
            )
            break
        names = tuple(name for name in plan.methods_at(point) if name not in gone)
        rows, failed = rows_at(point, plan, names, arguments.backend, device, rates)
        for name, status in failed.items():
            unavailable = status.startswith("unavailable")
            gone |= {name} if unavailable else set()
            remarks[METHODS[name].name + ("" if unavailable else f" at {point}")] = status
        found += [row | known for row in rows]
        print(pd.DataFrame(rows)[list(SHOWN)].to_string(**TABLE), flush=True)
        write(arguments.output / "attention.csv", pd.DataFrame(found))
    print()
    for name, remark in remarks.items():
        print(f"{name}: {remark}")
    if not any(row["status"] == "ok" for row in found):
        raise SystemExit("Nothing was measured.")
    table = pd.DataFrame(found)
    print(f"{time.monotonic() - begun:.0f} s; wrote {arguments.output / 'attention.csv'}")
    draw(table, arguments.picture)


def run_part(title: str, rows: object, path: Path) -> None:
    """Prints the rows of a part as a table, and writes them."""
    table = pd.DataFrame(rows)
    shown = table.assign(status=table["status"].str.slice(0, 60))
    print(f"\n{title}\n{shown.to_string(**TABLE)}")
    write(path, table)
    print(f"wrote {path}\n", flush=True)


# Okabe and Ito's colours, which colour-blind readers can tell apart; ours is black, drawn last and
# thickest.
LINES = {
    "spherical torch eager": ("#d55e00", "v"),
    "spherical torch.compile": ("#e69f00", "^"),
    "SDPA FlashAttention-2": ("#56b4e9", "s"),
    "SDPA cuDNN": ("#0072b2", "o"),
    "flashsign moments": ("#009e73", "P"),
    "flashsign stream": ("black", "D"),
}
OURS = "flashsign stream"
CEILING = "matrix product, 8192 x 8192"
HOLLOW = "hollow: N = 8191"
TICKS = (2048, 4096, 8192, 16384, 32768)
PANELS = (
    ("milliseconds", ("both", "forward")),
    ("TFLOP/s", ("forward",)),
    ("TFLOP/s", ("both", "backward")),
    ("extra memory, GiB", ("both", "forward")),
)
COLUMN = {
    "milliseconds": ("ms", 1),
    "TFLOP/s": ("tflops", 1),
    "extra memory, GiB": ("memory_mib", 1 / 1024),
}
TITLES = {"forward": "forward", "backward": "backward", "both": "forward + backward"}


def curves(table: pd.DataFrame) -> Figure:
    """table: the benchmark's CSV -> a row of panels for each width: times, rates forward and of
    both, and memory.

    One dtype, the first of the table. Sizes that 16 does not divide are hollow marks beside the
    lines of rates. The dashed line is the rate of a matrix product of that dtype in the same run.
    """
    dtype = table["dtype"].iloc[0]
    table = table[(table["dtype"] == dtype) & (table["status"] == "ok")]
    widths = sorted(table["E"].unique())
    picture = figure(15, 0.7 + 3.0 * max(len(widths), 1))
    grid = picture.subplots(len(widths), len(PANELS), squeeze=False, sharex=True)
    for axes, width in zip(grid, widths, strict=True):
        for panel, (what, directions) in zip(axes, PANELS, strict=True):
            rows = table[table["E"] == width]
            direction = next(
                (name for name in directions if (rows["direction"] == name).any()), directions[0]
            )
            rows = rows[rows["direction"] == direction]
            plain(panel, f"{TITLES[direction]}, E = {width}, {dtype}")
            _panel(panel, rows, what)
            panel.set_ylabel(what)
    for panel in grid[-1]:
        panel.set_xlabel("genes of a cell, N")
    handles = {
        label: handle
        for axes in grid.flat
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    order = [name for name in [*LINES, CEILING, HOLLOW] if name in handles]
    picture.legend(
        [handles[name] for name in order],
        order,
        loc="outside lower center",
        ncols=min(len(order), 4),
        frameon=False,
    )
    return picture


def _panel(panel: Axes, rows: pd.DataFrame, what: str) -> None:
    column, unit = COLUMN[what]
    if what == "TFLOP/s":  # moments do far less than the nominal work: they would leave this scale
        rows = rows[rows["method"] != "flashsign moments"]
    if rows[column].isna().all():
        note(panel, "memory is measured on a GPU" if column == "memory_mib" else "not measured")
        return
    _lines(panel, rows, column, unit)
    if what == "TFLOP/s":
        ceiling = rows["matmul_tflops"].max()
        panel.axhline(ceiling, color=INK, linewidth=1, linestyle="--", label=CEILING)
        panel.set_ylim(0, 1.08 * max(ceiling, rows["tflops"].max()))
    else:
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter("{x:g}")


def _lines(panel: Axes, rows: pd.DataFrame, column: str, unit: float) -> None:
    for name, (colour, marker) in LINES.items():
        own = rows[rows["method"] == name].sort_values("N")
        even, odd = own[own["N"] % 16 == 0], own[own["N"] % 16 != 0]
        style = {"color": colour, "marker": marker, "markersize": 6 if name == OURS else 5}
        if len(even):
            panel.plot(
                even["N"],
                unit * even[column],
                linewidth=2.2 if name == OURS else 1.5,
                label=name,
                **style,
            )
        if len(odd) and column == "tflops":
            style |= {"markerfacecolor": "white", "linestyle": "none", "zorder": 4}
            panel.plot(odd["N"], unit * odd[column], label=HOLLOW, **style)
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_locator(FixedLocator(TICKS))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter("{x:g}")
    panel.grid(color="#e5e5e5", linewidth=0.6)
    panel.set_axisbelow(True)


def draw(table: pd.DataFrame, path: Path) -> None:
    save(curves(table), path)
    print(f"wrote {path}")


def parsed(argv: list[str] | None) -> argparse.Namespace:
    arguments = read_options(
        __doc__,
        argv,
        dense=Option(False, "one bag, all sizes (the default part)"),
        packed=Option(False, "packed bags of uneven sizes against equal ones"),
        small=Option(False, "many small bags: time in a CUDA graph, overhead of a call"),
        quick=Option(False, "two sizes in fp16: a minute"),
        smoke=SMOKE,
        sizes=Option(kind=int, several=True),
        widths=Option(kind=int, several=True),
        dtypes=Option(choices=DTYPES, several=True),
        methods=Option(choices=DEFAULT_METHODS, several=True),
        directions=Option(choices=DIRECTIONS, several=True),
        budget_s=Option(help="time for a method in one direction at a point", kind=float),
        limit_s=Option(480.0, "start no new point after this time"),
        device="cuda" if torch.cuda.is_available() else "cpu",
        backend=Option(
            help="default: triton on a GPU, else torch", choices=("triton", "torch", "auto")
        ),
        output=Option(help="default: benchmarks/results; --smoke: a new folder", kind=Path),
        picture=Option(kind=Path),
        from_csv=Option(help="draw this table, and measure nothing", kind=Path),
    )
    arguments.backend = arguments.backend or (
        "triton" if arguments.device.startswith("cuda") else "torch"
    )
    if arguments.smoke and not arguments.from_csv:
        arguments.output = arguments.output or Path(tempfile.mkdtemp(prefix="attention-"))
        arguments.picture = arguments.picture or arguments.output / "attention.png"
    arguments.output = arguments.output or RESULTS
    arguments.picture = arguments.picture or PICTURES / "attention.png"
    return arguments


def main(argv: list[str] | None = None) -> None:
    arguments = parsed(argv)
    if not (arguments.smoke or arguments.from_csv) and not arguments.device.startswith("cuda"):
        raise SystemExit(
            f"Full sizes need a GPU, and --device is {arguments.device}; --smoke runs tiny ones "
            "anywhere."
        )
    if arguments.from_csv:
        return draw(pd.read_csv(arguments.from_csv), arguments.picture)
    plan = Plan.of(arguments)
    device = torch.device(arguments.device)
    common = (arguments.backend, device, plan.budget_s, arguments.smoke)
    if arguments.packed:
        title = (
            "Packed bags (8 heads, E = 128); ratio: TFLOP/s over those of equal dense bags with as "
            "many pairs"
        )
        run_part(
            title, packed_rows(plan.dtypes, *common), arguments.output / "attention_packed.csv"
        )
    if arguments.small:
        title = (
            "Small bags, microseconds per call; overhead: a call in a loop minus a call in a CUDA "
            "graph"
        )
        run_part(
            title,
            small_rows(plan.dtypes, plan.methods, *common),
            arguments.output / "attention_small.csv",
        )
    if arguments.dense or not (arguments.packed or arguments.small):
        run_dense(arguments, plan, device)


if __name__ == "__main__":
    main()
