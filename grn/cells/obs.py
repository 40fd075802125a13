"""Columns of obs: labels, groups and states. Every distinct text is examined once, however many
cells have it.

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
    """Return frame[key].

    field: the field of the configuration that has this key, for messages.
    table: the name of the frame, for messages.
    Raises DataError with the column of the nearest name where there is none.
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
    """Raise DataError about a fault that was found in a column of obs; nothing where it is ""."""
    if found:
        raise DataError(f"Column {key!r} of obs {found}", field=field, advice=advice)


def read_labels(
    obs: pd.DataFrame, key: str | None, advice: str = "set {field} to another column, or to null"
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the position of each cell's label among the classes, int64 [C], and the classes,
    sorted. A label that is NaN, None or empty is missing, which is -1.

    key: `data.label_key`, or another column; None: no labels.
    advice: for the user, where the column holds no label.
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
    """Return the number of each cell's group, int64 [C], -1 for all cells without a group.

    key: `data.group_key`; None gives None.
    Raises DataError.
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
    """Return how many cells each donor or batch has, in the order of their names.

    key: `data.group_key`; None gives {}.
    """
    if key is None:
        return {}
    counts = (
        column_of(obs, key, "data.group_key", "obs").dropna().astype(str).str.strip().value_counts()
    )
    return {str(name): int(counts[name]) for name in sorted(counts.index) if name and counts[name]}


def read_state(obs: pd.DataFrame, key: str | None) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """Return the state of each cell, float32 [C], NaN where it is missing, and names of states.

    States are the numbers of a numeric column, which have no names, or positions among the names of
    conditions.

    key: `data.state_key`; None gives None.
    Raises DataError.
    """
    if key is None:
        return None, ()
    column = column_of(obs, key, "data.state_key", "obs")
    conditions: tuple[str, ...] = ()
    if pd.to_numeric(pd.factorize(column)[1].astype(object), errors="coerce").notna().any():
        values = _numbers(column)
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
    """Return a column of obs that by its name holds conditions, and a sentence about it; None and
    "" where there is none.

    used: columns that do not count, as they are used for something else.
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


def _numbers(column: pd.Series) -> np.ndarray:
    """Return the numbers of data.state_key, float32 [C], NaN where one is missing or infinite.

    Raises DataError where the column holds texts, too.
    """
    code, values = pd.factorize(column)
    try:
        numbers = np.append(pd.to_numeric(values.astype(object)), np.nan).astype(np.float32)[code]
    except (ValueError, TypeError):
        _refuse(
            "is not numeric", str(column.name), "data.state_key", "set {field} to a numeric column"
        )
    return np.where(np.isfinite(numbers), numbers, np.float32(np.nan))
