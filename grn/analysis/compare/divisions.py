"""Other divisions of the same cells into two conditions, which are as likely as the observed one if nothing differs.

Without donors, the conditions of the cells are dealt out anew within each type. With donors, a donor's cells keep
together: between donors that have one condition each, conditions are dealt out anew; of donors that have both, the two
are swapped or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from math import comb, inf

import numpy as np


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
        """Divisions [C] other than the observed one: all of them where there are at most `most`, else so many random
        ones."""
        if self.donors is not None and self.number <= most + 1:
            yield from self._all()
            return
        for _ in range(most):
            yield self._random(generator)

    def _random(self, generator: np.random.Generator) -> np.ndarray:
        if self.donors is not None:
            return self._of_donors(
                generator.permutation(self.second), generator.integers(0, 2, len(self.both)).astype(bool)
            )
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
