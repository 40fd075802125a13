"""What do folds cost as layers, beside torch, torch.compile, Liger's kernels and cut-cross-entropy?

    export PYTHONPATH=.:kernels
    python benchmarks/folds.py                         # 3 minutes on an H200
    python benchmarks/folds.py --parts recent          # wider layers beside this year's peers
    python benchmarks/folds.py --tiles                 # are all block sizes right? 1 minute
    python benchmarks/folds.py --smoke --device cpu    # tiny sizes, without a GPU: seconds
    # the picture alone
    python benchmarks/folds.py --from-csv benchmarks/results/folds.csv

Peers are measured where they are installed (`pip install liger-kernel cut-cross-entropy`). The
table `results/folds.csv` has a row for each layer, size (items: classes, hidden units or keys) and
method: milliseconds forward, and forward with backward (median, quantiles at 20 and 80 %, after how
many warm-ups, of how many runs); the most memory beyond inputs, output and gradients, as MiB and as
a share of what the plain layer stores (float32 logits, 16-bit hidden tensors or weights of
attention); operations in matrix products; relative errors of the output and of the worst gradient
against float64. `--tiles` writes `results/fold_tiles.csv` and has the exit status 1 where a kernel
is wrong.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import pandas as pd
import seaborn as sns
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
from folds_parts.layers import (
    Scale,
    attention_cases,
    loss_cases,
    mlp_cases,
    norm_cases,
    recent_cases,
    rows_of,
)
from matplotlib.figure import Figure
from results_file import merged, versions, write

from grn.plots.style import figure, plain, save

PARTS = {
    "losses": loss_cases,
    "recent": recent_cases,
    "mlp": mlp_cases,
    "norm": norm_cases,
    "attention": attention_cases,
}
KEYS = ["layer", "rows", "items", "width", "method"]
SHOWN = [
    "method",
    "forward_ms",
    "ms",
    "runs",
    "extra_mib",
    "extra_share",
    "tflop",
    "error",
    "gradient_error",
    "status",
]


def measured(arguments: argparse.Namespace, device: torch.device) -> pd.DataFrame:
    """The table; each case is printed when it is measured, and the file written."""
    begun = time.monotonic()
    known = versions(device)
    print(", ".join(f"{name} {value}" for name, value in known.items() if value), flush=True)
    scale = Scale.tiny() if arguments.smoke else Scale()
    backend = arguments.backend
    found: list[dict[str, object]] = []
    for part in arguments.parts:
        for case in PARTS[part](scale, device, backend):
            if time.monotonic() - begun > arguments.limit_s:
                print(
                    f"from {case.layer} {case.sizes} on: not measured, --limit-s "
                    f"{arguments.limit_s:g} had passed"
                )
                return pd.DataFrame(found)
            if arguments.smoke:
                case.methods.pop("torch.compile", None)  # it takes longer than everything else
            rows = [
                {**row, **known}
                for row in rows_of(case, device, arguments.budget_s / 3, arguments.budget_s)
            ]
            found += rows
            shown = pd.DataFrame(rows).reindex(columns=SHOWN)
            print(f"\n{case.layer}, {case.sizes}")
            print(shown.to_string(index=False, float_format="{:.4g}".format))
            print(f"({time.monotonic() - begun:.0f} s)", flush=True)
            path = arguments.output / "folds.csv"
            write(path, merged(path, pd.DataFrame(found), KEYS))
            del case
    return pd.DataFrame(found)


OURS, OTHERS = "#0072b2", "#b8b8b8"
LINES = {"flashsign": OURS, "torch, eager": "#111111", "torch.compile": "#e69f00"}


def bars_and_curves(table: pd.DataFrame) -> Figure:
    """table: folds.csv."""
    good = table[table["status"] == "ok"]
    picture = figure(11, 7)
    above, below = picture.subplots(2, 2)
    for panel, layer in zip(above, ("linear cross entropy", "two distributions"), strict=True):
        rows = good[good["layer"] == layer].sort_values("ms", ascending=False)
        colours = {name: OURS if name == "flashsign" else OTHERS for name in rows["method"]}
        sns.barplot(rows, x="ms", y="method", hue="method", palette=colours, ax=panel)
        share = [f"{row.ms:.1f} ms, {row.extra_mib:,.0f} MiB" for row in rows.itertuples()]
        for bar, words in zip(panel.containers, share, strict=True):
            panel.bar_label(bar, [words], padding=3, fontsize=7)
        panel.margins(x=0.5)
        panel.set_title(f"{layer}: forward and backward, extra memory", fontsize=10)
    mlps = good[good["layer"] == "MLP"].assign(ratio=lambda rows: rows["items"] / rows["width"])
    for panel, column in zip(below, ("ms", "extra_mib"), strict=True):
        rows = mlps[mlps["method"].isin(LINES) & (mlps[column] > 0)]
        if rows.empty:  # a CPU has no figures for memory
            continue
        look = {"hue": "method", "palette": LINES, "style": "method", "markers": True}
        sns.lineplot(rows, x="ratio", y=column, ax=panel, **look)
        panel.set(xscale="log", yscale="log", xlabel="K / D, forward and backward")
        panel.set_title(f"MLP: {column}", fontsize=10)
    for panel in picture.axes:
        panel.grid(axis="x", color="#dddddd", linewidth=0.6)
        plain(panel)
    return picture


def draw(table: pd.DataFrame, path: Path) -> None:
    save(bars_and_curves(table), path)
    print(f"wrote {path}")


def parsed(argv: list[str] | None) -> argparse.Namespace:
    arguments = read_options(
        __doc__,
        argv,
        parts=all_of(PARTS),
        tiles=Option(False, "check the kernels with all block sizes that they ship with"),
        smoke=SMOKE,
        device="cuda" if torch.cuda.is_available() else "cpu",
        backend=Option("auto", choices=("triton", "torch", "auto")),
        budget_s=Option(2.0, "time for a method at a size"),
        limit_s=Option(400.0, "start no new size after this time"),
        output=OUTPUT,
        picture=Option(kind=Path),
        from_csv=Option(help="draw this table, and measure nothing", kind=Path),
    )
    settle_places(arguments, "folds")
    return arguments


def main(argv: list[str] | None = None) -> None:
    arguments = parsed(argv)
    if arguments.from_csv:
        return draw(pd.read_csv(arguments.from_csv), arguments.picture)
    refuse_full_sizes_without_a_gpu(arguments)
    device = torch.device(arguments.device)
    if arguments.tiles:
        from folds_parts.tiles import checked

        table = checked(arguments.smoke, device)
        write(arguments.output / "fold_tiles.csv", table)
        wrong = table[~table["good"]]
        print(
            f"{len(table)} kernels and block sizes, {len(wrong)} "
            f"wrong\n{wrong.to_string() if len(wrong) else ''}"
        )
        raise SystemExit(int(len(wrong) > 0))
    os.environ.setdefault("TORCHINDUCTOR_FX_GRAPH_CACHE", "0")
    if not (measured(arguments, device)["status"] == "ok").any():
        raise SystemExit("Nothing was measured.")
    print(f"wrote {arguments.output / 'folds.csv'}")
    draw(pd.read_csv(arguments.output / "folds.csv"), arguments.picture)


if __name__ == "__main__":
    main()
