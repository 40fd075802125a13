"""Reads the matrix of an AnnData that data.counts names, and checks that it holds what data.values promises."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse

from grn.config.schema import DataConfig
from grn.data.preprocessing.recover import recover_counts
from grn.data.readers.matrix import locate, to_csr
from grn.errors import ConfigError, DataError

LARGEST = 1e9  # count: far above any cell's total
SMALLEST_VALUE, LARGEST_VALUE = 1e-12, 1e12  # expression: sums of squares of such values are exact enough in float32


@dataclass(frozen=True)
class Expression:
    """values: clean CSR float32 [C, N].   var: its genes.   origin: a sentence about where the values are from."""

    values: sparse.csr_matrix
    var: pd.DataFrame
    origin: str


def read_expression(adata: AnnData, config: DataConfig) -> Expression:
    """The values that `data.counts` names, checked. Raises DataError, ConfigError."""
    if adata.n_obs == 0:
        raise DataError("The data hold no cells; set data.path to other data.")
    if config.values == "expression":
        if config.counts == "recover":
            raise ConfigError(
                "data.counts: recover computes counts, but data.values is expression; set data.values: counts."
            )
        values, var, name = _matrix(adata, config.counts)
        _check_expression(values, adata.obs_names, var.index, name)
        values = values.astype(np.float32, copy=False)
        return Expression(values, var, f"Expression values are read from {name} and used as they are.")
    if config.counts == "recover":
        return _recovered(adata)
    values, var, name = _matrix(adata, config.counts)
    problem = _count_problem(values, adata.obs_names, var.index, name)
    if problem:
        raise DataError(f"{problem}; {_alternatives(adata, config.counts)}")
    return Expression(values.astype(np.float32, copy=False), var, f"Counts are read from {name}.")


def _matrix(adata: AnnData, choice: str) -> tuple[sparse.csr_matrix, pd.DataFrame, str]:
    """The matrix that a choice of `data.counts` names, its genes, and its name in messages."""
    if choice == "X":
        if not _has_x(adata):
            raise DataError(f"The AnnData has no X{_instead(adata)}.")
        return to_csr(adata.X, "X"), adata.var, "X"
    if choice == "raw":
        if adata.raw is None:
            raise DataError(f"The AnnData has no .raw{_instead(adata)}.")
        return to_csr(adata.raw.X, ".raw"), adata.raw.var, ".raw"
    kind, _, layer = choice.partition(":")
    if kind != "layer" or not layer:
        raise ConfigError(f"data.counts is {choice!r}; it must be X, raw, layer:NAME or recover.")
    if layer not in adata.layers:
        raise DataError(f"The AnnData has no layer {layer!r}{_instead(adata)}.")
    return to_csr(adata.layers[layer], f"layer {layer!r}"), adata.var, f"layer {layer!r}"


def _has_x(adata: AnnData) -> bool:
    """A backed AnnData raises a KeyError where its file has no X; its `to_memory` may have closed the file."""
    if adata.isbacked and not adata.file.is_open:
        adata.file.open()
    return "X" in adata.file if adata.isbacked else adata.X is not None


def _recovered(adata: AnnData) -> Expression:
    if not _has_x(adata) and adata.raw is None:
        raise DataError(
            f"The AnnData has no X or .raw, from which data.counts: recover would compute counts{_instead(adata)}."
        )
    values, var, name = _matrix(adata, "X" if adata.raw is None else "raw")
    recovered = recover_counts(values, adata.obs_names, name)
    origin = (
        f"Counts are recovered from the log1p values in {name}; log1p of the counts, scaled per cell, "
        f"gives those values back within {recovered.error:.1e}."
    )
    return Expression(recovered.counts, var, origin)


def _matrices(adata: AnnData) -> list[str]:
    """The values of `data.counts` that name a matrix of `adata`."""
    found = (["X"] if _has_x(adata) else []) + (["raw"] if adata.raw is not None else [])
    # anndata 0.13 lists X among the layers, with the name None.
    return found + [f"layer:{layer}" for layer in adata.layers if layer is not None]


def _instead(adata: AnnData) -> str:
    """What to do where the chosen matrix does not exist: the end of a sentence."""
    found = _matrices(adata)
    if not found:
        return ", nor any other matrix; give data with counts or expression values"
    if {"X", "raw"} & set(found):
        found.append("recover")
    return f"; set data.counts to one of: {', '.join(found)}"


def _count_problem(values: sparse.csr_matrix, cells, genes, name: str) -> str | None:
    """The beginning of a sentence about the first value that cannot be a count; None where there is no such value."""
    if values.nnz == 0:
        return f"{name} holds no value above 0" if values.shape[1] else f"{name} holds no genes"
    data = values.data
    for wrong, reason in (
        (~np.isfinite(data), "which is not finite"),
        (data < 0, "which is negative, as in scaled data"),
        (data != np.rint(data), "which is not a whole number"),
        (data > LARGEST, "which is too large for a count"),
    ):
        if wrong.any():
            entry = int(wrong.argmax())
            logged = " (it looks log-normalised)" if "whole" in reason and data.max() < 25 else ""
            return f"{name} does not hold counts: it has {_named(values, entry, cells, genes)}, {reason}{logged}"
    return None


def _check_expression(values: sparse.csr_matrix, cells, genes, name: str) -> None:
    """Raises DataError for values that cannot be multiplicities, which are finite and not negative."""
    if values.nnz == 0:
        raise DataError(f"{name} holds only zeros; set data.counts to the matrix that holds the values.")
    finite, negative = np.isfinite(values.data), values.data < 0
    if not finite.all():
        raise DataError(
            f"{name} has {_named(values, int(finite.argmin()), cells, genes)}, which is not finite; "
            "fill in or remove missing values first."
        )
    if negative.any():
        raise DataError(
            f"{name} has {_named(values, int(negative.argmax()), cells, genes)}, but multiplicities cannot be "
            "negative; use values from before scaling and centring (data.counts: raw or layer:NAME)."
        )
    largest = int(values.data.argmax())
    if not SMALLEST_VALUE < values.data[largest] < LARGEST_VALUE:
        raise DataError(
            f"The largest value of {name} is {_named(values, largest, cells, genes)}, too far from 1 to compute with; "
            "divide all values by one number."
        )


def _named(values: sparse.csr_matrix, entry: int, cells, genes) -> str:
    cell, gene = locate(values, entry)
    return f"{values.data[entry]:g} for gene {genes[gene]} in cell {cells[cell]}"


def _alternatives(adata: AnnData, tried: str) -> str:
    """Advice: the other choices of `data.counts` that do hold counts; each is read to see whether it does."""
    found = [choice for choice in choices_that_hold_counts(adata) if choice != tried]
    if "recover" in found:
        found[found.index("recover")] = "recover (computes the integers from its log1p values)"
    if found:
        return f"set data.counts: {' or '.join(found)}."
    values = to_csr(_matrix(adata, tried)[0], tried).data
    if values.size == 0 or not np.isfinite(values).all() or (values < 0).any():
        return "no other matrix of the AnnData holds counts; correct this one, or add one."
    return (
        "no other matrix of the AnnData holds counts; add one, or set data.values: expression to use the values as "
        "they are."
    )


def choices_that_hold_counts(adata: AnnData) -> list[str]:
    """The values of `data.counts` with which `adata` gives counts; each is read to see whether it does."""
    found = [choice for choice in _matrices(adata) if _works(lambda choice=choice: _whole(_matrix(adata, choice)[0]))]
    return [*found, "recover"] if _works(lambda: _recovered(adata)) else found


def _works(attempt) -> bool:
    try:
        return attempt() is not False
    except DataError:
        return False


def _whole(values: sparse.csr_matrix) -> bool:
    data = values.data
    return data.size > 0 and bool(np.all((data > 0) & (data == np.rint(data))))
