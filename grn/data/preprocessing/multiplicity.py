"""From counts to multiplicities, without densifying: every transform keeps 0 at 0."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from grn.errors import DataError

LEAST_TOTAL = 0.05  # of the typical cell's: a shallower cell is scaled as if it had so much


def median_total(totals: np.ndarray) -> float:
    """Median of the cells' totals [C], over cells that have any: what `log1p_normalised` scales to."""
    if not (totals > 0).any():
        raise DataError("No training cell has a count in the chosen genes; choose other genes (data.genes).")
    return float(np.median(totals[totals > 0]))


def to_multiplicity(
    counts: sparse.csr_matrix, transform: str, totals: np.ndarray, target_total: float | None = None
) -> sparse.csr_matrix:
    """counts | log1p: log(1 + count) | log1p_normalised: log(1 + count * target_total / total of the cell)."""
    # The same places, and numbers of its own.
    values = sparse.csr_matrix((counts.data.astype(np.float32), counts.indices, counts.indptr), shape=counts.shape)
    if transform == "counts":
        return values
    if transform == "log1p_normalised":
        if target_total is None:
            raise ValueError("log1p_normalised needs the target_total of the training cells")
        # Hardly any count to divide by: dividing by it would make a giant of the cell's first gene.
        scale = target_total / np.maximum(totals, LEAST_TOTAL * target_total)
        values.data *= np.repeat(scale, np.diff(values.indptr)).astype(np.float32)
    values.data = np.log1p(values.data)
    return values
