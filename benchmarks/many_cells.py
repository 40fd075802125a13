"""How long do grn, RegDiffusion and GRNBoost2 take as cells grow, and how well do they do?

    python benchmarks/atlas.py make m.h5ad --cells 100000 --genes 2000 --depth 1
    # on a GPU, where there is one
    python benchmarks/many_cells.py m.h5ad --methods grn regdiffusion
    python benchmarks/many_cells.py m.h5ad --methods grnboost2 --targets 8

The cells have 2000 genes, of which 100 are regulators. grn is the whole of `grn train`, which reads
the file. RegDiffusion is its authors' package with their settings, from the start of its Python to
its matrix, in a Python that GRN_BENCHMARK_REGDIFFUSION_PYTHON names; log1p of the counts of all
cells, scaled to the same total, are in its memory. GRNBoost2 (peers/trees.py) fits one gene after
another, so that its time is measured for a few genes with one thread, and **extrapolated** to all.
AUPRC is over all pairs of a regulator and a gene. Prints a line a method, and writes it to
`many_cells.csv`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from peers.peer import edge_table, standardised
from peers.regdiffusion import VARIABLE
from peers.trees import GRNBOOST2, boosting_importances
from results_file import merged, write
from scipy import sparse
from sklearn.metrics import average_precision_score

REGULATORS = 100
KEYS = ["method", "cells", "device"]
DIFFUSION = """
import sys
import numpy as np
import regdiffusion
from scipy import sparse
source, result = sys.argv[1:]
trainer = regdiffusion.RegDiffusionTrainer(sparse.load_npz(source), device="cuda", seed=0)
trainer.train()
np.save(result, np.abs(trainer.model.get_adj_().detach().cpu().numpy()))
"""


def run(command: list[str]) -> tuple[float, float]:
    """Runs it; returns its seconds and its peak memory, GiB."""
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise subprocess.CalledProcessError(os.waitstatus_to_exitcode(status), command)
    return time.monotonic() - started, usage.ru_maxrss / 2**20


def grn(path: Path, genes: list[str]) -> tuple[float, float, pd.DataFrame]:
    with tempfile.TemporaryDirectory() as folder:
        options = [
            "--label",
            "cell_type",
            "--regulators",
            ",".join(genes[:REGULATORS]),
            "--output",
            f"{folder}/run",
        ]
        cost = run([sys.executable, "-m", "grn", "train", str(path), *options, "--quiet"])
        return *cost, pd.read_parquet(Path(folder, "run", "edges.parquet"))


def logarithms(path: Path) -> sparse.csr_matrix:
    from anndata import read_h5ad

    counts = read_h5ad(path).X
    totals = np.asarray(counts.sum(1)).ravel()
    return (
        sparse.csr_matrix(sparse.diags(np.median(totals) / np.maximum(totals, 1)) @ counts)
        .log1p()
        .astype(np.float32)
    )


def regdiffusion(path: Path, genes: list[str]) -> tuple[float, float, pd.DataFrame]:
    with tempfile.TemporaryDirectory() as folder:
        source, result = f"{folder}/values.npz", f"{folder}/adjacency.npy"
        sparse.save_npz(source, logarithms(path), compressed=False)
        cost = run([os.environ[VARIABLE], "-c", DIFFUSION, source, result])
        return *cost, edge_table(np.load(result)[:REGULATORS], genes, genes[:REGULATORS])


def grnboost2(path: Path, genes: list[str], targets: int) -> float:
    """Fits a few genes; the seconds that all would take."""
    values = logarithms(path)
    some = np.linspace(REGULATORS, len(genes) - 1, targets).astype(int)
    inputs, wanted = values[:, :REGULATORS].toarray(), standardised(values[:, some].toarray())
    settings = dict(GRNBOOST2.settings)
    window = int(settings.pop("window"))
    settings["n_estimators"] = int(settings.pop("rounds"))
    started = time.monotonic()
    for target in wanted.T:
        boosting_importances(inputs, target, 0, window=window, settings=settings)
    return (time.monotonic() - started) * len(genes) / targets


def auprc(edges: pd.DataFrame, truth: pd.DataFrame, genes: list[str]) -> float:
    """Pairs without a weight have 0."""
    pairs = pd.DataFrame(product(genes[:REGULATORS], genes), columns=["source", "target"])
    pairs = pairs[pairs["source"] != pairs["target"]]
    edges_of_truth = truth[["source", "target"]].drop_duplicates()
    planted = pairs.merge(edges_of_truth.assign(planted=1), "left")["planted"].notna()
    weight = pairs.merge(edges, "left")["weight"].abs().fillna(0)
    return float(average_precision_score(planted, weight))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path)
    parser.add_argument(
        "--methods", nargs="+", default=["grn"], choices=["grn", "regdiffusion", "grnboost2"]
    )
    parser.add_argument(
        "--targets", type=int, default=8, help="genes that GRNBoost2 is measured on"
    )
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).parent / "results", metavar="DIR"
    )
    chosen = parser.parse_args()

    from anndata import read_h5ad

    stored = read_h5ad(chosen.path, backed="r")
    genes, cells = list(stored.var_names), stored.n_obs
    truth = pd.read_csv(chosen.path.with_suffix(".truth.csv"))
    device = f"{torch.get_num_threads()} threads"
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else device
    for method in chosen.methods:
        row = {"method": method, "cells": cells, "genes": len(genes), "device": device}
        if method == "grnboost2":
            seconds = grnboost2(chosen.path, genes, chosen.targets)
            row |= {"device": "1 thread", "extrapolated": True}
        else:
            run_method = {"grn": grn, "regdiffusion": regdiffusion}[method]
            seconds, peak, edges = run_method(chosen.path, genes)
            row |= {"extrapolated": False, "peak_gib": round(peak, 2)}
            row["auprc"] = round(auprc(edges, truth, genes), 3)
        row["seconds"] = round(seconds, 1)
        print(row, flush=True)
        path = chosen.output / "many_cells.csv"
        write(path, merged(path, pd.DataFrame([row]), KEYS).sort_values(KEYS))


if __name__ == "__main__":
    main()
