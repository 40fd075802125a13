"""What tables a picture draws: its columns, and what stands in them. Rules for `grn.plots.style.draws`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from numbers import Real

import numpy as np
import pandas as pd

from grn.errors import DataError


@dataclass(frozen=True)
class Bound:
    """Least and most of a number; None: no bound."""

    least: float | None = None
    most: float | None = None

    def words(self) -> str:
        if self.least is not None and self.most is not None:
            return f" from {self.least:.15g} to {self.most:.15g}"
        if self.least is not None:
            return f" of at least {self.least:.15g}"
        return "" if self.most is None else f" of at most {self.most:.15g}"


def shown(value: object) -> str:
    """A value in a sentence: as Python writes it, or by its type where that would be long."""
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else f"of the type {type(value).__name__}"


FINITE = Bound()
WEIGHT = Bound(-1e15, 1e15)  # networks hold float32, and clustering squares them


@dataclass(frozen=True)
class Table:
    """A table that a picture draws, turned into one form: texts as str, numbers as float64, rows counted from 0.

    wanted: what it is, in messages.   texts, numbers: columns that it needs; numbers with their bounds.
    known: columns of numbers that it may have, and in which values may be missing.   gaps: columns of `numbers` in
    which values may be missing.   once: columns that together name a row, which is there once.
    """

    wanted: str
    texts: tuple[str, ...] = ()
    numbers: Mapping[str, Bound] = field(default_factory=dict)
    known: Mapping[str, Bound] = field(default_factory=dict)
    gaps: tuple[str, ...] = ()
    once: tuple[str, ...] = ()

    def __call__(self, name: str, table: pd.DataFrame) -> pd.DataFrame:
        """`table` in one form; name: of the argument. Raises DataError."""
        refuse_missing(table, (*self.texts, *self.numbers), self.wanted)
        refuse_twice(table, (*self.texts, *self.numbers, *self.known))
        new = {column: texts_of(table, column) for column in self.texts}
        bounds = {**self.numbers, **{column: bound for column, bound in self.known.items() if column in table}}
        for column, bound in bounds.items():
            may_miss = column in self.known or column in self.gaps
            new[column] = numbers_of(table[column], bound, column, may_miss=may_miss)
        found = table.reset_index(drop=True).assign(**new)
        self._refuse_repeated(found)
        return found

    def _refuse_repeated(self, table: pd.DataFrame) -> None:
        by = [column for column in self.once if column in table]
        repeated = table.duplicated(by, keep=False).to_numpy() if by else np.zeros(0, dtype=bool)
        if repeated.any():
            names = table.loc[repeated, by].astype(str)
            first = names.iloc[0]
            rows = names.index[(names == first).all(axis=1)][:2] + 1
            raise DataError(
                f"The table has {' → '.join(map(str, first))} more than once, in rows {rows[0]} and {rows[1]}; keep "
                "one of them."
            )


def refuse_missing(table: pd.DataFrame, columns: tuple[str, ...], wanted: str) -> None:
    """Raises DataError where a table has no column of one of these names. wanted: what the picture draws."""
    if table.columns.nlevels > 1:
        raise DataError(f"The table has columns of {table.columns.nlevels} levels; give each one name.")
    for column in columns:
        if column in table.index.names and column not in table:
            raise DataError(f"The table has {column} in its index; make a column of it: table.reset_index().")
        if column not in table:
            raise DataError(
                f"This picture draws {wanted}, and the table has no column {column!r}; give one that has it."
            )


def refuse_twice(table: pd.DataFrame, columns: tuple[str, ...]) -> None:
    """Raises DataError where a table has two columns of one name."""
    for column in columns:
        if list(table.columns).count(column) > 1:
            raise DataError(f"The table has two columns called {column!r}; rename one of them.")


def texts_of(table: pd.DataFrame, column: str) -> np.ndarray:
    """The names in a column as str, object. Raises DataError where one is missing."""
    try:
        codes, names = pd.factorize(table[column])
    except TypeError:
        raise DataError(f"The column {column!r} of the table holds lists; give one with a name in each row.") from None
    other = next((name for name in names if not isinstance(name, (str, Real))), "")
    if other != "":
        raise DataError(f"The column {column!r} of the table holds {shown(other)}, which is no name; give texts.")
    known = np.array([str(name) for name in names], dtype=object)
    empty = (codes < 0) | np.isin(codes, np.flatnonzero(known == ""))
    if empty.any():
        raise DataError(f"The table has no {column} in row {int(empty.argmax()) + 1}; correct or remove the row.")
    return known[codes]


def numbers_of(values: pd.Series, bound: Bound, column: str, *, may_miss: bool = False) -> np.ndarray:
    """Numbers as float64, NaN where they are missing. column: in messages. Raises DataError."""
    missing = values.isna().to_numpy()
    if values.dtype.kind in "fiu":
        numbers, wrong = values.to_numpy(dtype=np.float64, na_value=np.nan), np.zeros(len(values), dtype=bool)
    else:
        wrong = np.array([not _is_number(one) for one in values], dtype=bool) & ~missing
        if wrong.any() and (wrong | missing).all():
            raise DataError(
                f"The column {column!r} of the table holds {str(values[wrong].iloc[0])!r}, and this picture draws "
                "numbers; convert it, or give another table."
            )
        numbers = np.array([np.nan if no else float(one) for one, no in zip(values, wrong | missing, strict=True)])
    outside = wrong | np.isinf(numbers) | ~_holds(bound, numbers) | (missing & (not may_miss))
    if outside.any():
        row = int(outside.argmax())
        raise DataError(
            f"The table, row {row + 1}: {column} is {str(values.iloc[row])!r}, which is not a finite number"
            f"{bound.words()}; correct or remove the row."
        )
    return numbers


@dataclass(frozen=True)
class Counts:
    """A square table of numbers of cells, turned into one whose rows and columns have one order."""

    wanted: str = "a table of counts (run.confusion)"

    def __call__(self, name: str, table: pd.DataFrame) -> pd.DataFrame:
        return _counts(name, table)


def weights_alone(name: str, table: pd.DataFrame) -> pd.DataFrame:
    """A table of weights, regulators x targets, as float64. Raises DataError."""
    if {"source", "target", "weight"} <= set(table.columns):
        raise DataError(
            f"{name} is a table of edges, and a table with a row for each regulator and a column for each target "
            "belongs there; give the edges by themselves, in place of the dict."
        )
    for names in (table.index, table.columns):
        if not names.is_unique:
            raise DataError(f"{name} has {str(names[names.duplicated()][0])!r} twice; keep one of them.")
    values = {
        number: numbers_of(table.iloc[:, number], WEIGHT, str(column)) for number, column in enumerate(table.columns)
    }
    return pd.DataFrame(values, index=table.index).set_axis(table.columns, axis=1)


@dataclass(frozen=True)
class EachOf:
    """A dict of tables by name. wanted: what it is, in messages."""

    wanted: str
    check: Callable[[str, pd.DataFrame], pd.DataFrame]

    def __call__(self, name: str, tables: object) -> object:
        if not isinstance(tables, Mapping):
            return tables
        for key, table in tables.items():
            if not isinstance(table, pd.DataFrame):
                raise DataError(
                    f"This picture draws {self.wanted}, and {name}[{key!r}] is {shown(table)}; give a table."
                )
        return {key: self.check(f"{name}[{key!r}]", table) for key, table in tables.items()}


def _is_number(value: object) -> bool:
    return isinstance(value, (Real, Decimal)) and not isinstance(value, (bool, np.bool_))


def _holds(bound: Bound, numbers: np.ndarray) -> np.ndarray:
    """Whether each number is within the bounds, but for rounding; NaN is."""
    least, most = (-np.inf if bound.least is None else bound.least), (np.inf if bound.most is None else bound.most)
    return ~((numbers < least - 1e-6) | (numbers > most + 1e-6))


def _counts(name: str, table: pd.DataFrame) -> pd.DataFrame:
    """A square table of numbers of cells, rows and columns in one order. Raises DataError."""
    for number, column in enumerate(table.columns):
        values = numbers_of(table.iloc[:, number], Bound(0), str(column))
        if (values != np.floor(values)).any():
            share = values[values != np.floor(values)][0]
            raise DataError(
                f"The column {str(column)!r} of {name} has {share:g}, which is no number of cells; give counts, as "
                "run.confusion has them."
            )
    if table.index.hasnans or table.columns.hasnans:
        raise DataError(f"A row or a column of {name} has no name; name it after its cell type.")
    rows, columns = list(map(str, table.index)), list(map(str, table.columns))
    if len(rows) != len(columns):
        raise DataError(
            f"This picture draws counts of the same types in rows and columns, and the table has {len(rows)} "
            f"rows and {len(columns)} columns; give run.confusion."
        )
    for names in (rows, columns):
        if twice := [one for one in names if names.count(one) > 1]:
            raise DataError(f"The table has the type {twice[0]!r} twice; add its counts up, or rename one.")
    if missing := [one for one in rows if one not in columns]:
        raise DataError(
            f"The table has a row {missing[0]!r} and no such column; it needs the same types in rows and columns."
        )
    in_order = table.iloc[:, [columns.index(one) for one in rows]]
    return pd.DataFrame(in_order.to_numpy(dtype=np.float64, na_value=np.nan), index=rows, columns=rows)
