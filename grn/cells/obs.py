"""Columns of obs: labels, groups, the state and the property; and numbers in obsm."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse

from grn.arguments.kinds import writable
from grn.cells.preprocessing.split import MANY
from grn.errors import DataError, nearest

MISSING = -1
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
NESTED = (list, tuple, set, dict, np.ndarray, bytes)


def read_labels(
    obs: pd.DataFrame, key: str | None, instead: str = "set data.label_key to another column, or to null"
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Position of each cell's label among the sorted classes, int64 [C], and the classes; -1: NaN, None or empty.

    key: `data.label_key`, or another column.   instead: what to do where it holds no label. Raises DataError where obs
    has no such column or the column no label.
    """
    if key is None:
        return np.full(len(obs), MISSING, np.int64), ()
    column = column_of(obs, key, "data.label_key", "obs")
    text = column.astype(object).map(str)
    missing = (column.isna() | (text.str.strip() == "")).to_numpy()
    classes, positions = np.unique(text.to_numpy(str)[~missing], return_inverse=True)
    if classes.size == 0:
        raise DataError(f"Column {key!r} of obs holds no labels; {instead}.")
    if odd := [str(name) for name in classes if CONTROL.search(name)]:
        raise DataError(
            f"The label {odd[0]!a} in the column {key!r} of obs has a line feed or another control character in it; "
            "rename it first."
        )
    if cut := [name for name in text[~missing].unique() if not writable(name)]:
        raise DataError(
            f"The label {cut[0]!r} in the column {key!r} of obs has a null character or half of one, which files "
            "cannot hold; rename it first."
        )
    labels = np.full(len(obs), MISSING, np.int64)
    labels[~missing] = positions
    return labels, tuple(map(str, classes))


def _read_groups(obs: pd.DataFrame, key: str | None) -> np.ndarray | None:
    """The number of each cell's group, [C]; cells without a group form one group together (-1)."""
    if key is None:
        return None
    column = column_of(obs, key, "data.group_key", "obs").astype(object)
    column = column.where(column.astype(str).str.strip() != "", None)  # an empty text names no group
    groups = pd.factorize(column, use_na_sentinel=True)[0]
    if len(groups) and (groups < 0).all():
        raise DataError(
            f"The column {key!r} of obs (data.group_key) has no value for any cell; choose another, or set "
            "data.group_key: null."
        )
    if len(groups) >= MANY and np.unique(groups).size == len(groups):
        raise DataError(
            f"The column {key!r} of obs (data.group_key) has another value for each of the {len(groups)} cells, so "
            "that it groups none; set data.group_key to the column of the donor or batch, or to null."
        )
    return groups


def _read_property(obs: pd.DataFrame, key: str | None) -> np.ndarray:
    values = _read_number(obs, key, "objectives.property.key")
    return np.full(len(obs), np.nan, np.float32) if values is None else values


def _read_state(obs: pd.DataFrame, key: str | None) -> np.ndarray | None:
    values = _read_number(obs, key, "data.state_key")
    if values is None:
        return None
    known = values[~np.isnan(values)]
    if not known.size:
        raise DataError(f"Column {key!r} of obs holds no numbers; set data.state_key to another column, or to null.")
    if (known == known[0]).all():
        raise DataError(
            f"Column {key!r} of obs is {known[0]:g} in every cell that has a number (in single precision), so no cell "
            "is further along than another; set data.state_key to another column, or to null."
        )
    return values


def _read_number(obs: pd.DataFrame, key: str | None, option: str) -> np.ndarray | None:
    """A numeric column of obs, float32 [C], NaN where missing; None without a key. option: the field with the key."""
    if key is None:
        return None
    column = column_of(obs, key, option, "obs")
    try:
        numbers = pd.to_numeric(column.astype(object))
        if numbers.dtype.kind == "c":
            raise TypeError("complex numbers have no order")
        values = numbers.to_numpy(np.float32)
    except (ValueError, TypeError):
        raise DataError(f"Column {key!r} of obs is not numeric; set {option} to a numeric column.") from None
    return np.where(np.isfinite(values), values, np.float32(np.nan))


def column_of(frame: pd.DataFrame, key: str, field: str, table: str) -> pd.Series:
    """frame[key]; where there is none, raises DataError with the nearest column. field, table: names in messages.

    Raises DataError, too, for two columns of the name, and for one that holds lists or bytes.
    """
    if key in frame:
        column = frame[key]
        if column.ndim > 1:
            raise DataError(
                f"{field} is {key!r}, and {table} has {column.shape[1]} columns of this name; rename all but one."
            )
        if column.dtype == object and column.map(lambda value: isinstance(value, NESTED)).any():
            raise DataError(
                f"{field} is {key!r}, a column of {table} that holds lists or bytes; give one with a text or a number "
                "for each row."
            )
        return column
    columns = [str(column) for column in frame.columns]
    near = nearest(key, columns)
    hint = f"did you mean {near!r}?" if near else f"{table} has {', '.join(map(repr, columns))}."
    if not columns:
        hint = f"{table} has no columns; give an .h5ad file whose {table} has it, or leave {field} out."
    raise DataError(f"{field} is {key!r}, which is not a column of {table}; {hint}")


def refuse_column_of_var(adata: AnnData, columns: Mapping[str, str | None]) -> None:
    """Raises DataError for a column of obs that is one of var: rows and columns may be exchanged.

    columns: the option that names a column, for messages -> the column, None for none.
    """
    for option, key in columns.items():
        if key is not None and key not in adata.obs and key in adata.var:
            raise DataError(
                f"{option} is {key!r}, which is a column of var and not of obs; give a column of obs or, if the rows "
                "are genes, exchange rows and columns, as adata.T does."
            )


def numbers_in_obsm(values: object, key: str) -> np.ndarray:
    """What obsm[key] holds, an array, a sparse matrix or a table, as float64. Raises DataError for what are no finite
    numbers.
    """
    try:
        dense = values.toarray() if sparse.issparse(values) else values  # type: ignore[attr-defined]
        if np.asarray(dense).dtype.kind in "bcMm":
            raise TypeError
        found = np.asarray(dense, dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError(f"obsm[{key!r}] holds no numbers; compute it again.") from None
    if not np.isfinite(found).all():
        raise DataError(f"obsm[{key!r}] has values that are not finite; compute it again.")
    return found
