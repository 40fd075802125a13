"""Which cells are compared: their conditions, donors and types, checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from grn.cells.cells import Cells
from grn.cells.obs import MISSING, read_labels
from grn.errors import DataError
from grn.messages import Say

ALL = "all"  # cell_type of the comparison over all types together
SHOWN = 10  # values of a column in a message


@dataclass(frozen=True)
class Compared:
    """The C cells with a condition (and a donor and a type, where there are any).

    rows [C]: positions among all cells.   sign int8 [C]: -1 in the first condition, +1 in the second.
    names: of the two conditions.   types [C]: number of each cell's type; 0 for all cells without types, or where no
    type has both conditions.   type_names: by number.   strata [C]: numbers of types, always, whose levels are taken
    out.   donors [C]: number of each cell's donor, or None.
    """

    rows: np.ndarray
    sign: np.ndarray
    names: tuple[str, str]
    types: np.ndarray
    type_names: tuple[str, ...]
    strata: np.ndarray
    donors: np.ndarray | None

    def of_type(self, name: str) -> Compared:
        """The cells of one type."""
        own = np.flatnonzero(self.types == self.type_names.index(name))
        return self.taken(own)

    def taken(self, positions: np.ndarray) -> Compared:
        """Some of these cells, by their positions among them; types and donors without cells are gone."""
        names, types = np.unique(self.types[positions], return_inverse=True)
        donors = None if self.donors is None else np.unique(self.donors[positions], return_inverse=True)[1]
        kept = tuple(self.type_names[number] for number in names)
        strata = np.unique(self.strata[positions], return_inverse=True)[1]
        return Compared(self.rows[positions], self.sign[positions], self.names, types, kept, strata, donors)


def compared_cells(
    cells: Cells,
    condition: pd.Series,
    donor: pd.Series | None,
    *,
    conditions: Sequence[str] | None,
    say: Say,
) -> Compared:
    """The cells that have one of two conditions. conditions: which two values; None: the only two of the column.

    Raises DataError where there are not two, or where a donor column names fewer than two donors of either.
    """
    number, values = read_labels(
        pd.DataFrame({condition.name: condition}), str(condition.name), "give --by another column"
    )
    first, second = _chosen(str(condition.name), values, conditions, len(number))
    known = np.isin(number, [first, second])
    _say_left_out(int((number == MISSING).sum()), f"no value in {condition.name!r}", say)
    donors = None
    if donor is not None:
        donors, _ = read_labels(
            pd.DataFrame({donor.name: donor}), str(donor.name), "give --group another column, or leave it out"
        )
        _say_left_out(int((known & (donors == MISSING)).sum()), f"no value in {donor.name!r}", say)
        known &= donors != MISSING
        if known.any() and np.unique(donors[known], return_counts=True)[1].max() < 2:
            raise DataError(
                f"Each of the {int(known.sum())} cells has a value of its own in {donor.name!r}, so that no two are of "
                "one donor; give --group another column, or leave it out."
            )
    types = cells.labels if cells.classes else np.zeros(len(cells), np.int64)
    _say_left_out(int((known & (types == MISSING)).sum()), "no cell type", say)
    known &= types != MISSING
    rows = np.flatnonzero(known)
    sign = np.where(number == second, 1, -1).astype(np.int8)
    names = (values[first], values[second])
    for one, name in zip((-1, 1), names, strict=True):
        if not (sign[rows] == one).any():
            raise DataError(f"No cell with {condition.name} {name!r} can be used; choose another column or conditions.")
    strata, type_names = types, cells.classes or (ALL,)
    if len(type_names) > 1 and not np.isin(types[rows][sign[rows] < 0], types[rows][sign[rows] > 0]).any():
        say("No cell type has cells in both conditions, so that all cells are compared together alone.")
        types, type_names = np.zeros(len(cells), np.int64), (ALL,)
    return Compared(np.arange(len(cells)), sign, names, types, type_names, strata, donors).taken(rows)


def _chosen(column: str, values: tuple[str, ...], conditions: Sequence[str] | None, cells: int) -> tuple[int, int]:
    """Positions of the two conditions among the values of the column.   cells: how many have one of these values."""
    listed = ", ".join(map(repr, values[:SHOWN])) + (", ..." if len(values) > SHOWN else "")
    if conditions is None:
        if len(values) == 1:
            raise DataError(f"Column {column!r} of obs has one value only, {listed}; give --by a column with two.")
        if 2 * len(values) > cells > 4:
            raise DataError(
                f"Column {column!r} of obs has {len(values)} values for {cells} cells, which are no conditions; give "
                "--by a column with two."
            )
        if len(values) > 2:
            raise DataError(
                f"Column {column!r} of obs has {len(values)} values ({listed}); choose two of them with --conditions."
            )
        return 0, 1
    wanted = [str(value) for value in conditions]
    if len(wanted) != 2 or wanted[0] == wanted[1]:
        raise DataError(f"--conditions names {', '.join(map(repr, wanted)) or 'none'}; give two different values.")
    for value in wanted:
        if value not in values:
            raise DataError(f"Column {column!r} of obs has no value {value!r}; it has {listed}.")
    return values.index(wanted[0]), values.index(wanted[1])


def _say_left_out(number: int, reason: str, say: Say) -> None:
    if number:
        say(f"Left out: {number} {'cell' if number == 1 else 'cells'} with {reason}.")
