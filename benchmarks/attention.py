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
import time
from pathlib import Path

import pandas as pd
import torch
from arguments import (
    OUTPUT,
    SMOKE,
    Option,
    read_options,
    refuse_full_sizes_without_a_gpu,
    settle_places,
)
from attention_parts.bags import packed_rows, small_rows
from attention_parts.clock import device_rates
from attention_parts.dense import DEFAULT_METHODS, DIRECTIONS, LEGEND, SHOWN, Plan, rows_at
from attention_parts.methods import DTYPES, METHODS, NO_COLUMN
from matplotlib.figure import Figure
from pictures import lines
from results_file import versions, write

from grn.plots.style import INK, save

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
    "spherical torch eager": "#d55e00",
    "spherical torch.compile": "#e69f00",
    "SDPA FlashAttention-2": "#56b4e9",
    "SDPA cuDNN": "#0072b2",
    "flashsign moments": "#009e73",
    "flashsign stream": "black",
}
OURS = "flashsign stream"
PANELS = {
    "forward + backward, ms": ("both", "ms"),
    "forward, TFLOP/s": ("forward", "tflops"),
    "forward + backward, TFLOP/s": ("both", "tflops"),
    "forward + backward, extra MiB": ("both", "memory_mib"),
}


def curves(table: pd.DataFrame) -> Figure:
    """table: the benchmark's CSV -> a row of panels for each width: times, rates forward and of
    both, and memory.

    One dtype, the first of the table, and sizes that 16 divides. The dashed line is the rate of a
    matrix product of that dtype in the same run. Moments do far less than the nominal work: their
    rates would leave the scale.
    """
    table = table[(table["dtype"] == table["dtype"].iloc[0]) & (table["status"] == "ok")]
    table = table[(table["N"] % 16 == 0) & table["method"].isin(LINES)]
    parts = [
        rows.assign(panel=title, value=rows[column])
        for title, (direction, column) in PANELS.items()
        for rows in [table[table["direction"] == direction]]
    ]
    long = pd.concat(parts).dropna(subset="value")
    rates = long["panel"].str.endswith("TFLOP/s")
    long = long[~rates | (long["method"] != "flashsign moments")]
    picture = lines(
        long,
        LINES,
        x="N",
        y="value",
        ours=OURS,
        row="E",
        col="panel",
        facet_kws={"sharey": False, "sharex": False},
    )
    for panel in picture.axes:
        panel.set_ylabel("")
        if "TFLOP/s" in panel.get_title():
            panel.set_yscale("linear")
            panel.axhline(table["matmul_tflops"].max(), color=INK, linewidth=1, linestyle="--")
            panel.set_ylim(0)
    for panel in picture.axes[-len(PANELS) :]:
        panel.set_xlabel("genes of a cell, N")
    return picture


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
        output=OUTPUT,
        picture=Option(kind=Path),
        from_csv=Option(help="draw this table, and measure nothing", kind=Path),
    )
    arguments.backend = arguments.backend or (
        "triton" if arguments.device.startswith("cuda") else "torch"
    )
    settle_places(arguments, "attention")
    return arguments


def main(argv: list[str] | None = None) -> None:
    arguments = parsed(argv)
    if arguments.from_csv:
        return draw(pd.read_csv(arguments.from_csv), arguments.picture)
    refuse_full_sizes_without_a_gpu(arguments)
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
