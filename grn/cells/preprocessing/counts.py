"""Reads the matrix of an AnnData that data.counts names, and checks that it holds what data.values promises.

Letters: C cells, N genes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from anndata import AnnData
from anndata.abc import CSCDataset, CSRDataset
from scipy import sparse

from grn.cells.preprocessing.recover import recovery
from grn.cells.preprocessing.split import GENES, marks_of
from grn.cells.readers.matrix import DENSE, csr_pieces, to_csr
from grn.config.schema import DataConfig
from grn.errors import DataError
from grn.threads import ahead

LARGEST = 1e7  # count: more than a gene has in any cell
ALONE, TIMES = 1e5, 1000  # a count above ALONE and above TIMES the gene's next largest is a mistake
SMALLEST_VALUE, LARGEST_VALUE = 1e-12, 1e12  # expression: sums of squares of such values are exact enough in float32
SAMPLE = 500  # cells of a piece whose counts are compared with their smallest one

Values = Literal["counts", "expression"]
Pieces = Callable[[], Iterable[sparse.csr_matrix]]  # clean CSR [<= rows, N] of consecutive cells, each time anew


@dataclass(frozen=True)
class Scale:
    """How large the counts of cells are.

    stored: counts above 0.   largest: of them.   totals [C]: of each cell over all genes, float64.
    measured [C]: the same, each gene counted with the weight that `read_expression` was given; None without weights.
    smallest: median over a sample of cells of the smallest count.   multiples: share of the sample's larger counts that
    are whole multiples of their cell's smallest count (0 where there are too few to tell).
    """

    stored: int
    largest: float
    totals: np.ndarray
    measured: np.ndarray | None
    smallest: float
    multiples: float


class Kept(NamedTuple):
    """values: of the cells that were asked for, clean CSR float32 [S, N].   mark [C]: of each cell, see marks_of; NaN
    where so few genes were detected that cells are equal by chance."""

    values: sparse.csr_matrix
    mark: np.ndarray


@dataclass(frozen=True)
class Expression:
    """pieces: the values as float32.   var: the genes.   origin: a sentence about where the values are from.
    scale: of counts; None for expression.   kept: None if no cells were asked for."""

    pieces: Pieces
    var: pd.DataFrame
    origin: str
    scale: Scale | None = None
    kept: Kept | None = None

    @property
    def values(self) -> sparse.csr_matrix:
        """All cells, where they are one piece: clean CSR float32 [C, N]."""
        (whole,) = self.pieces()
        return whole


def read_expression(
    adata: AnnData,
    config: DataConfig,
    rows: int | None = None,
    weights: np.ndarray | None = None,
    field: str = "data.counts",
    some: np.ndarray | None = None,
) -> Expression:
    """The values that `data.counts` names, in pieces of `rows` cells (None: one piece), all of them checked.

    A matrix on disk is read once for the check, in which the cells `some` [S], sorted, are kept; and again whenever its
    pieces are asked for.   weights: see Scale.measured, float64 [N]. Raises DataError.
    """
    problem, found = _examined(adata, config.counts, config.values, rows, weights, some)
    if found is None:
        advice = _alternatives(adata, config.counts, config.values, rows)
        raise DataError(problem, field=field, advice=advice)
    return found


def genes_of(adata: AnnData, choice: str) -> pd.DataFrame:
    """The table of the genes that a choice of `data.counts` has."""
    return adata.raw.var if choice in ("raw", "recover") and adata.raw is not None else adata.var


def choices_that_hold(adata: AnnData, values: Values, rows: int | None = None) -> list[str]:
    """The choices of `data.counts` with which `adata` gives such values; each is read to see whether it does."""
    layers = [f"layer:{layer}" for layer in adata.layers if layer is not None]
    found = ["X", "raw", *layers, *(["recover"] if values == "counts" else [])]
    return [choice for choice in found if _examined(adata, choice, values, rows)[1] is not None]


def _examined(
    adata: AnnData,
    choice: str,
    values: Values,
    rows: int | None,
    weights: np.ndarray | None = None,
    some: np.ndarray | None = None,
) -> tuple[str, Expression | None]:
    """What is wrong with a choice of `data.counts`, and its values where nothing is."""
    scale, kept = None, list[Kept]()
    try:
        if choice == "recover" and values == "counts":
            pieces, var, name, origin = _recovered(adata, rows)
        else:
            pieces, var, name = _matrix(adata, choice, rows)
            origin = f"Counts are read from {name}."
    except DataError as error:
        return error.problem, None
    read = pieces if some is None else partial(_keeping, pieces, some, kept)
    if values == "expression":
        problem = _expression_problem(read, adata.obs_names, var.index, name)
        origin = f"Expression values are read from {name} and used as they are."
    else:
        problem, scale = _judge_counts(read, adata.obs_names, var.index, name, weights)
    if problem:
        return problem, None
    of_kept = None
    if kept:
        of_pieces, marks = zip(*kept, strict=True)
        of_kept = Kept(sparse.vstack(of_pieces, format="csr"), np.concatenate(marks))
    return "", Expression(
        lambda: (piece.astype(np.float32, copy=False) for piece in pieces()), var, origin, scale, of_kept
    )


def _keeping(pieces: Pieces, rows: np.ndarray, kept: list[Kept]) -> Iterator[sparse.csr_matrix]:
    """The pieces; as they pass, `kept` becomes the cells `rows`, sorted, and the marks, of each."""
    kept.clear()
    first = 0
    for piece in pieces():
        last = first + piece.shape[0]
        values = piece.astype(np.float32, copy=False)
        mark = marks_of(values)
        mark[np.diff(values.indptr) < GENES] = np.nan
        kept.append(Kept(values[rows[(rows >= first) & (rows < last)] - first], mark))
        first = last
        yield piece


def _alternatives(adata: AnnData, tried: str, values: Values, rows: int | None) -> str:
    """What to do where the choice that was tried does not hold such values."""
    found = [choice for choice in choices_that_hold(adata, values, rows) if choice != tried]
    if found:
        explained = {"recover": "recover (computes the integers from its log1p values)"}
        return f"set {{field}} to {' or '.join(explained.get(choice, choice) for choice in found)}"
    own = tried if tried != "recover" else "X" if adata.raw is None else "raw"
    if values == "counts" and _examined(adata, own, "expression", rows)[1] is not None:
        return "no matrix holds counts: add one, or set data.values to expression to use the values as they are"
    return f"no other matrix holds {values}; give data with {values}"


def _matrix(adata: AnnData, choice: str, rows: int | None) -> tuple[Pieces, pd.DataFrame, str]:
    """The matrix that a choice of `data.counts` names, its genes, and its name in messages."""
    kind, _, layer = choice.partition(":")
    name = {"X": "X", "raw": ".raw", "layer": f"layer {layer!r}"}.get(kind, f"matrix {choice!r}")
    found = stored_matrix(adata, choice)
    if found is None:
        raise DataError(f"The AnnData has no {name}")
    if rows is not None:
        return lambda: ahead(csr_pieces(found, name, rows)), genes_of(adata, choice), name
    whole = to_csr(found, name)
    return lambda: (whole,), genes_of(adata, choice), name


def stored_matrix(adata: AnnData, choice: str) -> Any:
    """The matrix of a choice of `data.counts`, in memory or in a file, as it is stored; None where there is none."""
    if choice == "X":
        return adata.X if _has_x(adata) else None
    if choice == "raw":
        return None if adata.raw is None else adata.raw.X
    kind, _, layer = choice.partition(":")  # AnnData 0.13 lists X among the layers, with the name None
    return adata.layers.get(layer) if kind == "layer" and layer else None


def in_file(adata: AnnData, choice: str) -> bool:
    """Whether the matrix of a choice of `data.counts` is in a file, so that some of its cells can be read."""
    own = choice if choice != "recover" else "X" if adata.raw is None else "raw"
    return isinstance(stored_matrix(adata, own), (CSRDataset, CSCDataset, *DENSE))


def _has_x(adata: AnnData) -> bool:
    """A backed AnnData raises a KeyError where its file has no X; its `to_memory` may have closed the file."""
    if adata.isbacked and not adata.file.is_open:
        adata.file.open()
    return "X" in adata.file if adata.isbacked else adata.X is not None


def _recovered(adata: AnnData, rows: int | None) -> tuple[Pieces, pd.DataFrame, str, str]:
    pieces, var, name = _matrix(adata, "X" if adata.raw is None else "raw", rows)
    how = recovery(pieces, adata.obs_names, name)
    origin = (
        f"Counts are recovered from the log1p values in {name}; log1p of the counts, scaled per cell, "
        f"gives those values back within {how.error:.1e}."
    )
    if (whole := how.whole) is not None:
        return lambda: (whole,), var, name, origin
    return lambda: map(how.counts, pieces()), var, name, origin


def _judge_counts(
    pieces: Pieces, cells: pd.Index, genes: pd.Index, name: str, weights: np.ndarray | None
) -> tuple[str | None, Scale]:
    """The beginning of a sentence about the first value that cannot be a count (None: all can), and their scale."""
    wrong = {
        "which is not finite": lambda data: ~np.isfinite(data),
        "which is negative, as in scaled data": lambda data: data < 0,
        "which is not a whole number": lambda data: data != np.rint(data),
        "which is too large for a count": lambda data: data > LARGEST,
    }
    found: dict[str, str] = {}
    largest, stored, first, quarters = -np.inf, 0, 0, True
    totals, measured, smallest, ratios = [], [], [], []
    for values in pieces():
        data = values.data
        for reason, test in wrong.items():
            if reason not in found and (at := test(data)).any():
                found[reason] = _named(values, int(at.argmax()), cells[first:], genes)
        if "which is not a whole number" in found:
            quarters = quarters and bool((4 * data == np.rint(4 * data)).all())
        largest, stored, first = data.max(initial=largest), stored + values.nnz, first + values.shape[0]
        totals.append(np.asarray(values.sum(axis=1, dtype=np.float64)).ravel())
        if weights is not None:
            measured.append(values @ weights)
        sample = values[:: max(values.shape[0] // SAMPLE, 1)]
        filled = np.diff(sample.indptr)[np.diff(sample.indptr) > 0]
        if filled.size:
            smallest.append(np.minimum.reduceat(sample.data, np.cumsum([0, *filled[:-1]])))
            ratios.append(sample.data / np.repeat(smallest[-1], filled))
    if not found and largest > ALONE and (alone := _stands_alone(pieces, cells, genes)):
        found["which is too large for a count"] = alone
    ratio = np.concatenate([np.empty(0), *ratios])
    ratio = ratio[np.isfinite(ratio) & (ratio > 1.5)]
    scale = Scale(
        stored,
        float(largest),
        np.concatenate([np.empty(0), *totals]),
        np.concatenate(measured) if measured else None,
        float(np.median(np.concatenate(smallest))) if smallest else 0.0,
        float((np.abs(ratio - np.rint(ratio)) < 0.1).mean()) if ratio.size >= 50 else 0.0,
    )
    if stored == 0:
        return f"{name} holds no {'cells' if not len(cells) else 'value above 0' if len(genes) else 'genes'}", scale
    for reason in wrong:
        if reason in found:
            logged = " (it looks log-normalised)" if "whole" in reason and largest < 25 and not quarters else ""
            return f"{name} does not hold counts: it has {found[reason]}, {reason}{logged}", scale
    return None, scale


def _stands_alone(pieces: Pieces, cells: pd.Index, genes: pd.Index) -> str | None:
    """A count that is far above all others of its gene, where there is one."""
    first, second, where = np.zeros(len(genes)), np.zeros(len(genes)), {}
    before = 0
    for values in pieces():
        row = np.repeat(np.arange(before, before + values.shape[0]), np.diff(values.indptr))
        order = np.lexsort((values.data, values.indices))
        gene, data = values.indices[order], values.data[order]
        for last in np.flatnonzero(np.diff(gene, append=-1)):  # the largest count of each gene in this piece
            j, top = gene[last], data[last]
            below = data[last - 1] if last and gene[last - 1] == j else 0
            second[j] = max(below, second[j], min(top, first[j]))
            if top > first[j]:
                first[j], where[j] = top, row[order[last]]
        before += values.shape[0]
    alone = np.flatnonzero((first > ALONE) & (first > TIMES * np.maximum(second, 1)))
    return f"{first[alone[0]]:g} for gene {genes[alone[0]]} in cell {cells[where[alone[0]]]}" if alone.size else None


def _expression_problem(pieces: Pieces, cells: pd.Index, genes: pd.Index, name: str) -> str | None:
    """A sentence about values that cannot be multiplicities, which are finite, not negative, and not all 0."""
    found: dict[str, str] = {}
    largest, most, first = -np.inf, "", 0
    for values in pieces():
        data = values.data
        for reason, at in {"which is not finite": ~np.isfinite(data), "which is negative": data < 0}.items():
            if reason not in found and at.any():
                found[reason] = _named(values, int(at.argmax()), cells[first:], genes)
        if data.size and data.max() > largest:
            largest, most = data.max(), _named(values, int(data.argmax()), cells[first:], genes)
        first += values.shape[0]
    for reason in sorted(found, reverse=True):  # not finite before negative
        return f"{name} has {found[reason]}, {reason}; multiplicities are finite and, unlike scaled data, not negative"
    if not most:
        return f"{name} holds only zeros"
    if not SMALLEST_VALUE < largest < LARGEST_VALUE:
        return f"The largest value of {name} is {most}, too far from 1 to compute with; divide all values by one number"
    return None


def _named(values: sparse.csr_matrix, entry: int, cells: pd.Index, genes: pd.Index) -> str:
    cell = np.searchsorted(values.indptr, entry, side="right") - 1
    return f"{values.data[entry]:g} for gene {genes[values.indices[entry]]} in cell {cells[cell]}"
