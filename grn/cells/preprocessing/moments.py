"""Mean, sd and variability of every gene.

Variability of counts is the variance of the analytic Pearson residuals (Lause, Berens and Kobak
2021, Genome Biology 22, 258), that is, of the difference between a count and its expectation from
the cell's total and the gene's total, in units of the sd of a negative binomial. It needs no
logarithm and no bins of genes, which with few genes select by mean expression. Variability of
expression values, whose scale is unknown, is their variance.

Letters: C cells, N genes.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

PIECE = 2**22  # values whose deviations are in memory at once


def mean_and_sd(multiplicity: sparse.csr_matrix) -> tuple[Tensor, Tensor]:
    """Return the mean and the sd of each gene over cells, float32 [N] each; the sd of a constant
    gene is 1.

    multiplicity: CSR [C, N].
    """
    mean, sd, varies = moments(multiplicity)
    return torch.as_tensor(mean, dtype=torch.float32), torch.as_tensor(
        np.where(varies, sd, 1), dtype=torch.float32
    )


def varying(multiplicity: sparse.csr_matrix) -> np.ndarray:
    """Return which genes vary between the cells by more than rounding, bool [N].

    multiplicity: CSR [C, N].
    """
    return moments(multiplicity)[2]


def moments(multiplicity: sparse.csr_matrix) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the mean (float64), the sd (float64) and whether it varies (bool) of each gene, [N]
    each.

    Deviations are squared, and not values: the difference of the mean square and the squared mean
    would leave an sd of 3e-4 of the mean to a gene that is equal in all cells.

    multiplicity: CSR [C, N].
    """
    cells, genes = multiplicity.shape
    pieces = [slice(first, first + PIECE) for first in range(0, multiplicity.nnz, PIECE)]
    mean, total, stored = np.zeros(genes), np.zeros(genes), np.zeros(genes)
    # scipy adds float32 up as such, and equal values would differ from their mean
    for here in pieces:
        mean += np.bincount(
            multiplicity.indices[here], multiplicity.data[here].astype(np.float64), genes
        )
    mean /= max(cells, 1)
    for here in pieces:
        values, gene = multiplicity.data[here], multiplicity.indices[here]
        total += np.bincount(gene, np.square(values - mean[gene]), genes)
        stored += np.bincount(gene, minlength=genes)
    sd = np.sqrt((total + (cells - stored) * mean**2) / cells)
    # Multiplicities are float32: equal counts of cells with other totals may differ in the last
    # bit.
    return mean, sd, sd > 1e-6 * np.maximum(mean, 1)


TOGETHER = 1024  # cells that are held densely at a time


def seen_together(
    multiplicity: sparse.csr_matrix, regulators: np.ndarray, device: torch.device | str = "cpu"
) -> np.ndarray:
    """Return the number of cells in which a gene and a regulator are both above 0, int32 [N, R].

    The product is dense: a sparse one takes seven times as long where genes are in half of the
    cells, and half as long where they are in a twentieth.

    multiplicity: CSR [C, N].
    regulators [R]: positions.
    device: that counts.
    """
    picked = torch.as_tensor(regulators, device=device)
    count = torch.zeros(multiplicity.shape[1], len(regulators), device=device)
    for first in range(0, multiplicity.shape[0], TOGETHER):
        there = (
            torch.as_tensor(multiplicity[first : first + TOGETHER].toarray(), device=device)
            .bool()
            .float()
        )
        count.addmm_(there.mT, there[:, picked])
    return count.int().cpu().numpy()


OVERDISPERSION = 1 / 100  # of technical noise, as in the paper: variance mu + mu^2 / 100
BLOCK = 2**18  # numbers that are held densely at a time: as many as a processor's cache holds


def residual_variance(counts: sparse.csr_matrix) -> np.ndarray:
    """Return the variance over cells of each gene's Pearson residuals, float64 [N].

    Residuals are clipped at the square root of C.

    The residual of a zero with the expected count e is -sqrt(e / (1 + e / 100)); counts above 0 are
    few, and corrected afterwards.

    counts: CSR [C, N].
    """
    cells, genes = counts.shape
    totals = np.asarray(counts.sum(axis=1, dtype=np.float64)).ravel()
    share = np.asarray(counts.sum(axis=0, dtype=np.float64)).ravel() / max(totals.sum(), 1)
    by_gene = counts.tocsc()
    of_cell, of_gene = totals.astype(np.float32), share.astype(np.float32)
    square, linear = np.zeros(genes), np.zeros(genes)  # sums over cells
    step = max(BLOCK // max(cells, 1), 1)
    for start in range(0, genes, step):
        block = slice(start, min(start + step, genes))
        expected = np.outer(of_gene[block], of_cell)
        zero = np.minimum(expected / (1 + OVERDISPERSION * expected), cells)

        ends = by_gene.indptr[start : block.stop + 1]
        entries, gene = slice(ends[0], ends[-1]), np.repeat(np.arange(len(ends) - 1), np.diff(ends))
        at = gene, by_gene.indices[entries]
        mean = expected[at]
        residual = (by_gene.data[entries] - mean) / np.sqrt(mean + OVERDISPERSION * mean**2)
        residual = residual.clip(-np.sqrt(cells), np.sqrt(cells))
        more = residual**2 - zero[at], residual + np.sqrt(zero[at])
        square[block] = zero.sum(1) + np.bincount(gene, more[0], len(ends) - 1)
        linear[block] = np.bincount(gene, more[1], len(ends) - 1) - np.sqrt(zero, out=zero).sum(1)
    return square / max(cells, 1) - (linear / max(cells, 1)) ** 2


def variance(values: sparse.csr_matrix) -> np.ndarray:
    """Return the variance of each gene over cells, float64 [N]. values: CSR [C, N]."""
    mean = np.asarray(values.mean(axis=0, dtype=np.float64)).ravel()
    return np.asarray(values.multiply(values).mean(axis=0, dtype=np.float64)).ravel() - mean**2
