"""Columns of obs: labels, groups, the state. Texts are looked at once for each value, and not for
each cell.

Letters: C cells.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pandas as pd

from grn.cells.preprocessing.split import MANY
from grn.runtime.errors import DataError, nearest
from grn.runtime.tables import CONTROL

MISSING = -1
CONDITIONS = (
    "condition",
    "conditions",
    "stim",
    "stimulation",
    "treatment",
    "treated",
    "disease",
    "genotype",
    "timepoint",
)
MOST_CONDITIONS = 10


def column_of(frame: pd.DataFrame, key: str, field: str, table: str) -> pd.Series:
    """frame[key]; where there is none, raises DataError with the nearest column. table: its name in
    the message.
    """
    if key in frame:
        return frame[key]
    columns = [str(column) for column in frame.columns]
    near = nearest(key, columns)
    advice = (
        f"did you mean {near!r}?"
        if near
        else f"{table} has {', '.join(map(repr, columns)) or 'no columns'}"
    )
    raise DataError(
        f"{{field}} is {key!r}, which is not a column of {table}", field=field, advice=advice
    )


def _refuse(
    found: str, key: str, field: str, advice: str = "set {field} to another column, or to null"
) -> None:
    """Raise DataError about what was found in a column of obs, unless that is nothing."""
    if found:
        raise DataError(f"Column {key!r} of obs {found}", field=field, advice=advice)


def read_labels(
    obs: pd.DataFrame, key: str | None, advice: str = "set {field} to another column, or to null"
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Position of each cell's label among the sorted classes, int64 [C], and the classes; -1: NaN,
    None or empty.

    key: `data.label_key`, or another column.
    advice: what to do where it holds no label.
    Raises DataError.
    """
    if key is None:
        return np.full(len(obs), MISSING, np.int64), ()
    code, values = pd.factorize(column_of(obs, key, "data.label_key", "obs"))
    text = np.array([str(value) for value in values.astype(object)], object)
    named = np.array([bool(each.strip()) for each in text], bool)
    classes, place = np.unique(text[named].astype(str), return_inverse=True)
    odd = next(
        (
            f"has a character that files cannot hold in {name!a}"
            for name in classes
            if CONTROL.search(name)
        ),
        "",
    )
    _refuse(odd if classes.size else "holds no labels", key, "data.label_key", advice)
    position = np.full(len(text) + 1, MISSING)  # a code of -1 reads the last one
    position[:-1][named] = place
    return position[code], tuple(map(str, classes))


def read_groups(obs: pd.DataFrame, key: str | None) -> np.ndarray | None:
    """The number of each cell's group, int64 [C]; cells without a group form one group together
    (-1).
    """
    if key is None:
        return None
    code, values = pd.factorize(column_of(obs, key, "data.group_key", "obs"))
    # an empty text is no group
    named = np.array([bool(str(value).strip()) for value in values.astype(object)], bool)
    groups = np.append(np.where(named, named.cumsum() - 1, MISSING), MISSING)[code]
    own = len(groups) >= MANY and named.sum() + (groups == MISSING).any() == len(groups)
    found = (
        "has another value for each cell"
        if own
        else ""
        if named.any()
        else "has no value for any cell"
    )
    _refuse(
        found, key, "data.group_key", "set {field} to the column of the donor or batch, or to null"
    )
    return groups


def donors_of(obs: pd.DataFrame, key: str | None) -> dict[str, int]:
    """Each donor or batch (data.group_key) and how many cells it has, in the order of names; {}
    without a key.
    """
    if key is None:
        return {}
    counts = (
        column_of(obs, key, "data.group_key", "obs").dropna().astype(str).str.strip().value_counts()
    )
    return {str(name): int(counts[name]) for name in sorted(counts.index) if name and counts[name]}


def read_state(obs: pd.DataFrame, key: str | None) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """The state of each cell, float32 [C], NaN where missing, and no names where these are numbers;
    of texts, their positions among the names that follow. None without a key.
    """
    if key is None:
        return None, ()
    column = column_of(obs, key, "data.state_key", "obs")
    conditions: tuple[str, ...] = ()
    if pd.to_numeric(pd.factorize(column)[1].astype(object), errors="coerce").notna().any():
        values = read_numbers(obs, key, "data.state_key")
    else:
        labels, conditions = read_labels(obs, key, "give another column")
        values = np.where(labels == MISSING, np.nan, labels).astype(np.float32)
    if np.unique(values[~np.isnan(values)]).size < 2:
        _refuse("holds less than two conditions, or numbers, that differ", key, "data.state_key")
    return values, conditions


def named_as_conditions(key: str) -> bool:
    """Return whether a column with this name holds conditions, as far as a name can tell."""
    return key.lower() in CONDITIONS


def condition_column(
    obs: pd.DataFrame, used: Collection[str | None] = ()
) -> tuple[str | None, str]:
    """A column, other than those that are used, that by its name holds conditions, and a sentence
    about it.
    """
    for key in map(str, obs):
        if (
            named_as_conditions(key)
            and key not in used
            and 2 <= obs[key].nunique() <= MOST_CONDITIONS
        ):
            values = ", ".join(map(str, obs[key].dropna().unique()[:3]))
            return key, (
                f"The column {key!r} of obs ({values}) seems to hold conditions; with "
                f"data.state_key: {key}, genes that a condition moves together do not look as if "
                "they regulated each other."
            )
    return None, ""


def read_numbers(obs: pd.DataFrame, key: str | None, field: str) -> np.ndarray:
    """A numeric column of obs, float32 [C]; NaN where a number is missing or infinite, and without
    a key.
    """
    if key is None:
        return np.full(len(obs), np.nan, np.float32)
    code, values = pd.factorize(column_of(obs, key, field, "obs"))
    try:
        numbers = np.append(pd.to_numeric(values.astype(object)), np.nan).astype(np.float32)[code]
    except (ValueError, TypeError):
        _refuse("is not numeric", key, field, "set {field} to a numeric column")
    return np.where(np.isfinite(numbers), numbers, np.float32(np.nan))
