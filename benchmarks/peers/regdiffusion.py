"""RegDiffusion: a diffusion model whose adjacency matrix is the network; its authors' package, in a
Python of its own.

GRN_BENCHMARK_REGDIFFUSION_PYTHON names a Python that has `regdiffusion` (0.2.3 was tried, with the
CPU build of torch 2.13); without it the method is skipped. Its defaults, on the CPU. Genes that
never vary and cells whose genes are all alike are removed first, as the package requires. In
practice its matrix has no negative entries: |weight| is the entry, the sign is that of Pearson's
correlation. Source: Zhu and Slonim 2024.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from peers.peer import Peer, edge_table, positions, with_sign_of_correlation

VARIABLE = "GRN_BENCHMARK_REGDIFFUSION_PYTHON"

# Runs in the other Python: input and output files, steps and seed as arguments. The package's own
# get_adj() rounds to half precision, which ties edges; dividing by its scale changes no rank.
SCRIPT = """
import sys
import numpy as np
import regdiffusion
source, result, steps, seed = sys.argv[1:]
trainer = regdiffusion.RegDiffusionTrainer(
    np.load(source), device="cpu", n_steps=int(steps), seed=int(seed)
)
trainer.train()
np.save(result, trainer.model.get_adj_().detach().numpy())
"""


def infer(
    values: np.ndarray,
    genes: list[str],
    regulators: list[str],
    seed: int,
    *,
    n_jobs: int = 1,
    steps: int = 1000,
) -> pd.DataFrame:
    """values [C, N] -> one row per pair regulator -> gene; on one core, as all peers but those of
    trees.
    """
    reason = unavailable()
    if reason:
        raise RuntimeError(reason)
    rows = positions(genes, regulators)
    varies = np.flatnonzero(np.ptp(values, axis=0) > 0)
    kept = values[:, varies]
    kept = kept[np.ptp(kept, axis=1) > 0]
    adjacency = np.zeros((len(genes), len(genes)))
    # row: regulator, column: target
    adjacency[np.ix_(varies, varies)] = np.abs(adjacency_of(kept, steps, seed))
    return edge_table(with_sign_of_correlation(adjacency[rows], values, rows), genes, regulators)


def adjacency_of(values: np.ndarray, steps: int, seed: int) -> np.ndarray:
    """values [C, N] -> [N, N], row = regulator."""
    with tempfile.TemporaryDirectory() as name:
        source, result = Path(name, "values.npy"), Path(name, "adjacency.npy")
        np.save(source, np.asarray(values, dtype=np.float32))
        # Without the caller's PYTHONPATH: the other Python has its own libraries.
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        command = [
            os.environ[VARIABLE],
            "-c",
            SCRIPT,
            str(source),
            str(result),
            str(steps),
            str(seed),
        ]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"regdiffusion failed: {done.stderr.strip().splitlines()[-1:]}")
        return np.load(result)


def unavailable() -> str | None:
    if not os.environ.get(VARIABLE):
        return f"skipped: {VARIABLE} is not set (a Python that has the package regdiffusion)"
    return None


PEERS = {
    "regdiffusion": Peer(
        "regdiffusion",
        infer,
        source="Zhu and Slonim 2024",
        sign="correlation",
        settings={"steps": 1000},
        unavailable=unavailable,
    )
}
