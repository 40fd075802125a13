"""How variable each gene is.

Counts: variance of the analytic Pearson residuals (Lause, Berens and Kobak 2021, Genome Biology 22, 258), the distance
of a count from what the cell's total and the gene's total predict, in units of a negative binomial's sd. It needs no
bins of genes, which single out genes for their mean where there are few, and no log. Expression values, whose scale is
not known: their variance.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

OVERDISPERSION = 1 / 100  # of technical noise, as in the paper: variance mu + mu^2 / 100
BLOCK = 4_000_000  # entries that are dense at a time


def residual_variance(counts: sparse.csr_matrix) -> np.ndarray:
    """Variance over cells of each gene's Pearson residuals, clipped at the square root of the number of cells."""
    cells, genes = counts.shape
    totals = np.asarray(counts.sum(axis=1, dtype=np.float64)).ravel()
    share = np.asarray(counts.sum(axis=0, dtype=np.float64)).ravel() / max(totals.sum(), 1)
    by_gene = counts.tocsc()
    found = np.zeros(genes)
    step = max(BLOCK // max(cells, 1), 1)
    for start in range(0, genes, step):
        block = slice(start, start + step)
        expected = np.outer(totals, share[block]).astype(np.float32)
        residual = by_gene[:, block].toarray() - expected
        sd = np.sqrt(expected + OVERDISPERSION * expected**2)
        residual /= np.where(sd > 0, sd, 1)
        found[block] = residual.clip(-np.sqrt(cells), np.sqrt(cells)).var(axis=0, dtype=np.float64)
    return found


def variance(values: sparse.csr_matrix) -> np.ndarray:
    """Variance of each gene over cells."""
    mean = np.asarray(values.mean(axis=0, dtype=np.float64)).ravel()
    return np.asarray(values.multiply(values).mean(axis=0, dtype=np.float64)).ravel() - mean**2
