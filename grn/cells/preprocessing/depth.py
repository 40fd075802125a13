"""Sequencing depth: each cell's total, and what follows from it, the basal multiplicity of the cell.

The total leaves out the regulators, as long as the other genes hold at least half of the counts. With the regulators in
it, every other gene would depend on them: a count more for a regulator means a smaller share for the others, so that
every regulator would seem to repress.

More genes are detected in deeper cells. A model that is not given the depth infers it from the regulators, and every
regulator then seems to activate every target. So the model is given the depth, as the multiplicity of the basal gene,
against which the multiplicities of all genes are compared: 1 at the mean log total of the training cells, 0.5 more or
less for each standard deviation of it.

The sum of values that are not counts (log-normalised ones, for example) does not measure depth, but the number of
detected genes does: this *cellular detection rate* (Finak et al. 2015, MAST) is used in place of the total, provided
that it varies between cells by more than independent zeros of the genes explain.

Letters: C cells, N genes.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

STEP = 0.5  # change of the basal multiplicity for one sd of the log total
LEAST = 0.5  # smallest basal multiplicity: with less, a single gene would dominate a nearly empty bag
FEWEST = 50  # genes that are needed to estimate depth from zeros: with fewer, zeros reflect those genes' regulation

DepthScale = tuple[float, float]  # mean and sd of the log totals of the training cells


def measures_depth(counts: sparse.csr_matrix, regulators: np.ndarray | None) -> np.ndarray:
    """The genes over which depth is measured, bool [N].

    counts: CSR [C, N] of the training cells.   regulators: their positions; None: every gene may regulate.
    """
    all_genes = np.ones(counts.shape[1], dtype=bool)
    if regulators is None:
        return all_genes
    others = all_genes.copy()
    others[regulators] = False
    total = np.asarray(counts.sum(axis=0, dtype=np.float64)).ravel()
    return others if 2 * total[others].sum() >= total.sum() else all_genes


def totals(counts: sparse.csr_matrix, measures: np.ndarray) -> np.ndarray:
    """Total of each cell over the genes that measure depth, float64 [C]. counts: CSR [C, N]; measures: bool [N]."""
    return np.asarray(counts @ measures.astype(np.float64)).ravel()


def depth_share(counts: sparse.csr_matrix, measures: np.ndarray) -> np.ndarray:
    """Share of the sum of all totals in each gene, float64 [N]; 0 for genes that do not measure depth."""
    held = np.asarray(counts.sum(axis=0, dtype=np.float64)).ravel() * measures
    return held / max(held.sum(), 1)


def detected(values: sparse.csr_matrix) -> sparse.csr_matrix:
    """1 for each gene that was detected in a cell, CSR [C, N]; its `totals` count the detected genes.

    values: CSR [C, N] without stored zeros.
    """
    return sparse.csr_matrix((np.ones_like(values.data), values.indices, values.indptr), shape=values.shape)


def zeros_reflect_depth(found: sparse.csr_matrix, measures: np.ndarray) -> bool:
    """Whether cells differ in the number of detected genes mainly by their depth.

    That is where its variance is more than twice the variance that zeros independent of each other would give.
    found: `detected` [C, N] of the training cells.   measures: bool [N].
    """
    rate = np.asarray(found.mean(axis=0, dtype=np.float64)).ravel()[measures]
    return len(rate) >= FEWEST and bool(totals(found, measures).var() > 2 * (rate * (1 - rate)).sum())


def depth_scale(total: np.ndarray) -> DepthScale | None:
    """Mean and sd of the log totals [C] of the training cells; None where all totals are equal."""
    logs = np.log1p(total)
    return (float(logs.mean()), float(logs.std())) if logs.std() > 1e-6 else None


def basal_multiplicity(total: np.ndarray, scale: DepthScale | None) -> np.ndarray:
    """Multiplicity of the basal gene of each cell, float32 [C], from its total; 1 everywhere where `scale` is None."""
    if scale is None:
        return np.ones(len(total), np.float32)
    mean, sd = scale
    return np.maximum(1 + STEP * (np.log1p(total) - mean) / sd, LEAST).astype(np.float32)
