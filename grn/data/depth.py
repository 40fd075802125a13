"""How deeply a cell was sequenced: its total, the multiplicity of its basal gene and its weight.

A total that counts the regulators too ties every gene to them: where a regulator takes a count, the others have one
less, and each regulator seems to repress. So the depth is the total over the genes that are not regulators, as long as
these hold at least half of the counts.

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


LARGEST_WEIGHT = 5  # times the median cell's: one cell of a hundred times the depth must not speak for all


def measures_depth(counts: sparse.csr_matrix, regulators: np.ndarray | None) -> np.ndarray:
    """bool [N]: the genes whose counts make up a cell's depth. counts: CSR [C, N] of the training cells."""
    everything = np.ones(counts.shape[1], dtype=bool)
    if regulators is None:
        return everything
    others = everything.copy()
    others[regulators] = False
    total = np.asarray(counts.sum(axis=0, dtype=np.float64)).ravel()
    return others if 2 * total[others].sum() >= total.sum() else everything


def totals(counts: sparse.csr_matrix, measures: np.ndarray) -> np.ndarray:
    """float64 [C]: counts of each cell in the genes that measure depth."""
    return np.asarray(counts @ measures.astype(np.float64)).ravel()


def depth_scale(total: np.ndarray) -> DepthScale | None:
    """Mean and sd of the log totals of the training cells; None where all are alike."""
    logs = np.log1p(total)
    return (float(logs.mean()), float(logs.std())) if logs.std() > 1e-6 else None


def basal_multiplicity(total: np.ndarray, scale: DepthScale | None) -> np.ndarray:
    """float32 [C]; all 1 without a scale."""
    if scale is None:
        return np.ones(len(total), np.float32)
    mean, sd = scale
    return np.maximum(1 + STEP * (np.log1p(total) - mean) / sd, LEAST).astype(np.float32)


def cell_weights(total: np.ndarray) -> np.ndarray:
    """float32 [C], mean 1: how much a cell counts where genes are compared. A normalised count is as noisy as its cell
    is shallow: its variance goes with 1 / total."""
    weight = np.minimum(np.maximum(total, 1), LARGEST_WEIGHT * max(float(np.median(total)), 1))
    return (weight / weight.mean()).astype(np.float32)
