"""From counts to multiplicities. Every transform keeps 0 at 0, so matrices stay sparse."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from grn.cells.preprocessing.counting import Counting
from grn.errors import DataError

LEAST_TOTAL = 0.05  # of the target total: cells with a smaller total are scaled as if they had this one


def median_total(totals: np.ndarray) -> float:
    """Median of the totals [C] that are above 0: the total to which `log1p_normalised` scales cells.

    Raises DataError where no total is above 0.
    """
    if not (totals > 0).any():
        raise DataError("No training cell has a count in the chosen genes; choose other genes (data.genes).")
    return float(np.median(totals[totals > 0]))


def to_multiplicity(
    counts: sparse.csr_matrix, transform: str, totals: np.ndarray, target_total: float | None = None
) -> sparse.csr_matrix:
    """Multiplicities, CSR float32 [C, N], of counts, CSR [C, N].

    transform: counts | log1p: log(1 + count) | log1p_normalised: log(1 + count * target_total / total of the cell).
    totals [C]: of each cell.   target_total: see median_total; log1p_normalised raises ValueError without it.
    """
    # Shares the indices with `counts`, but not the values.
    values = sparse.csr_matrix((counts.data.astype(np.float32), counts.indices, counts.indptr), shape=counts.shape)
    if transform == "counts":
        return values
    if transform == "log1p_normalised":
        scale = scale_of_cells(totals, target_total)
        values.data *= np.repeat(scale, np.diff(values.indptr)).astype(np.float32)
    values.data = np.log1p(values.data)
    return values


def scale_of_cells(totals: np.ndarray, target_total: float | None) -> np.ndarray:
    """What log1p_normalised multiplies the counts of each cell by, [C]. Raises ValueError without a target total."""
    if target_total is None:
        raise ValueError("log1p_normalised needs the target_total of the training cells")
    # Dividing by a total near 0 would give the few genes of an almost empty cell huge multiplicities.
    return target_total / np.maximum(totals, LEAST_TOTAL * target_total)


def counting_of(transform: str, totals: np.ndarray, target_total: float | None = None) -> Counting:
    """How `to_multiplicity` counts with the same arguments."""
    if transform == "counts":
        return Counting(None)
    return Counting(np.ones(len(totals)) if transform == "log1p" else scale_of_cells(totals, target_total))
