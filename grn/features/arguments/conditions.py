"""Which cells of two conditions are compared, and the conditions dealt out anew, as likely if
nothing differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np
import pandas as pd

from grn.cells.cells import Cells
from grn.cells.obs import MISSING, read_labels
from grn.runtime.errors import DataError
from grn.runtime.messages import Say

ALL = "all"  # cell_type of the comparison over all types together
SHOWN = 10  # values of a column in a message


@dataclass(frozen=True)
class Compared:
    """The cells of a comparison, type by type.

    rows [C]: positions among all cells. sign int8 [C]: -1 in the first condition, +1 in the second.
    names: of the two conditions.
    types [C]: each cell's label; `all` where no type has both conditions.
    strata [C]: number of its type and donor, whose levels are taken out.
    donors [C]: numbers from 0, or None.
    """

    rows: np.ndarray
    sign: np.ndarray
    names: tuple[str, str]
    types: np.ndarray
    strata: np.ndarray
    donors: np.ndarray | None

    @property
    def sizes(self) -> tuple[int, int]:
        """Cells of each condition."""
        return int((self.sign < 0).sum()), int((self.sign > 0).sum())

    def of_type(self, name: str) -> Compared:
        """The cells of one type; `all`: all cells."""
        return self.taken(
            np.arange(len(self.rows)) if name == ALL else np.flatnonzero(self.types == name)
        )

    def taken(self, positions: np.ndarray) -> Compared:
        """Some of these cells, by their positions among them."""
        positions = positions[np.argsort(self.types[positions], kind="stable")]
        donors = (
            None
            if self.donors is None
            else np.unique(self.donors[positions], return_inverse=True)[1]
        )
        strata = np.unique(self.strata[positions], return_inverse=True)[1]
        return Compared(
            self.rows[positions],
            self.sign[positions],
            self.names,
            self.types[positions],
            strata,
            donors,
        )

    def dealt_anew(self, generator: np.random.Generator) -> np.ndarray:
        """Other conditions of the cells, as `sign`.

        Without donors, the conditions are permuted within each type. With donors, the cells of a
        donor keep together:
        the conditions of donors that have one are permuted between them, and those of a donor that
        has both are swapped or not.
        """
        if self.donors is None:
            sign = self.sign.copy()
            for name in np.unique(self.types):
                cells = np.flatnonzero(self.types == name)
                sign[cells] = self.sign[generator.permutation(cells)]
            return sign
        single, both = self._donors()
        factor = np.where(both, generator.choice([-1, 1], len(both)), 1).astype(np.int8)
        factor[single != 0] = single[single != 0] * generator.permutation(single[single != 0])
        return self.sign * factor[self.donors]

    @property
    def divisions(self) -> int | None:
        """In how many ways `dealt_anew` can divide the donors, where swapping the names of the
        conditions makes no other division; None without donors.
        """
        if self.donors is None:
            return None
        single, both = self._donors()
        number, second = int((single != 0).sum()), int((single > 0).sum())
        ways = comb(number, second) * 2 ** int(both.sum())
        return ways // 2 if 2 * second == number else ways

    def _donors(self) -> tuple[np.ndarray, np.ndarray]:
        """Of each donor: its sign, or 0 where it has both conditions; and whether it has both."""
        mean = pd.Series(self.sign).groupby(self.donors).mean().to_numpy()
        single = np.where(np.abs(mean) == 1, mean, 0).astype(np.int8)
        return single, single == 0


def compared_cells(
    cells: Cells,
    condition: pd.Series,
    donor: pd.Series | None,
    *,
    conditions: Sequence[str] | None,
    say: Say,
) -> Compared:
    """The cells that have one of two conditions, a type and a donor. condition, donor [C]: columns
    of obs.

    conditions: which two values; None: the only two of the column.
    Raises DataError.
    """
    number, values = _numbered(condition)
    names = two_of(values, conditions)
    first, second = map(values.index, names)
    types = cells.labels if cells.classes else np.zeros(len(cells), np.int64)
    donors = np.zeros(len(cells), np.int64) if donor is None else _numbered(donor)[0]
    known = np.isin(number, [first, second]) & (types != MISSING) & (donors != MISSING)
    if not known.all():
        lacked = {
            "one of the two conditions": True,
            "a cell type": bool(cells.classes),
            "a donor": donor is not None,
        }
        lack = " or ".join(each for each, asked in lacked.items() if asked)
        say(f"Left out: {int((~known).sum())} cells without {lack}.")
    sign = np.where(number == second, 1, -1).astype(np.int8)
    shared = np.intersect1d(types[known & (sign < 0)], types[known & (sign > 0)])
    labels = np.array(cells.classes or (ALL,), object)[types]
    if not len(shared):
        if len(np.unique(sign[known])) < 2:
            raise DataError(
                f"No cell with {condition.name} {' or '.join(map(repr, names))} can be used."
            )
        say(
            "No cell type has cells in both conditions, so that all cells are compared together "
            "alone."
        )
        labels[:] = ALL
    strata = types * (int(donors.max()) + 1) + donors
    every = Compared(
        np.arange(len(cells)), sign, names, labels, strata, None if donor is None else donors
    )
    return every.taken(np.flatnonzero(known))


def _numbered(column: pd.Series) -> tuple[np.ndarray, tuple[str, ...]]:
    return read_labels(pd.DataFrame({column.name: column}), str(column.name), "give another column")


def two_of(values: Sequence[str], wanted: Sequence[str] | None) -> tuple[str, str]:
    """The two conditions that are compared: those that are wanted, or else the only two. Raises
    DataError.
    """
    chosen = tuple(values if wanted is None else map(str, wanted))
    if len(chosen) != 2 or not set(chosen) <= set(values) or chosen[0] == chosen[1]:
        listed = ", ".join(map(repr, values[:SHOWN])) + (", ..." if len(values) > SHOWN else "")
        raise DataError(
            f"The conditions are {listed}; choose two of them with {{field}}", field="conditions"
        )
    return chosen[0], chosen[1]
