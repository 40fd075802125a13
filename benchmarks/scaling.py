"""How long does inferring a network take as genes and cells grow?

    python benchmarks/scaling.py    # 45 minutes of one CPU thread
    python benchmarks/scaling.py --methods grn genie3 --limit 60

Times grn and seven other methods. The cells are simulated (grn/cells/simulated/cells.py), and a
tenth of
the genes are regulators: 100 to 800 genes at 1000 cells, and 500 to 4000 cells at 100 genes. Every
method runs once per size, with one thread and one process. Compare the CPU time, of the process and
of those that it starts, since wall time includes waiting for other work on the machine. The time of
`grn` is that of all steps to a network: reading the cells, choosing the penalties, training and the
edge table. RegDiffusion's includes the start of its own Python.

A method is left out of a size if it took more than half of the limit at half of the genes or cells;
this is printed, and the table has no row for it. Writes `scaling.csv`, where rows of other methods
and sizes stay, and the picture `docs/img/scaling.png`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import pandas as pd
from arguments import PICTURES, RESULTS, Option, all_of, read_options
from matplotlib.figure import Figure
from networks import COLOURS, OURS, OWN, methods
from peers import load, settings_of
from peers.measure import CallFailed, measured
from pictures import lines
from results_file import merged, ordered, write
from sets import COUNTS_SEEN, NetworkSet, digest

from grn.plots.style import save

LEAST_S = 1e-3  # times are recorded in milliseconds


GENES, CELLS = (100, 200, 400, 800), (500, 1000, 2000, 4000)
FEW_GENES, USUAL_CELLS = 100, 1000  # where the other number grows
SIZES = [
    *((genes, USUAL_CELLS) for genes in GENES),
    *((FEW_GENES, cells) for cells in CELLS if cells != USUAL_CELLS),
]
LIMIT_S = 600  # of CPU time
KEYS = ["method", "genes", "cells"]


def planted(genes: int, cells: int) -> NetworkSet:
    """Simulated counts; the generator's defaults but for the sizes."""
    from grn.cells.simulated.cells import TRUTH, simulate
    from grn.config.schema import SimulatedConfig

    adata = simulate(SimulatedConfig(genes=genes, cells=cells, regulators=genes // 10))
    matrix, names = adata.X.toarray(), list(adata.var_names)
    regulators = names[: genes // 10]
    name, hashed = f"simulated_{genes}_{cells}", digest(matrix, names, COUNTS_SEEN)
    return NetworkSet(
        name, names, "counts", matrix, None, regulators, adata.uns[TRUTH], "reference", hashed
    )


def timed(method: str, one: NetworkSet) -> dict[str, Any]:
    """Time and memory of one inference, in a process of its own with one thread."""
    if method in OWN:
        call = partial(importlib.import_module(OWN[method]).infer, one, 0, "cpu")
    else:
        peer, seen = load(method), one.prepared()
        call = partial(
            peer.infer, seen.values, seen.genes, seen.regulators, 0, n_jobs=1, **settings_of(peer)
        )
    _, measures = measured(call, jobs=1, threads=1)
    return {name: measures[name] for name in ("seconds", "cpu_seconds", "peak_mb")}


def picture(table: pd.DataFrame) -> Figure:
    """CPU seconds against genes and against cells; a line ends at its method's largest size."""
    parts = [
        rows.assign(along=f"{grows} (at {number} {stays})", size=rows[grows])
        for grows, stays, number in (("genes", "cells", USUAL_CELLS), ("cells", "genes", FEW_GENES))
        for rows in [table[table[stays] == number]]
    ]
    long = pd.concat(parts).assign(seconds=lambda rows: rows["cpu_seconds"].clip(lower=LEAST_S))
    found = lines(
        long, COLOURS, x="size", y="seconds", ours=OURS, col="along", facet_kws={"sharex": False}
    )
    found.axes[0].set_ylabel("CPU seconds, one thread")
    for panel in found.axes:
        panel.set_xlabel("")
    return found


def too_long(taken: Mapping[tuple[int, int], float], genes: int, cells: int, limit: float) -> bool:
    """Whether half of the genes or half of the cells was left out or took more than half of the
    limit.

    taken: CPU seconds by (genes, cells) of the sizes that were run; sizes smaller than all of them
        count as quick.
    """
    halves = [half for half in ((genes // 2, cells), (genes, cells // 2)) if half in SIZES]
    return any(taken.get(half, float("inf")) > limit / 2 for half in halves)


def main() -> None:
    arguments = read_options(
        __doc__,
        methods=all_of(methods()),
        limit=Option(LIMIT_S, f"CPU seconds of one run (default: {LIMIT_S})"),
        output=RESULTS,
        picture=PICTURES / "scaling.png",
    )

    path = arguments.output / "scaling.csv"
    for method in arguments.methods:
        reason = None if method in OWN else load(method).unavailable()
        if reason:
            print(f"{method}: {reason}")
            continue
        taken: dict[tuple[int, int], float] = {}
        for genes, cells in sorted(SIZES):
            size = f"{method:<20}{genes:>5} genes {cells:>5} cells "
            if too_long(taken, genes, cells, arguments.limit):
                print(
                    f"{size} left out: half of it was left out, or took more than "
                    f"{arguments.limit / 2:g} s of CPU",
                    flush=True,
                )
                continue
            try:
                found = timed(method, planted(genes, cells))
            except CallFailed as error:
                print(f"{size} failed: {str(error).strip().splitlines()[-1]}", flush=True)
                continue
            taken[genes, cells] = found["cpu_seconds"]
            print(
                f"{size}{found['seconds']:>9.2f} s {found['cpu_seconds']:>9.2f} s of CPU",
                flush=True,
            )
            row = pd.DataFrame([{"method": method, "genes": genes, "cells": cells, **found}])
            table = ordered(merged(path, row, KEYS), method=methods(), cells=CELLS, genes=GENES)
            write(path, table)

    table = pd.read_csv(path)
    arguments.picture.parent.mkdir(parents=True, exist_ok=True)
    save(picture(table), arguments.picture)
    print(f"wrote {path} and {arguments.picture}")


if __name__ == "__main__":
    main()
