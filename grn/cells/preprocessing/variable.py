"""How variable each gene is.

For counts: the variance of the analytic Pearson residuals (Lause, Berens and Kobak 2021, Genome Biology 22, 258), that
is, of the difference between a count and its expectation from the cell's total and the gene's total, in units of the sd
of a negative binomial. It needs no logarithm and no bins of genes, which with few genes select by mean expression.
For expression values, whose scale is unknown: their variance.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

OVERDISPERSION = 1 / 100  # of technical noise, as in the paper: variance mu + mu^2 / 100
BLOCK = 4_000_000  # entries that are held densely at a time


def residual_variance(counts: sparse.csr_matrix) -> np.ndarray:
    """Variance [N] over cells of each gene's Pearson residuals, clipped at the square root of C. counts: CSR [C, N]."""
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
    """Variance [N] of each gene over cells. values: CSR [C, N]."""
    mean = np.asarray(values.mean(axis=0, dtype=np.float64)).ravel()
    return np.asarray(values.multiply(values).mean(axis=0, dtype=np.float64)).ravel() - mean**2
