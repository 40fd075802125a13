"""Checks that values are of the kind that data.values promises, and the sizes of counts, in one
pass over a file.

All findings are totals over pieces, so that processes can share the file and join their findings.

Letters: C cells, N genes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import reduce
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import sparse

from grn.runtime.processes import Processes

LARGEST = 1e7  # count: more than a gene has in any cell
ALONE, TIMES = 1e5, 1000  # a count above ALONE and above TIMES the gene's next largest is a mistake
# expression: sums of squares of such values are exact enough in float32
SMALLEST_VALUE, LARGEST_VALUE = 1e-12, 1e12
NEARLY = 0.01  # from a whole number
SAMPLE = 500  # cells of a piece whose counts are compared with their smallest one

Pieces = Callable[..., Iterable[sparse.csr_matrix]]
"""A function that yields clean CSR [<= rows, N] of consecutive cells: of all cells or, called with
a slice, of these cells.
"""

NOT_WHOLE = "which is not a whole number"
# by the problem with a value: the function that tells which of some values have it
Faults = dict[str, Callable[[np.ndarray], np.ndarray]]
NO_COUNT: Faults = {
    "which is not finite": lambda data: ~np.isfinite(data),
    "which is negative, as in scaled data": lambda data: data < 0,
    NOT_WHOLE: lambda data: data != np.rint(data),
    "which is too large for a count": lambda data: data > LARGEST,
}
NO_EXPRESSION: Faults = {
    "which is not finite": lambda data: ~np.isfinite(data),
    "which is negative": lambda data: data < 0,
}


class Scope(NamedTuple):
    """The part of the data that is checked.

    pieces: of all cells.
    own: the pieces that this process has to read, from the cell `first` on.
    cells: returns the names of some rows.
    genes [N]: names.
    name: of the matrix in messages.
    processes: that share the pieces.
    """

    pieces: Pieces
    own: Iterable[sparse.csr_matrix]
    first: int
    cells: Callable[[list[int]], pd.Index]
    genes: pd.Index
    name: str
    processes: Processes


@dataclass(frozen=True)
class Scale:
    """The sizes of the counts of cells.

    stored: how many counts are above 0.
    largest: the largest count.
    totals [C]: of each cell over all genes, float64.
    measured [C]: of each cell over all genes, each gene times the weight that `read_expression` was
        given, float64; None without weights.
    smallest: median over a sample of cells of the smallest count above 0.
    multiples: share of the sample's larger counts that are whole multiples of their cell's smallest
        count (0 where there are too few to tell).
    """

    stored: int
    largest: float
    totals: np.ndarray
    measured: np.ndarray | None
    smallest: float
    multiples: float


@dataclass
class Tally:
    """The findings of one process in its pieces.

    stored: how many values are above 0.
    largest: the largest value.
    quarters: whether all values are multiples of 1/4.
    wrong: by the problem, the first value that has it.
    totals, measured: one array a piece, see Scale.
    smallest: one array a piece, the smallest count of each cell of a sample.
    ratios: one array a piece, the sample's counts over the smallest one of their cell.
    deviation: the largest distance of a value from a whole number.
    """

    stored: int = 0
    largest: float = -np.inf
    quarters: bool = True
    wrong: dict[str, str] = field(default_factory=dict)
    totals: list[np.ndarray] = field(default_factory=list)
    measured: list[np.ndarray] = field(default_factory=list)
    smallest: list[np.ndarray] = field(default_factory=list)
    ratios: list[np.ndarray] = field(default_factory=list)
    deviation: float = 0


def judge_counts(scope: Scope, weights: np.ndarray | None) -> tuple[str | None, Scale]:
    """Return the beginning of a sentence about the first value that cannot be a count (None: all
    can), and the scale of the counts.

    weights [N]: see Scale.measured.
    """
    parts = scope.processes.of_all(lambda: _counted(scope, weights))
    stored = sum(part.stored for part in parts)
    largest = max(part.largest for part in parts)
    quarters = all(part.quarters for part in parts)
    # the first process names it
    found = reduce(lambda wrong, part: part.wrong | wrong, parts, dict[str, str]())
    if not found and largest > ALONE and (alone := _stands_alone(scope)):
        found["which is too large for a count"] = alone

    def joined(name: str) -> np.ndarray:
        return np.concatenate(
            [np.empty(0), *(each for part in parts for each in getattr(part, name))]
        )

    ratio = joined("ratios")
    ratio = ratio[np.isfinite(ratio) & (ratio > 1.5)]
    smallest = joined("smallest")
    scale = Scale(
        stored,
        largest,
        joined("totals"),
        None if weights is None else joined("measured"),
        float(np.median(smallest)) if len(smallest) else 0.0,
        float((np.abs(ratio - np.rint(ratio)) < 0.1).mean()) if len(ratio) >= 50 else 0.0,
    )
    if stored == 0:
        lacking = (
            "cells" if not len(scale.totals) else "value above 0" if len(scope.genes) else "genes"
        )
        return f"{scope.name} holds no {lacking}", scale
    for reason in NO_COUNT:
        if reason in found:
            seems = ""
            if reason == NOT_WHOLE and max(part.deviation for part in parts) < NEARLY:
                seems = " (all are nearly whole, as after a computation; round them)"
            elif reason == NOT_WHOLE and largest < 25 and not quarters:
                seems = " (it looks log-normalised)"
            return (
                f"{scope.name} does not hold counts: it has {found[reason]}, {reason}{seems}",
                scale,
            )
    return None, scale


def _counted(scope: Scope, weights: np.ndarray | None) -> Tally:
    """Return the findings about counts in the pieces of this process."""
    part, first = Tally(), scope.first
    for values in scope.own:
        data = values.data
        _note(part.wrong, NO_COUNT, values, scope, first)
        if NOT_WHOLE in part.wrong:
            part.deviation = max(
                part.deviation, float(np.nanmax(np.abs(data - np.rint(data)), initial=0))
            )
        part.stored += values.nnz
        part.largest = max(part.largest, float(data.max(initial=-np.inf)))
        part.quarters &= NOT_WHOLE not in part.wrong or bool((4 * data == np.rint(4 * data)).all())
        first += values.shape[0]
        part.totals.append(np.asarray(values.sum(axis=1, dtype=np.float64)).ravel())
        if weights is not None:
            part.measured.append(values @ weights)
        sample = values[:: max(values.shape[0] // SAMPLE, 1)]
        filled = np.diff(sample.indptr)[np.diff(sample.indptr) > 0]
        if filled.size:
            part.smallest.append(np.minimum.reduceat(sample.data, np.cumsum([0, *filled[:-1]])))
            part.ratios.append(sample.data / np.repeat(part.smallest[-1], filled))
    return part


def _stands_alone(scope: Scope) -> str | None:
    """Return a count that is far above all others of its gene, with its place, as a text; None
    where there is none.
    """
    genes = scope.genes
    first, second, where = np.zeros(len(genes)), np.zeros(len(genes)), {}
    before = 0
    for values in scope.pieces():
        row = np.repeat(np.arange(before, before + values.shape[0]), np.diff(values.indptr))
        order = np.lexsort((values.data, values.indices))
        gene, data = values.indices[order], values.data[order]
        # the largest count of each gene in this piece
        for last in np.flatnonzero(np.diff(gene, append=-1)):
            j, top = gene[last], data[last]
            below = data[last - 1] if last and gene[last - 1] == j else 0
            second[j] = max(below, second[j], min(top, first[j]))
            if top > first[j]:
                first[j], where[j] = top, row[order[last]]
        before += values.shape[0]
    alone = np.flatnonzero((first > ALONE) & (first > TIMES * np.maximum(second, 1)))
    if not alone.size:
        return None
    return (
        f"{first[alone[0]]:g} for gene {genes[alone[0]]} in cell "
        f"{scope.cells([where[alone[0]]])[0]}"
    )


def judge_expression(scope: Scope) -> str | None:
    """Return a sentence about values that cannot be multiplicities (None: all can), which are
    finite, not negative, and not all 0.
    """

    def looked() -> tuple[dict[str, str], float, str]:
        found: dict[str, str] = {}
        largest, most, first = -np.inf, "", scope.first
        for values in scope.own:
            _note(found, NO_EXPRESSION, values, scope, first)
            if values.nnz and values.data.max() > largest:
                largest = values.data.max()
                most = _named(values, int(values.data.argmax()), scope, first)
            first += values.shape[0]
        return found, float(largest), most

    parts, name = scope.processes.of_all(looked), scope.name
    found = reduce(lambda wrong, part: part[0] | wrong, parts, dict[str, str]())
    _, largest, most = max(parts, key=lambda part: part[1])
    for reason in NO_EXPRESSION:
        if reason in found:
            needed = "multiplicities are finite and, unlike scaled data, not negative"
            return f"{name} has {found[reason]}, {reason}; {needed}"
    if not most:
        return f"{name} holds only zeros"
    if not SMALLEST_VALUE < largest < LARGEST_VALUE:
        return (
            f"The largest value of {name} is {most}, too far from 1 to compute with; divide all "
            "values by one number"
        )
    return None


def _note(
    found: dict[str, str], faults: Faults, values: sparse.csr_matrix, scope: Scope, first: int
) -> None:
    """Note the first value with each fault, unless an earlier one was noted.

    found: by the problem, the value and its place as a text; it gets the new ones.
    values: a piece.
    first: the number of the piece's first cell.
    """
    for reason, test in faults.items():
        if reason not in found and (at := test(values.data)).any():
            found[reason] = _named(values, int(at.argmax()), scope, first)


def exact(value: np.floating) -> str:
    """Return a number as a text, rounded only where that does not change it: 4.9999999 is not
    called 5.
    """
    short = f"{value:g}"
    return short if float(short) == value else str(value)


def _named(values: sparse.csr_matrix, entry: int, scope: Scope, first: int) -> str:
    """Return a stored value of a piece with its gene and cell. first: see _note."""
    cell = first + int(np.searchsorted(values.indptr, entry, side="right")) - 1
    return (
        f"{exact(values.data[entry])} for gene {scope.genes[values.indices[entry]]} in cell "
        f"{scope.cells([cell])[0]}"
    )
