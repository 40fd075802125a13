"""Which cells are compared, and the other divisions of them into two conditions, as likely if nothing differs.

Without donors, the conditions of the cells are dealt out anew within each type. With donors, a donor's cells keep
together: between donors that have one condition each, conditions are dealt out anew; of donors that have both, the two
are swapped or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import comb, inf

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
    """rows [C]: positions among all cells.   sign int8 [C]: -1 in the first condition, +1 in the second.
    names: of the two conditions.   types [C]: number of each cell's type; 0 where no type has both conditions.
    type_names: by number.   strata [C]: numbers of types, always, whose levels are taken out.   donors [C]: number of
    each cell's donor, or None.
    """

    rows: np.ndarray
    sign: np.ndarray
    names: tuple[str, str]
    types: np.ndarray
    type_names: tuple[str, ...]
    strata: np.ndarray
    donors: np.ndarray | None

    def of_type(self, name: str) -> Compared:
        return self.taken(np.flatnonzero(self.types == self.type_names.index(name)))

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
    """The cells that have one of two conditions. conditions: which two values; None: the only two of the column."""
    number, values = _numbered(condition)
    wanted = values if conditions is None else tuple(map(str, conditions))
    if len(set(wanted)) != 2 or not set(wanted) <= set(values):
        listed = ", ".join(map(repr, values[:SHOWN])) + (", ..." if len(values) > SHOWN else "")
        raise DataError(
            f"Column {str(condition.name)!r} of obs has the values {listed}; choose two of them with {{field}}.",
            field="conditions",
        )
    first, second = map(values.index, wanted)
    known = np.isin(number, [first, second])
    _say_left_out(int((number == MISSING).sum()), f"no value in {condition.name!r}", say)
    donors = None
    if donor is not None:
        donors, _ = _numbered(donor)
        _say_left_out(int((known & (donors == MISSING)).sum()), f"no value in {donor.name!r}", say)
        known &= donors != MISSING
    types = cells.labels if cells.classes else np.zeros(len(cells), np.int64)
    _say_left_out(int((known & (types == MISSING)).sum()), "no cell type", say)
    known &= types != MISSING
    rows = np.flatnonzero(known)
    sign = np.where(number == second, 1, -1).astype(np.int8)
    if len(np.unique(sign[rows])) < 2:
        raise DataError(f"No cell with {condition.name} {' or '.join(map(repr, wanted))} can be used.")
    strata, type_names = types, cells.classes or (ALL,)
    if len(type_names) > 1 and not np.isin(types[rows][sign[rows] < 0], types[rows][sign[rows] > 0]).any():
        say("No cell type has cells in both conditions, so that all cells are compared together alone.")
        types, type_names = np.zeros(len(cells), np.int64), (ALL,)
    return Compared(np.arange(len(cells)), sign, (wanted[0], wanted[1]), types, type_names, strata, donors).taken(rows)


def _numbered(column: pd.Series) -> tuple[np.ndarray, tuple[str, ...]]:
    return read_labels(pd.DataFrame({column.name: column}), str(column.name), "give another column")


def _say_left_out(number: int, reason: str, say: Say) -> None:
    if number:
        say(f"Left out: {number} {'cell' if number == 1 else 'cells'} with {reason}.")


class Divisions:
    """sign [C]: -1 or +1, the observed division.   types [C], donors [C] or None: numbers."""

    def __init__(self, sign: np.ndarray, types: np.ndarray, donors: np.ndarray | None):
        self.sign, self.types, self.donors = sign, types, donors
        self.single, self.both = np.zeros(0, np.int64), np.zeros(0, np.int64)
        if donors is not None:
            has = np.zeros((int(donors.max()) + 1, 2), dtype=bool)
            has[donors, (sign > 0).astype(int)] = True
            self.single, self.both = np.flatnonzero(has.sum(1) == 1), np.flatnonzero(has.all(1))
            self.second = has[self.single, 1]

    @property
    def mirrored(self) -> bool:
        """Whether the names of the two conditions could be swapped: such divisions count as one."""
        return 2 * int(self.second.sum()) == len(self.single)

    @property
    def number(self) -> float:
        """How many divisions there are, the observed one included; without donors, more than could be counted."""
        if self.donors is None:
            return inf
        number = comb(len(self.single), int(self.second.sum())) * 2 ** len(self.both)
        return number // 2 if self.mirrored else number

    def others(self, most: int, generator: np.random.Generator) -> Iterator[np.ndarray]:
        """Divisions [C] other than the observed one: all, where there are at most `most`, else so many random ones."""
        if self.donors is not None and self.number <= most + 1:
            yield from self._all()
            return
        for _ in range(most):
            yield self._random(generator)

    def _random(self, generator: np.random.Generator) -> np.ndarray:
        if self.donors is not None:
            second = generator.permutation(self.second)
            return self._of_donors(second, generator.integers(0, 2, len(self.both)).astype(bool))
        sign = self.sign.copy()
        for number in np.unique(self.types):
            cells = np.flatnonzero(self.types == number)
            sign[cells] = self.sign[generator.permutation(cells)]
        return sign

    def _all(self) -> Iterator[np.ndarray]:
        seen = {self.sign.tobytes()} | ({(-self.sign).tobytes()} if self.mirrored else set())
        for chosen in combinations(range(len(self.single)), int(self.second.sum())):
            second = np.isin(np.arange(len(self.single)), chosen)
            for swapped in product([False, True], repeat=len(self.both)):
                sign = self._of_donors(second, np.array(swapped, dtype=bool))
                if sign.tobytes() not in seen:
                    seen |= {sign.tobytes()} | ({(-sign).tobytes()} if self.mirrored else set())
                    yield sign

    def _of_donors(self, second: np.ndarray, swapped: np.ndarray) -> np.ndarray:
        """second: which of the donors with one condition have the second one.   swapped: of the donors with both."""
        assert self.donors is not None
        factor = np.ones(int(self.donors.max()) + 1, dtype=self.sign.dtype)
        factor[self.both[swapped]] = -1
        factor[self.single] = np.where(second == self.second, 1, -1)
        return self.sign * factor[self.donors]
