"""Integer counts behind log1p(counts * scale / total).

Every cell has a unit u, the normalised size of a single count: a count c is stored as v = log1p(u c). The smallest
positive value of a cell is assumed to be a count of 1, as it is for UMI counts. A stored value v, which may be wrong by
its rounding r, is compatible with units between expm1(v - r) / c and expm1(v + r) / c; the counts are accepted where
one unit is compatible with all values of the cell. A cell whose smallest count is not 1 is refused, unless all its
counts are multiples of the smallest, which cannot be detected.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from grn.errors import DataError

ADVICE = "set data.counts to a matrix that holds counts, or data.values: expression."


@dataclass(frozen=True)
class Recovered:
    """counts: CSR float32 [C, N].   error: the largest |log1p(u c) - v|."""

    counts: sparse.csr_matrix
    error: float


def recover_counts(values: sparse.csr_matrix, cells, name: str) -> Recovered:
    """Counts whose log1p gives `values`, CSR [C, N], within their stored precision in every cell. Raises DataError.

    cells [C]: names of the cells.   name: of the matrix, for messages.
    """
    stored = values.data.astype(np.float64)
    if not stored.size or not np.isfinite(stored).all() or stored.min() < 0 or stored.max() > 50:
        raise DataError(
            f"{name} is not log1p of counts, which lie between 0 and 50, are finite and not all 0; {ADVICE}"
        )
    filled = np.diff(values.indptr) > 0
    starts = values.indptr[:-1][filled]
    row = np.repeat(np.arange(starts.size), np.diff(values.indptr)[filled])
    rounding = _rounding(values.data)
    low, value, high = (np.expm1(stored + shift) for shift in (-rounding, 0, rounding))

    unit = np.minimum.reduceat(value, starts)
    # Rounding leaves the first estimate of the unit too coarse for large counts, so ever larger counts refine it.
    for largest in (2, 8, 32, 128, 512, np.inf):
        count = np.maximum(np.rint(value / unit[row]), 1)
        used = count <= largest
        least = np.maximum.reduceat(np.where(used, low / count, 0), starts)
        most = np.minimum.reduceat(np.where(used, high / count, np.inf), starts)
        unit = (least + most) / 2

    error = np.abs(np.log1p(count * unit[row]) - stored)
    if (least > most).any():
        worst = int(np.argmax(least - most))
        cell = cells[np.flatnonzero(filled)[worst]]
        raise DataError(
            f"{name} is not log1p of scaled counts: in cell {cell} a value differs from every whole multiple of the "
            f"smallest value by {error[row == worst].max():.1g} (rounding: {rounding:.1g}); {ADVICE}"
        )
    if _chance(count, unit[row], rounding) > 0.5:
        raise DataError(f"{name} is rounded so coarsely that any numbers could be log1p of counts; {ADVICE}")
    counts = sparse.csr_matrix((count.astype(np.float32), values.indices, values.indptr), shape=values.shape)
    return Recovered(counts, float(error.max()))


def _rounding(stored: np.ndarray) -> float:
    """Largest error of a stored value: half of its last decimal digit, or the rounding of single precision."""
    loss = 4 * float(np.finfo(stored.dtype).eps) * max(float(stored.max()), 1)
    for decimals in range(1, 6):
        if np.abs(stored - np.round(stored, decimals)).max() <= loss:
            return 0.5 * 10.0**-decimals + loss
    return 5e-6  # for any dtype: values that were normalised in float32 are wrong by a few units in the last place


def _chance(count: np.ndarray, unit: np.ndarray, rounding: float) -> float:
    """Mean probability that an arbitrary value lies within `rounding` of a whole count."""
    above_one = count > 1
    if not above_one.any():
        return 0.0
    gap = np.log1p((count + 1) * unit) - np.log1p(count * unit)
    return float(np.minimum(1, 2 * rounding / gap[above_one]).mean())
