"""Mean and standard deviation of every gene: the units in which predictions and errors are measured.

Letters: C cells, N genes.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

PIECE = 2**22  # values whose deviations are in memory at once


def mean_and_sd(multiplicity: sp.csr_matrix) -> tuple[Tensor, Tensor]:
    """Mean and sd of each gene over cells, float32 [N]; the sd of a constant gene is 1. multiplicity: CSR [C, N]."""
    mean, sd = _moments(multiplicity)
    sd = np.where(_varies(mean, sd), sd, 1)
    return torch.as_tensor(mean, dtype=torch.float32), torch.as_tensor(sd, dtype=torch.float32)


def varying(multiplicity: sp.csr_matrix) -> np.ndarray:
    """Which genes vary between the cells by more than rounding, bool [N]. multiplicity: CSR [C, N]."""
    return _varies(*_moments(multiplicity))


def _varies(mean: np.ndarray, sd: np.ndarray) -> np.ndarray:
    # Multiplicities are float32: equal counts of cells with other totals may differ in the last bit.
    return sd > 1e-6 * np.maximum(mean, 1)


def _moments(multiplicity: sp.csr_matrix) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sd of each gene, float64 [N]. Deviations are squared, and not values: the difference of the mean square
    and the squared mean would leave an sd of 3e-4 of the mean to a gene that is the same in every cell."""
    cells, genes = multiplicity.shape
    pieces = [slice(first, first + PIECE) for first in range(0, multiplicity.nnz, PIECE)]
    mean, total, stored = np.zeros(genes), np.zeros(genes), np.zeros(genes)
    for here in pieces:  # scipy adds float32 up as such, and equal values would differ from their mean
        mean += np.bincount(multiplicity.indices[here], multiplicity.data[here].astype(np.float64), genes)
    mean /= max(cells, 1)
    for here in pieces:
        values, gene = multiplicity.data[here], multiplicity.indices[here]
        total += np.bincount(gene, np.square(values - mean[gene]), genes)
        stored += np.bincount(gene, minlength=genes)
    return mean, np.sqrt((total + (cells - stored) * mean**2) / cells)
