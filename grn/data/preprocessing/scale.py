"""Mean and standard deviation of every gene: the units in which predictions and errors are measured.

Letters: C cells, N genes.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor


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
    mean = np.asarray(multiplicity.mean(0, dtype=np.float64)).ravel()
    square = np.asarray(multiplicity.multiply(multiplicity).mean(0, dtype=np.float64)).ravel()
    return mean, np.sqrt(np.maximum(square - mean**2, 0))
