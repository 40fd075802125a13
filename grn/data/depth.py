"""How deeply a cell was sequenced, as the multiplicity of its basal gene.

Deep cells show more genes. A model that cannot see depth reads it off the regulators, and every regulator then seems to
raise every target. The basal gene is the yardstick that the other genes are measured against, so it carries the depth:
1 at the mean of the training cells, half a unit more or less for one standard deviation of the log total.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

STEP = 0.5  # of basal multiplicity for one sd of the log total
LEAST = 0.5  # with a lighter yardstick the first gene of a nearly empty bag would outweigh everything

DepthScale = tuple[float, float]


def log_totals(counts: sparse.csr_matrix) -> np.ndarray:
    return np.log1p(np.asarray(counts.sum(axis=1, dtype=np.float64)).ravel())


def depth_scale(counts: sparse.csr_matrix) -> DepthScale | None:
    """Mean and sd of the log totals of the training cells; None where all are alike."""
    totals = log_totals(counts)
    return (float(totals.mean()), float(totals.std())) if totals.std() > 1e-6 else None


def basal_multiplicity(counts: sparse.csr_matrix, scale: DepthScale | None) -> np.ndarray:
    """float32 [C]; all 1 without a scale."""
    if scale is None:
        return np.ones(counts.shape[0], np.float32)
    mean, sd = scale
    return np.maximum(1 + STEP * (log_totals(counts) - mean) / sd, LEAST).astype(np.float32)
