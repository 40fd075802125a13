"""How deeply a cell was sequenced: its total, the multiplicity of its basal gene and its weight.

A total that counts the regulators too ties every gene to them: where a regulator takes a count, the others have one
less, and each regulator seems to repress. So the depth is the total over the genes that are not regulators, as long as
these hold at least half of the counts.

Deep cells show more genes. A model that cannot see depth reads it off the regulators, and every regulator then seems to
raise every target. The basal gene is the yardstick that the other genes are measured against, so it carries the depth:
1 at the mean of the training cells, half a unit more or less for one standard deviation of the log total.

Where values are no counts (log-normalised ones, say) their sum tells nothing of the depth, but how many genes were seen
at all does: this *cellular detection rate* takes the total's place (Finak et al. 2015, MAST), as long as it differs
between cells by more than the genes' own zeros explain.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

STEP = 0.5  # of basal multiplicity for one sd of the log total
LEAST = 0.5  # with a lighter yardstick the first gene of a nearly empty bag would outweigh everything
FEWEST = 50  # genes whose zeros tell a cell's depth: those of a few genes tell what these genes do
LARGEST_WEIGHT = 5  # times the median cell's: one cell of a hundred times the depth must not speak for all

DepthScale = tuple[float, float]


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


def depth_share(counts: sparse.csr_matrix, measures: np.ndarray) -> np.ndarray:
    """float64 [N]: what part of the cells' totals each gene holds; 0 for genes that measure none. counts [C, N]."""
    held = np.asarray(counts.sum(axis=0, dtype=np.float64)).ravel() * measures
    return held / max(held.sum(), 1)


def presence(values: sparse.csr_matrix) -> sparse.csr_matrix:
    """1 where a gene was seen: its `totals` are detection rates, times the genes. values: no stored zeros."""
    return sparse.csr_matrix((np.ones_like(values.data), values.indices, values.indptr), shape=values.shape)


def zeros_tell_depth(seen: sparse.csr_matrix, measures: np.ndarray) -> bool:
    """Whether most of what cells differ by in the genes that they show is the cells' own: more than twice the variance
    that zeros independent of each other would give. seen: `presence` [C, N] of the training cells; measures [N]."""
    rate = np.asarray(seen.mean(axis=0, dtype=np.float64)).ravel()[measures]
    return len(rate) >= FEWEST and bool(totals(seen, measures).var() > 2 * (rate * (1 - rate)).sum())


def totals_behind(seen: np.ndarray, genes: int) -> np.ndarray:
    """float64 [C]: counts that show `seen` [C] of so many genes, were each as frequent: a gene of mean m has zeros in
    e^-m of the cells. A cell that shows every gene counts as one that misses half a gene."""
    return -genes * np.log1p(-np.minimum(seen, genes - 0.5) / genes)


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
