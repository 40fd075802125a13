"""How a fold is cut into slices: blocks A_i x B_j.

Letters: N rows of A, M items, the rows of B, C bags (the batch axis, where there is one).
Source: MonoidReduce, A. Cuba Gyllensten, 2025; kernels/README.md, "Folds".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from flashsign.folds.algebra.in_slices.slices import Slices
from flashsign.folds.algebra.monoid import Monoid, Total


class Part(NamedTuple):
    """Some rows of A or of B."""

    start: int
    stop: int


@dataclass(frozen=True)
class Plan:
    """How a fold of B's rows, for each of A's rows, is cut into slices.

    count: how many tensors A has; rows: these have N rows, which are cut; otherwise they are whole
        for every slice. batched: every tensor has a first axis of bags.
    """

    monoid: Monoid
    depth: int
    count: int
    a_chunk: int
    b_chunk: int
    rows: bool
    batched: bool = False

    def __post_init__(self) -> None:
        if self.a_chunk < 1 or self.b_chunk < 1:  # range would give no slices
            raise ValueError(
                f"A chunk must be at least 1; found {self.a_chunk} and {self.b_chunk}."
            )

    @property
    def axis(self) -> int:
        """The axis of rows in A and B and of N in totals."""
        return int(self.batched)

    @property
    def slices(self) -> Slices:
        return Slices(self.monoid, self.depth, self.batched)

    def combined(self, a: Total, b: Total) -> Total:
        return self.monoid.combined(a, b, self.axis)

    def a_parts(self, a: Total) -> list[Part]:
        return _parts(a[0].shape[self.axis], self.a_chunk) if self.rows else [Part(0, 0)]

    def b_parts(self, b: Total) -> list[Part]:
        """Return slices of B's rows, at least one, so that a fold of no items still has the shape
        of a total.
        """
        return _parts(b[0].shape[self.axis], self.b_chunk)

    def total_of(self, a: Total, b: Total, i: Part, j: Part) -> Total:
        return self.slices.total(*self.slice_of(a, b, i, j))

    def slice_of(self, a: Total, b: Total, i: Part, j: Part) -> tuple[Total, Total]:
        """Return the tensors of a slice, of A and of B."""
        return self.of_rows(a, i), tuple(self._cut(x, j) for x in b)

    def of_rows(self, tensors: Total, i: Part) -> Total:
        """Return some rows of A's tensors, or of totals."""
        return tuple(self._cut(x, i) for x in tensors) if self.rows else tensors

    def _cut(self, x: Tensor, part: Part) -> Tensor:
        return x.narrow(self.axis, part.start, part.stop - part.start)

    def place(self, i: Part, j: Part, number: int) -> Part | None:
        """Return the rows of tensor `number` of (*A, *B) that a slice has; None: all of them."""
        if number >= self.count:
            return j
        return i if self.rows else None


def _parts(count: int, chunk: int) -> list[Part]:
    return [Part(at, min(at + chunk, count)) for at in range(0, max(count, 1), chunk)]
