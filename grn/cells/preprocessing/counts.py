"""The matrix of an AnnData that data.counts names, read, and checked to hold the kind of values
that data.values promises.

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

from grn.cells.genes.feature_types import are_genes, left_out
from grn.cells.preprocessing.checks import Pieces, Scale, Scope, judge_counts, judge_expression
from grn.cells.preprocessing.recover import recovery
from grn.cells.preprocessing.split import GENES, marks_of
from grn.cells.readers.anndata_files import names_of
from grn.cells.readers.matrix import ALL, DENSE, csr_pieces, to_csr
from grn.config.schema import DataConfig
from grn.runtime.errors import DataError
from grn.runtime.processes import ALONE, Processes
from grn.runtime.threads import ahead

Values = Literal["counts", "expression"]


class Kept(NamedTuple):
    """A sample of S cells, and marks of all C cells.

    values: of the sample, clean CSR float32 [S, N].
    mark [C]: see marks_of; NaN of a cell with so few detected genes that it may equal another one
        by chance.
    """

    values: sparse.csr_matrix
    mark: np.ndarray


@dataclass(frozen=True)
class Expression:
    """The values of a file, its genes, and where both are from.

    pieces: yields the values, clean CSR float32 [<= rows, N].
    var: the table of the N genes.
    origin: a sentence that says which matrix the values are from.
    scale: of counts; None for expression.
    kept: the sample that was asked for; None without one.
    left_out: a sentence about features of the matrix that are not genes, which `pieces` and `var`
        leave out; empty where there are none.
    """

    pieces: Callable[[], Iterable[sparse.csr_matrix]]
    var: pd.DataFrame
    origin: str
    scale: Scale | None = None
    kept: Kept | None = None
    left_out: str = ""

    @property
    def values(self) -> sparse.csr_matrix:
        """Return the values of all cells, which must be one piece: clean CSR float32 [C, N]."""
        (whole,) = self.pieces()
        return whole


def read_expression(
    adata: AnnData,
    config: DataConfig,
    rows: int | None = None,
    weights: np.ndarray | None = None,
    some: np.ndarray | None = None,
    processes: Processes = ALONE,
) -> Expression:
    """Return the values that `data.counts` names, after a check of all of them.

    A matrix on disk is read once for the check, and again whenever its pieces are asked for.

    rows: cells of a piece; None: all cells are one piece.
    weights [N]: float64, see Scale.measured.
    some [S]: sorted rows of a sample that is kept during the check; None: no sample.
    processes: that call this together; each checks a part of a matrix that a file stores by rows.
    Raises DataError.
    """
    problem, found = _examined(adata, config.counts, config.values, rows, weights, some, processes)
    if found is None:
        advice = _alternatives(adata, config.counts, config.values, rows)
        raise DataError(problem, field="data.counts", advice=advice)
    return found


def genes_of(adata: AnnData, choice: str) -> pd.DataFrame:
    """Return the table of the genes of a matrix, without antibodies, peaks and the like.

    choice: of data.counts.
    """
    var = features_of(adata, choice)
    genes = are_genes(var)
    return var if genes.all() else var[genes]


def features_of(adata: AnnData, choice: str) -> pd.DataFrame:
    """Return the table of all features of a matrix, a row for each of its columns.

    choice: of data.counts.
    """
    return adata.raw.var if choice in ("raw", "recover") and adata.raw is not None else adata.var


def choices_that_hold(adata: AnnData, values: Values, rows: int | None = None) -> list[str]:
    """Return the choices of `data.counts` that name a matrix with such values. All are read to find
    them.

    rows: cells that are read at a time; None: all.
    """
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
    processes: Processes = ALONE,
) -> tuple[str, Expression | None]:
    """Return the problem with a choice of `data.counts` (empty: none) and, without one, its values.

    rows, weights, some, processes: see read_expression.
    """
    scale, kept, own = None, list[Kept](), None
    try:
        if choice == "recover" and values == "counts":
            pieces, var, name, origin = _recovered(adata, rows)
        else:
            pieces, var, name = _matrix(adata, choice, rows)
            origin = f"Counts are read from {name}."
            if rows is not None and isinstance(stored_matrix(adata, choice), (CSRDataset, *DENSE)):
                own = processes.share(adata.n_obs, rows)
    except DataError as error:
        return error.problem, None
    if own is None:
        processes, own = ALONE, slice(0, adata.n_obs)
    read = pieces(own) if some is None else _keeping(pieces(own), own.start, some, kept)
    scope = Scope(pieces, read, own.start, partial(names_of, adata), var.index, name, processes)
    if values == "expression":
        problem = judge_expression(scope)
        origin = f"Expression values are read from {name} and used as they are."
    else:
        problem, scale = judge_counts(scope, weights)
    if problem:
        return problem, None
    of_kept = None
    if some is not None:
        parts, marks = zip(*kept, strict=True)
        kept.clear()  # as large as what they become
        of_kept = Kept(
            _of_all(sparse.vstack(parts, format="csr"), processes),
            processes.joined(np.concatenate(marks)),
        )
    features = features_of(adata, choice)
    beside = left_out(features, are_genes(features), name)
    return "", Expression(
        lambda: (piece.astype(np.float32, copy=False) for piece in pieces()),
        var,
        origin,
        scale,
        of_kept,
        beside,
    )


def _of_all(part: sparse.csr_matrix, processes: Processes) -> sparse.csr_matrix:
    """Return the rows of all processes, in the order of their ranks. part: of this process."""
    if processes.world == 1:
        return part
    own = (
        part.data,
        part.indices.astype(np.int32, copy=False),
        np.diff(part.indptr).astype(np.int64),
    )
    data, indices, sizes = map(processes.joined, own)
    return sparse.csr_matrix(
        (data, indices, np.append(0, np.cumsum(sizes))), shape=(len(sizes), part.shape[1])
    )


def _keeping(
    pieces: Iterable[sparse.csr_matrix], first: int, rows: np.ndarray, kept: list[Kept]
) -> Iterator[sparse.csr_matrix]:
    """Yield the pieces, and add to `kept` the sample and the marks of each.

    first: the number of the first cell.
    rows: of the sample, sorted.
    """
    for piece in pieces:
        last = first + piece.shape[0]
        values = piece.astype(np.float32, copy=False)
        mark = marks_of(values)
        mark[np.diff(values.indptr) < GENES] = np.nan
        kept.append(Kept(values[rows[(rows >= first) & (rows < last)] - first], mark))
        first = last
        yield piece


def _alternatives(adata: AnnData, tried: str, values: Values, rows: int | None) -> str:
    """Return advice where the choice of `data.counts`, `tried`, does not hold such values."""
    found = [choice for choice in choices_that_hold(adata, values, rows) if choice != tried]
    if found:
        explained = {"recover": "recover (computes the integers from its log1p values)"}
        return f"set {{field}} to {' or '.join(explained.get(choice, choice) for choice in found)}"
    own = tried if tried != "recover" else "X" if adata.raw is None else "raw"
    if values == "counts" and _examined(adata, own, "expression", rows)[1] is not None:
        return (
            "no matrix holds counts: add one, or set data.values to expression to use the values "
            "as they are"
        )
    return f"no other matrix holds {values}; give data with {values}"


def _matrix(adata: AnnData, choice: str, rows: int | None) -> tuple[Pieces, pd.DataFrame, str]:
    """Return the matrix that a choice of `data.counts` names, the table of its genes, and its name
    in messages.
    """
    kind, _, layer = choice.partition(":")
    name = {"X": "X", "raw": ".raw", "layer": f"layer {layer!r}"}.get(kind, f"matrix {choice!r}")
    found = stored_matrix(adata, choice)
    if found is None:
        raise DataError(f"The AnnData has no {name}")
    var = genes_of(adata, choice)
    only = genes_only(features_of(adata, choice))
    if rows is not None:
        return lambda some=ALL: ahead(map(only, csr_pieces(found, name, rows, some))), var, name
    whole = only(to_csr(found, name))
    return lambda some=ALL: (whole,), var, name


def genes_only(features: pd.DataFrame) -> Callable[[sparse.csr_matrix], sparse.csr_matrix]:
    """Return a function from values of all features, CSR [C, F], to values of the genes."""
    genes = are_genes(features)
    if genes.all():
        return lambda values: values
    columns = np.flatnonzero(genes)
    return lambda values: values[:, columns]


def stored_matrix(adata: AnnData, choice: str) -> Any:
    """Return the matrix of a choice of `data.counts` as it is stored, in memory or in a file; None
    where there is none.
    """
    if choice == "X":
        return adata.X if _has_x(adata) else None
    if choice == "raw":
        return None if adata.raw is None else adata.raw.X
    # AnnData 0.13 lists X among the layers, with the name None
    kind, _, layer = choice.partition(":")
    return adata.layers.get(layer) if kind == "layer" and layer else None


def in_file(adata: AnnData, choice: str) -> bool:
    """Return whether the matrix of a choice of `data.counts` is in a file, so that single cells can
    be read.
    """
    own = choice if choice != "recover" else "X" if adata.raw is None else "raw"
    return isinstance(stored_matrix(adata, own), (CSRDataset, CSCDataset, *DENSE))


def _has_x(adata: AnnData) -> bool:
    """Return whether there is an X. A backed AnnData raises a KeyError where its file has none, and
    its `to_memory` may have closed the file.
    """
    if adata.isbacked and not adata.file.is_open:
        adata.file.open()
    return "X" in adata.file if adata.isbacked else adata.X is not None


def _recovered(adata: AnnData, rows: int | None) -> tuple[Pieces, pd.DataFrame, str, str]:
    """Return recovered counts, the table of their genes, the name of their matrix in messages, and
    a sentence about them. rows: cells of a piece.
    """
    pieces, var, name = _matrix(adata, "X" if adata.raw is None else "raw", rows)
    how = recovery(pieces, partial(names_of, adata), name)
    origin = (
        f"Counts are recovered from the log1p values in {name}; log1p of the counts, scaled per "
        f"cell, gives those values back within {how.error:.1e}."
    )
    if (whole := how.whole) is not None:
        return lambda some=ALL: (whole,), var, name, origin
    return lambda some=ALL: map(how.counts, pieces(some)), var, name, origin
