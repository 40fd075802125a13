"""CellTypist's own classifier, trained on the labelled cells; its authors' package, in a Python of its own.

GRN_BENCHMARK_CELLTYPIST_PYTHON names a Python that has `celltypist` (1.7.1 was tried); without it the method is left
out. Its training fails with scikit-learn 1.8 and newer (`unexpected keyword argument 'multi_class'`), which its
requirements allow. Its defaults, on the cells as it asks for them: log1p of counts scaled to 10 000 a cell. It gives
each type a probability of its own; they are divided by their sum. Source: Domínguez Conde et al. 2022.

Letters: C cells, N genes, K cell types.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
from scipy import sparse

VARIABLE = "GRN_BENCHMARK_CELLTYPIST_PYTHON"

# Runs in the other Python: training counts, their types, counts to label and the result as arguments. Types are
# written with leading zeros, so that their order as text is that of the numbers.
SCRIPT = """
import sys
import anndata, celltypist, numpy as np, scanpy
from scipy import sparse
known, types, asked, result = sys.argv[1:]
def cells(path):
    found = anndata.AnnData(sparse.load_npz(path))
    found.var_names = [f"gene {number}" for number in range(found.n_vars)]
    scanpy.pp.normalize_total(found, target_sum=1e4)
    scanpy.pp.log1p(found)
    return found
labels = np.array([f"{label:05d}" for label in np.load(types)])
model = celltypist.train(cells(known), labels=labels)
table = celltypist.annotate(cells(asked), model=model).probability_matrix
np.savez(result, types=table.columns.to_numpy().astype(int), probabilities=table.to_numpy())
"""


def unavailable() -> str | None:
    """Why there is no CellTypist here; None where there is."""
    if not os.environ.get(VARIABLE):
        return f"left out: {VARIABLE} is not set (a Python that has the package celltypist)"
    return None


def probabilities(
    known: sparse.csr_matrix, targets: np.ndarray, asked: sparse.csr_matrix, classes: int, folder: Path
) -> np.ndarray:
    """known: counts of labelled cells, [C, N].   targets [C].   asked: counts of C other cells.   -> [C, K]."""
    files = [folder / name for name in ("known.npz", "types.npy", "asked.npz", "result.npz")]
    sparse.save_npz(files[0], known.astype(np.float32))
    np.save(files[1], targets)
    sparse.save_npz(files[2], asked.astype(np.float32))
    # Isolated: the other Python has its own libraries.
    command = [os.environ[VARIABLE], "-I", "-c", SCRIPT, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"celltypist failed: {done.stderr.strip().splitlines()[-1:]}")
    found = np.load(files[3])
    result = np.zeros((asked.shape[0], classes))
    result[:, found["types"]] = found["probabilities"] / found["probabilities"].sum(1, keepdims=True)
    return result
