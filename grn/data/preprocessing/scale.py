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
    mean = np.asarray(multiplicity.mean(0, dtype=np.float64)).ravel()
    square = np.asarray(multiplicity.multiply(multiplicity).mean(0, dtype=np.float64)).ravel()
    sd = np.sqrt(np.maximum(square - mean**2, 0))
    return torch.as_tensor(mean, dtype=torch.float32), torch.as_tensor(np.where(sd > 1e-6, sd, 1), dtype=torch.float32)
