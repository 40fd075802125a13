"""Integer counts behind log1p(counts * scale / total).

Every cell has a unit u, the normalised size of a single count: a count c is stored as v = log1p(u
c). The smallest positive value of a cell is assumed to be a count of 1, as it is for UMI counts. A
stored value v, which may be wrong by its rounding r, is compatible with units between expm1(v - r)
/ c and expm1(v + r) / c; the counts are accepted where one unit is compatible with all values of
the cell. A cell whose smallest count is not 1 is refused, unless all its counts are multiples of
the smallest, which cannot be detected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import sparse

from grn.runtime.errors import DataError


@dataclass(frozen=True)
class Recovery:
    """How the counts of a matrix are recovered, for any of its cells.

    rounding: the largest error of a stored value.
    error: the largest |log1p(u c) - v|.
    whole: the counts where the matrix came in one piece, else None.
    """

    rounding: float
    error: float
    whole: sparse.csr_matrix | None

    def counts(self, values: sparse.csr_matrix) -> sparse.csr_matrix:
        """Return the counts, CSR float32 [C, N], of the matrix or of some of its cells."""
        return _fit(values, self.rounding).counts


def recovery(
    pieces: Callable[[], Iterable[sparse.csr_matrix]],
    cells: Callable[[list[int]], Sequence[str]],
    name: str,
) -> Recovery:
    """Return how to recover counts from values that are log1p of scaled counts, within the
    precision of the stored values, in every cell.

    pieces: yields the values of consecutive cells, CSR [<= C, N].
    cells: returns the names of some rows.
    name: of the matrix in messages.
    Raises DataError where some cell's values are not log1p of counts, or are so only by chance.
    """
    rounding = _rounding(pieces(), name)
    gap, miss, worst, largest, before = -np.inf, 0.0, 0, 0.0, 0
    chances, values, whole = 0.0, 0, None
    for fit in (_fit(piece, rounding) for piece in pieces()):
        first = int(fit.gap.argmax())
        if fit.gap[first] > gap:
            gap, miss, worst = fit.gap[first], fit.misses[first], before + first
        largest = max(largest, float(fit.misses.max()))
        chances, values = chances + float(fit.chances.sum()), values + fit.chances.size
        whole = None if before else fit.counts
        before += len(fit.gap)
    if gap > 0 or chances > 0.5 * values:
        problem = f"{name} is rounded so coarsely that any numbers could be log1p of counts"
        if gap > 0:
            problem = (
                f"{name} is not log1p of scaled counts: in cell {cells([worst])[0]} a value "
                f"differs from every whole multiple of the smallest value by {miss:.1g} (rounding: "
                f"{rounding:.1g})"
            )
        raise DataError(problem)
    return Recovery(rounding, largest, whole)


class _Fit(NamedTuple):
    """Counts, and how well they fit the values of cells.

    counts: CSR float32 [C, N].
    gap [C]: the least unit that is compatible with the cell's values minus the largest one. Where
        it is above 0, no unit is compatible; -inf for cells without values.
    misses [C]: the cell's largest |log1p(u c) - v|.
    chances: for each count above 1, the probability that an arbitrary value lies within `rounding`
        of a whole count.
    """

    counts: sparse.csr_matrix
    gap: np.ndarray
    misses: np.ndarray
    chances: np.ndarray


def _fit(values: sparse.csr_matrix, rounding: float) -> _Fit:
    """Fit a unit to each cell.

    values: CSR [C, N].
    rounding: the largest error of a stored value.
    """
    stored = values.data.astype(np.float64)
    filled = np.diff(values.indptr) > 0
    gap, misses = np.full(len(filled), -np.inf), np.zeros(len(filled))
    if not stored.size:
        return _Fit(values.astype(np.float32), gap, misses, np.empty(0))
    starts = values.indptr[:-1][filled]
    row = np.repeat(np.arange(starts.size), np.diff(values.indptr)[filled])
    low, value, high = (np.expm1(stored + shift) for shift in (-rounding, 0, rounding))

    unit = np.minimum.reduceat(value, starts)
    # Rounding leaves the first estimate of the unit too coarse for large counts, so ever larger
    # counts refine it.
    for largest in (2, 8, 32, 128, 512, np.inf):
        count = np.maximum(np.rint(value / unit[row]), 1)
        used = count <= largest
        least = np.maximum.reduceat(np.where(used, low / count, 0), starts)
        most = np.minimum.reduceat(np.where(used, high / count, np.inf), starts)
        unit = (least + most) / 2

    gap[filled] = least - most
    misses[filled] = np.maximum.reduceat(np.abs(np.log1p(count * unit[row]) - stored), starts)
    counts = sparse.csr_matrix(
        (count.astype(np.float32), values.indices, values.indptr), shape=values.shape
    )
    above, unit = count[count > 1], unit[row][count > 1]
    with np.errstate(divide="ignore"):  # of huge counts, which are refused anyway
        chances = np.minimum(
            1, 2 * rounding / (np.log1p((above + 1) * unit) - np.log1p(above * unit))
        )
    return _Fit(counts, gap, misses, chances)


def _rounding(pieces: Iterable[sparse.csr_matrix], name: str) -> float:
    """Return the largest error of a stored value: half of its last decimal digit, or the rounding
    of single precision.

    pieces: of the values, CSR.
    name: of the matrix in messages.
    Raises DataError for values that cannot be log1p of counts.
    """
    decimals = np.arange(1, 6)
    largest, off, eps, fits = -np.inf, np.zeros(len(decimals)), 0.0, True
    for piece in pieces:
        stored, eps = piece.data.astype(np.float64), float(np.finfo(piece.data.dtype).eps)
        if stored.size:
            fits = fits and bool(np.isfinite(stored).all()) and stored.min() >= 0
            largest = max(largest, float(stored.max()))
        if not fits or largest > 50:
            break
        rests = [
            float(np.abs(piece.data - np.round(piece.data, each)).max(initial=0))
            for each in decimals
        ]
        off = np.maximum(off, rests)
    if not fits or not 0 <= largest <= 50:
        raise DataError(
            f"{name} is not log1p of counts, which lie between 0 and 50, are finite and not all 0"
        )
    loss = 4 * eps * max(largest, 1)
    for each, rest in zip(decimals, off, strict=True):
        if rest <= loss:
            return float(0.5 * 10.0**-each + loss)
    # for any dtype: values that were normalised in float32 are wrong by a few units in the last
    # place
    return 5e-6
