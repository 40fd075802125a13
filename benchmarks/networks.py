"""How do networks of grn and of seven other methods score against the true networks?

    # an hour; the trees of peers on 16 cores
    python benchmarks/networks.py
    # 25 minutes on two cores
    python benchmarks/networks.py --methods grn
    python benchmarks/networks.py --sets 'sergio_*' --methods grn ridge --seeds 1

The sets are those of the folder that GRN_BENCHMARK_DATA names. Prints a table, and writes
`networks.csv` and the picture `docs/img/networks.png`. Peers run once, with seed 0; `grn` runs with
several seeds, shown as mean ± standard deviation. Networks that were inferred before are read from
the cache. Rows of `networks.csv` of other sets and methods stay, in the file and in the picture, so
that a method can be added alone.

Our own method is in `benchmarks/ours.py`, which holds

    # plain values that decide its results (configuration, version), for the key of the cache
    SETTINGS: dict # source, target, weight def infer(one: NetworkSet, seed: int, device: str) ->
    DataFrame
"""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from arguments import PATTERNS, PICTURES, RESULTS, Option, all_of, read_options
from matplotlib.figure import Figure
from peers import ABSENT, NAMES
from peers.cached import NotRun, entry, run_peer
from peers.measure import CallFailed, measured
from results_file import merged, ordered, write
from sets import SETS, NetworkSet, load_sets

from grn.plots.style import INK, figure, plain, save

# Okabe and Ito's colours, which colour-blind readers can tell apart; ours is black, larger and on
# top.
COLOURS = {
    "pearson": "#56b4e9",
    "spearman": "#0072b2",
    "ridge": "#d55e00",
    "partial_correlation": "#e69f00",
    "grnboost2": "#009e73",
    "genie3": "#cc79a7",
    "regdiffusion": "#999999",
}
PANELS = {
    "auprc_ratio": ("AUPRC / that of chance", 1.0),
    "early_precision_ratio": ("Early precision / that of chance", 1.0),
    "sign_accuracy": ("Sign accuracy", 0.5),
}


def dots(table: pd.DataFrame, *, ours: str) -> Figure:
    """table: a row for each set and method, with the metrics of PANELS -> one panel per metric, one
    line per set.

    The dotted line is chance; bars are one standard deviation over the seeds. Ratios are on a
    logarithmic scale. In the panel of signs a grey tick is the fraction of the more frequent sign;
    sets without known signs are empty there.
    """
    sets = list(dict.fromkeys(table["set"]))
    methods = list(dict.fromkeys(table["method"]))
    height = {name: -index for index, name in enumerate(sets)}
    picture = figure(12, 1.6 + 0.34 * len(sets))
    panels = picture.subplots(1, len(PANELS), sharey=True, squeeze=False)[0]
    peers = [method for method in methods if method != ours]
    # Each peer is drawn a little above or below the line of its set, so that equal scores stay
    # apart.
    shifts = (
        dict(zip(peers, np.linspace(0.22, -0.22, len(peers)), strict=True))
        if len(peers) > 1
        else {}
    )
    for panel, (metric, (title, chance)) in zip(panels, PANELS.items(), strict=True):
        panel.axvline(chance, color=INK, linewidth=0.8, linestyle=":")
        for method in [*peers, *(name for name in methods if name == ours)]:
            rows = table[table["method"] == method]
            heights = rows["set"].map(height) + shifts.get(method, 0)
            if method == ours:
                panel.errorbar(
                    *(rows[metric], heights),
                    xerr=rows[f"{metric}_sd"].fillna(0),
                    fmt="D",
                    color="black",
                    markersize=7,
                    markeredgecolor="white",
                    zorder=4,
                    label=method,
                )
            else:
                panel.scatter(
                    rows[metric],
                    heights,
                    s=26,
                    color=COLOURS.get(method, INK),
                    zorder=3,
                    label=method,
                )
        plain(panel, title)
        if metric == "sign_accuracy":
            majority = table.drop_duplicates("set")
            heights = majority["set"].map(height)
            label = "all signs alike"
            panel.scatter(
                majority["sign_majority"], heights, s=120, marker="|", color="#999999", label=label
            )
        else:
            panel.set_xscale("log", base=2)
            panel.xaxis.set_major_formatter("{x:g}")
        panel.grid(axis="y", color="#dddddd", linewidth=0.6)
    panels[0].set_yticks(list(height.values()), [name.replace("_", " ") for name in sets])
    found = (panel.get_legend_handles_labels() for panel in panels)
    named = {
        label: handle
        for handles, labels in found
        for handle, label in zip(handles, labels, strict=True)
    }
    labels, handles = list(named), list(named.values())
    order = sorted(range(len(labels)), key=lambda index: labels[index] != ours)
    picture.legend(
        [handles[index] for index in order],
        [labels[index].replace("_", " ") for index in order],
        loc="outside lower center",
        ncols=len(labels),
        frameon=False,
        fontsize=9,
    )
    return picture


HERE = Path(__file__).resolve().parent
OURS = "grn"
OWN = {OURS: "ours"}  # its module
METRICS = {
    "auprc": "AUPRC",
    "auprc_ratio": "AUPRC ratio",
    "early_precision_ratio": "early precision ratio",
    "sign_accuracy": "sign accuracy",
    "sign_balanced_accuracy": "balanced sign accuracy",
}
COSTS = {"seconds": "seconds", "peak_mb": "MB"}


def methods() -> list[str]:
    return [*OWN, *NAMES]


def score(one: NetworkSet, network: pd.DataFrame) -> dict[str, float]:
    """All scores of a network, and density and edges of the set; sign scores are nan where the set
    has no signs.
    """
    from grn.features.evaluate.scores import checked_edges, evaluate_on, make_universe

    regulators = "reference" if one.universe == "reference" else None
    universe = make_universe(one.reference, regulators, one.genes)
    found = evaluate_on(universe, checked_edges(network), signed=True, permutations=0)
    return found.scores | {"density": found.universe.density, "edges": len(found.universe.edges)}


def infer_own(
    method: str, one: NetworkSet, seed: int, device: str, folder: Path
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """`run_peer` for the methods OWN: they use all threads that they may, and peak_mb counts the
    host alone.
    """
    module = importlib.import_module(OWN[method])
    settings = {**module.SETTINGS, "device": device}
    cached = entry(folder, one.prepared(), method, settings, seed)
    if not cached.exists():
        network, measures = measured(module.infer, one, seed, device, threads=None)
        cached.write(
            network,
            {"set": one.name, "method": method, "settings": settings, "seed": seed, **measures},
        )
    return cached.read()


def runs_of(
    method: str, one: NetworkSet, arguments: argparse.Namespace
) -> list[tuple[pd.DataFrame, dict[str, Any]]]:
    if method in OWN:
        return [
            infer_own(method, one, seed, arguments.device, arguments.cache)
            for seed in range(arguments.seeds)
        ]
    options = {"jobs": arguments.jobs, "changes": arguments.set, "compute": not arguments.cached}
    return [run_peer(method, one.prepared(), folder=arguments.cache, **options)]


def row(
    one: NetworkSet, method: str, runs: Iterable[tuple[pd.DataFrame, dict[str, Any]]]
) -> dict[str, Any]:
    """A row of the table: means over the runs, and standard deviations (nan for a single run)."""
    runs = list(runs)
    scores = pd.DataFrame([score(one, network) for network, _ in runs])
    notes = pd.DataFrame([notes for _, notes in runs])
    costs = {
        name: float(notes[name].mean()) for name in ("seconds", "cpu_seconds", "peak_mb", "cores")
    }
    deviations = {f"{name}_sd": float(scores[name].std()) for name in METRICS}
    size = {"cells": one.cells, "genes": len(one.genes)}
    return (
        {"set": one.name, "method": method, "runs": len(runs)}
        | size
        | scores.mean().to_dict()
        | deviations
        | costs
    )


def readable(table: pd.DataFrame) -> str:
    """The table as text: a block for each set, a line for each method.

    majority sign: the sign accuracy of giving all edges the more frequent sign.
    """
    shown = pd.DataFrame(
        {"set": table["set"].where(~table["set"].duplicated(), ""), "method": table["method"]}
    )
    for name, title in METRICS.items():
        pairs = zip(table[name], table[f"{name}_sd"], strict=True)
        shown[title] = [
            "" if np.isnan(mean) else f"{mean:.3f}" + deviation(sd) for mean, sd in pairs
        ]
    shown["majority sign"] = [
        "" if np.isnan(fraction) else f"{fraction:.3f}" for fraction in table["sign_majority"]
    ]
    for name, title in COSTS.items():
        shown[title] = [
            f"{value:.2f}" if name == "seconds" else f"{value:.0f}" for value in table[name]
        ]
    shown["cores"] = table["cores"].astype(int)
    return shown.to_string(index=False)


def deviation(sd: float, digits: int = 3) -> str:
    return "" if np.isnan(sd) else f" ± {sd:.{digits}f}"


def main() -> None:
    arguments = read_options(
        __doc__,
        sets=PATTERNS,
        methods=all_of(methods()),
        jobs=Option(os.cpu_count() or 1, "processes of a peer (default: all cores)"),
        device=Option("cpu", "of our own methods (default: cpu)"),
        seeds=Option(5, "of our own methods (default: 5)"),
        set=Option([], "other settings of peers, e.g. trees=10"),
        cache=HERE / ".cache",
        cached=Option(False, "take peers from the cache alone"),
        output=RESULTS,
        picture=PICTURES / "networks.png",
    )

    remarks = dict(ABSENT)
    rows = []
    for one in load_sets(arguments.sets):
        for method in arguments.methods:
            try:
                rows.append(row(one, method, runs_of(method, one, arguments)))
            except NotRun as error:
                remarks.setdefault(method, str(error))
            except CallFailed as error:
                remarks[f"{method} on {one.name}"] = (
                    f"failed: {str(error).strip().splitlines()[-1]}"
                )
    if not rows:
        raise SystemExit("Nothing was inferred.")
    table = pd.DataFrame(rows)
    print(readable(table))
    for name, remark in remarks.items():
        print(f"{name}: {remark}")

    results = arguments.output / "networks.csv"
    table = ordered(merged(results, table, ["set", "method"]), set=list(SETS), method=methods())
    write(results, table)
    save(dots(table, ours=OURS), arguments.picture)
    print(f"wrote {results} and {arguments.picture}")


if __name__ == "__main__":
    main()
