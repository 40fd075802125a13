"""Reads the matrix of an AnnData that data.counts names, and checks that it holds what data.values promises."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse

from grn.cells.preprocessing.recover import ADVICE, recover_counts, recovery
from grn.cells.readers.matrix import csr_pieces, locate, to_csr
from grn.cells.readers.registry import MEMORY
from grn.config.schema import DataConfig
from grn.errors import ConfigError, DataError

LARGEST = 1e9  # count: far above any cell's total
SMALLEST_VALUE, LARGEST_VALUE = 1e-12, 1e12  # expression: sums of squares of such values are exact enough in float32


Values = Literal["counts", "expression"]
Pieces = Callable[[], Iterable[sparse.csr_matrix]]  # clean CSR [<= rows, N] of consecutive cells, each time anew


@dataclass(frozen=True)
class Expression:
    """values: clean CSR float32 [C, N].   var: its genes.   origin: a sentence about where the values are from."""

    values: sparse.csr_matrix
    var: pd.DataFrame
    origin: str


@dataclass(frozen=True)
class ExpressionInPieces:
    """The same with values in pieces of cells, each clean CSR float32 [<= rows, N]."""

    pieces: Pieces
    var: pd.DataFrame
    origin: str


def refuse_empty(adata: AnnData, path: str) -> None:
    """Raises DataError for data without a cell or a gene. path: where they are from, for messages."""
    genes = adata.n_vars or (adata.raw is not None and adata.raw.n_vars)
    if not adata.n_obs or not genes:
        where = "The AnnData" if path == MEMORY else path
        raise DataError(f"{where} holds no {'genes' if adata.n_obs else 'cells'}; give other data.")


def read_expression(adata: AnnData, config: DataConfig) -> Expression:
    """The values that `data.counts` names, checked. Raises DataError, ConfigError."""
    found = expression_in_pieces(adata, config, None)
    (values,) = found.pieces()
    return Expression(values, found.var, found.origin)


def expression_in_pieces(adata: AnnData, config: DataConfig, rows: int | None) -> ExpressionInPieces:
    """The same values in pieces of so many cells (None: one), all of them checked. Raises DataError, ConfigError.

    A matrix on disk is read once for the check, and again whenever its pieces are asked for.
    """
    if adata.n_obs == 0:
        raise DataError("The data hold no cells; give other data.")
    if config.values == "expression":
        if config.counts == "recover":
            raise ConfigError(
                "data.counts: recover computes counts, but data.values is expression; set data.values: counts."
            )
        pieces, var, name = _matrix(adata, config.counts, rows, config.values)
        _check_expression(pieces(), adata.obs_names, var.index, name)
        return ExpressionInPieces(_single(pieces), var, f"Expression values are read from {name} and used as they are.")
    if config.counts == "recover":
        try:
            return _recovered(adata, rows)
        except DataError as error:
            if not str(error).endswith(ADVICE):
                raise
            raise DataError(_instead_of_recover(adata, str(error).removesuffix(ADVICE), rows)) from None
    pieces, var, name = _matrix(adata, config.counts, rows)
    problem = _count_problem(pieces(), adata.obs_names, var.index, name)
    if problem:
        raise DataError(f"{problem}; {_alternatives(adata, config.counts, rows)}")
    return ExpressionInPieces(_single(pieces), var, f"Counts are read from {name}.")


def _instead_of_recover(adata: AnnData, problem: str, rows: int | None) -> str:
    """The sentence about counts that cannot be recovered, which begins with `problem`, and what to do."""
    own, found = "X" if adata.raw is None else "raw", choices_that_hold_counts(adata, rows)
    if own in found:
        problem = f"{'.raw' if own == 'raw' else own} is not log1p of counts but holds whole numbers, as counts are; "
    if found:
        return f"{problem}set data.counts: {' or '.join(found)}."
    return problem + (ADVICE if _holds_expression(adata, own, rows) else "give data with counts.")


def _single(pieces: Pieces) -> Pieces:
    """In single precision."""
    return lambda: (piece.astype(np.float32, copy=False) for piece in pieces())


def _matrix(
    adata: AnnData, choice: str, rows: int | None, values: Values = "counts"
) -> tuple[Pieces, pd.DataFrame, str]:
    """The matrix that a choice of `data.counts` names, its genes, and its name in messages.

    values: what it should hold, for the advice where there is no such matrix.
    """
    if choice == "X":
        if not _has_x(adata):
            raise DataError(f"The AnnData has no X{_instead(adata, rows, values)}.")
        return _pieces(adata.X, "X", rows), adata.var, "X"
    if choice == "raw":
        if adata.raw is None:
            raise DataError(f"The AnnData has no .raw{_instead(adata, rows, values)}.")
        return _pieces(adata.raw.X, ".raw", rows), adata.raw.var, ".raw"
    kind, _, layer = choice.partition(":")
    if kind != "layer" or not layer:
        raise ConfigError(f"data.counts is {choice!r}; it must be X, raw, layer:NAME or recover.")
    if layer not in adata.layers:
        raise DataError(f"The AnnData has no layer {layer!r}{_instead(adata, rows, values)}.")
    name = f"layer {layer!r}"
    return _pieces(adata.layers[layer], name, rows), adata.var, name


def _pieces(values, name: str, rows: int | None) -> Pieces:
    if rows is not None:
        return partial(csr_pieces, values, name, rows)
    whole = to_csr(values, name)
    return lambda: (whole,)


def _has_x(adata: AnnData) -> bool:
    """A backed AnnData raises a KeyError where its file has no X; its `to_memory` may have closed the file."""
    if adata.isbacked and not adata.file.is_open:
        adata.file.open()
    return "X" in adata.file if adata.isbacked else adata.X is not None


def _recovered(adata: AnnData, rows: int | None) -> ExpressionInPieces:
    if not _has_x(adata) and adata.raw is None:
        instead = _instead(adata, rows)
        raise DataError(f"The AnnData has no X or .raw, from which data.counts: recover would compute counts{instead}.")
    pieces, var, name = _matrix(adata, "X" if adata.raw is None else "raw", rows)
    counts: Pieces
    if rows is None:
        (values,) = pieces()
        whole = recover_counts(values, adata.obs_names, name)
        counts, error = (lambda: (whole.counts,)), whole.error
    else:
        how = recovery(pieces, adata.obs_names, name)
        counts, error = (lambda: map(how.counts, pieces())), how.error
    origin = (
        f"Counts are recovered from the log1p values in {name}; log1p of the counts, scaled per cell, "
        f"gives those values back within {error:.1e}."
    )
    return ExpressionInPieces(counts, var, origin)


def _matrices(adata: AnnData) -> list[str]:
    """The values of `data.counts` that name a matrix of `adata`."""
    found = (["X"] if _has_x(adata) else []) + (["raw"] if adata.raw is not None else [])
    # anndata 0.13 lists X among the layers, with the name None.
    return found + [f"layer:{layer}" for layer in adata.layers if layer is not None]


def _instead(adata: AnnData, rows: int | None, values: Values = "counts") -> str:
    """What to do where the chosen matrix does not exist: the end of a sentence. values: what is wanted."""
    if not _matrices(adata):
        return ", nor any other matrix; give data with counts or expression values"
    of_counts = values == "counts"
    found = choices_that_hold_counts(adata, rows) if of_counts else choices_that_hold_expression(adata)
    if not found:
        return f", and no other matrix of it holds {values}; give data with {values}"
    return f"; set data.counts to one of: {', '.join(found)}"


def _count_problem(pieces: Iterable[sparse.csr_matrix], cells, genes, name: str) -> str | None:
    """The beginning of a sentence about the first value that cannot be a count; None where there is no such value."""
    wrong = {
        "which is not finite": lambda data: ~np.isfinite(data),
        "which is negative, as in scaled data": lambda data: data < 0,
        "which is not a whole number": lambda data: data != np.rint(data),
        "which is too large for a count": lambda data: data > LARGEST,
    }
    found: dict[str, str] = {}
    largest, stored, first, quarters = -np.inf, 0, 0, True
    for values in pieces:
        data = values.data
        quarters = quarters and bool((4 * data == np.rint(4 * data)).all())
        for reason, test in wrong.items():
            if reason not in found and (at := test(data)).any():
                found[reason] = _named(values, int(at.argmax()), cells[first:], genes)
        largest, stored, first = data.max(initial=largest), stored + values.nnz, first + values.shape[0]
    if stored == 0:
        return f"{name} holds no value above 0" if len(genes) else f"{name} holds no genes"
    if not found:
        return None
    reason = next(reason for reason in wrong if reason in found)
    logged = " (it looks log-normalised)" if "whole" in reason and largest < 25 and not quarters else ""
    return f"{name} does not hold counts: it has {found[reason]}, {reason}{logged}"


def _check_expression(pieces: Iterable[sparse.csr_matrix], cells, genes, name: str) -> None:
    """Raises DataError for values that cannot be multiplicities, which are finite and not negative."""
    infinite = negative = most = None
    largest, first = -np.inf, 0
    for values in pieces:
        data, own = values.data, cells[first:]
        if infinite is None and not (finite := np.isfinite(data)).all():
            infinite = _named(values, int(finite.argmin()), own, genes)
        if negative is None and (below := data < 0).any():
            negative = _named(values, int(below.argmax()), own, genes)
        if data.size and data.max() > largest:
            largest, most = data.max(), _named(values, int(data.argmax()), own, genes)
        first += values.shape[0]
    if infinite is not None:
        raise DataError(f"{name} has {infinite}, which is not finite; fill in or remove missing values first.")
    if negative is not None:
        raise DataError(
            f"{name} has {negative}, but multiplicities cannot be "
            "negative; use values from before scaling and centring (data.counts: raw or layer:NAME)."
        )
    if most is None:
        raise DataError(f"{name} holds only zeros; set data.counts to the matrix that holds the values.")
    if not SMALLEST_VALUE < largest < LARGEST_VALUE:
        raise DataError(
            f"The largest value of {name} is {most}, too far from 1 to compute with; divide all values by one number."
        )


def _named(values: sparse.csr_matrix, entry: int, cells, genes) -> str:
    cell, gene = locate(values, entry)
    return f"{values.data[entry]:g} for gene {genes[gene]} in cell {cells[cell]}"


def _alternatives(adata: AnnData, tried: str, rows: int | None) -> str:
    """Advice: the other choices of `data.counts` that do hold counts; each is read to see whether it does."""
    found = [choice for choice in choices_that_hold_counts(adata, rows) if choice != tried]
    if "recover" in found:
        found[found.index("recover")] = "recover (computes the integers from its log1p values)"
    if found:
        return f"set data.counts: {' or '.join(found)}."
    several = len(_matrices(adata)) > 1
    others = "no other matrix of the AnnData holds counts; " if several else ""
    if not _holds_expression(adata, tried, rows):
        return others + ("correct this one, or add one." if several else "correct it, or give data with counts.")
    give = "add one" if several else "give data with counts"
    return f"{others}{give}, or set data.values: expression to use the values as they are."


def choices_that_hold_expression(adata: AnnData) -> list[str]:
    """The values of `data.counts` with which `adata` gives expression; each is read to see whether it does."""
    return [choice for choice in _matrices(adata) if _holds_expression(adata, choice, None)]


def _holds_expression(adata: AnnData, choice: str, rows: int | None) -> bool:
    def attempt() -> None:
        pieces, var, name = _matrix(adata, choice, rows)
        _check_expression(pieces(), adata.obs_names, var.index, name)

    return _works(attempt)


def choices_that_hold_counts(adata: AnnData, rows: int | None = None) -> list[str]:
    """The values of `data.counts` with which `adata` gives counts; each is read to see whether it does.

    rows: cells that are read at a time; None: all.
    """
    found = [choice for choice in _matrices(adata) if _works(lambda choice=choice: _whole(adata, choice, rows))]
    from_log1p = (_has_x(adata) or adata.raw is not None) and _works(lambda: _recovered(adata, rows))
    return [*found, "recover"] if from_log1p else found


def _works(attempt) -> bool:
    try:
        return attempt() is not False
    except DataError:
        return False


def _whole(adata: AnnData, choice: str, rows: int | None) -> bool:
    """Whether a matrix holds whole numbers above 0, besides zeros."""
    stored = 0
    for values in _matrix(adata, choice, rows)[0]():
        if not np.all((values.data > 0) & (values.data <= LARGEST) & (values.data == np.rint(values.data))):
            return False
        stored += values.nnz
    return stored > 0
