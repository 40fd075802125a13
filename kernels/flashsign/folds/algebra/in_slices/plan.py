"""How a fold is cut into slices: blocks A_i x B_j, their tensors, positions and masks.

Letters: N rows of A, M items, the rows of B, C bags (the batch axis, where there is one).
Source: MonoidReduce, A. Cuba Gyllensten, 2025; kernels/README.md, "Folds".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from flashsign.folds.algebra.in_slices.slices import Slices
from flashsign.folds.algebra.monoid import Gradients, Monoid, Total

Order = Literal["rows", "items", "tree"]


class Part(NamedTuple):
    """Some rows of A or of B. shares: how many slices of B these are, which are folded side by
    side.
    """

    start: int
    stop: int
    shares: int = 1


@dataclass(frozen=True)
class Plan:
    """How a fold of B's rows, for each of A's rows, is cut into slices.

    rows: A's tensors have N rows, which are cut; otherwise they are whole for every slice. order:
        "rows" takes all items of a slice of rows first, "items" all rows of a slice of items,
        "tree" several slices of items at once.
    mask: [(C), N or 1, M], without rows [(C), M]; first: the position of the first item.
    """

    monoid: Monoid
    depth: int
    count: int  # of A's tensors
    a_chunk: int
    b_chunk: int
    rows: bool
    order: Order = "rows"
    batched: bool = False
    mask: Tensor | None = None
    first: int = 0

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

    def local_gradients(self, combined: Total, part: Total, grads: Total) -> Total:
        return self.monoid.local_gradients(combined, part, grads, self.axis, many=False)

    def a_parts(self, a: Total) -> list[Part]:
        if not self.rows:
            return [Part(0, 0)]
        rows = a[0].shape[self.axis]
        return [
            Part(at, min(at + self.a_chunk, rows)) for at in range(0, max(rows, 1), self.a_chunk)
        ]

    def b_parts(self, a: Total, b: Total) -> list[Part]:
        """Return slices of B's rows, at least one, so that a fold of no items still has the shape
        of a total.
        """
        items = b[0].shape[self.axis]
        rows = a[0].shape[self.axis] if self.rows else self.a_chunk
        shares = max(1, self.a_chunk // max(1, rows)) if self.order == "tree" else 1
        if self.depth < 3:
            return _parts(items, self.b_chunk * shares)
        parts: list[Part] = []
        at = 0
        while items - at >= 2 * self.b_chunk and shares > 1:
            some = min(shares, (items - at) // self.b_chunk)
            parts.append(Part(at, at + some * self.b_chunk, some))
            at += some * self.b_chunk
        rest = [Part(at + start, at + stop) for start, stop, _ in _parts(items - at, self.b_chunk)]
        return parts + rest if items > at or not parts else parts

    def blocks(self, a: Total, b: Total) -> Iterator[tuple[Part, Part, bool]]:
        """Yield every pair of a slice of rows and one of items, and whether it is the first of its
        rows.
        """
        rows, items = self.a_parts(a), self.b_parts(a, b)
        if self.order == "items":
            return ((i, j, j is items[0]) for j in items for i in rows)
        return ((i, j, j is items[0]) for i in rows for j in items)

    def total_of(self, a: Total, b: Total, i: Part, j: Part) -> Total:
        return self.slices.total(*self.slice_of(a, b, i, j), j.shares)

    def slice_of(self, a: Total, b: Total, i: Part, j: Part) -> tuple[Total, Total, Tensor | None]:
        """Return the tensors of a slice: of A, of B, positions included, and of the mask."""
        rows = tuple(self._cut(x, i) for x in a) if self.rows else a
        return *self._numbered(rows, b, i, j), self._masked(i, j)

    def _numbered(self, rows: Total, b: Total, i: Part, j: Part) -> tuple[Total, Total]:
        items = tuple(self._cut(x, j) for x in b)
        if not self.monoid.numbered:
            return rows, items
        if rows:
            start = i if self.rows else Part(0, rows[0].shape[self.axis])
            rows = *rows, self._positions(start, rows[0])
        return rows, (
            *items,
            self._positions(Part(self.first + j.start, self.first + j.stop), items[0]),
        )

    def _positions(self, part: Part, like: Tensor) -> Tensor:
        positions = torch.arange(part.start, part.stop, device=like.device)
        return positions.expand(len(like), -1) if self.batched else positions

    def _masked(self, i: Part, j: Part) -> Tensor | None:
        if self.mask is None:
            return None
        mask = self.mask[..., j.start : j.stop]
        if not self.rows or mask.shape[-2] == 1:
            return mask
        return mask[..., i.start : i.stop, :]

    def _cut(self, x: Tensor, part: Part) -> Tensor:
        return x.narrow(self.axis, part.start, part.stop - part.start)

    def of_rows(self, totals: Total, i: Part) -> Total:
        return tuple(self._cut(x, i) for x in totals) if self.rows else totals

    def place(self, part: Part, number: int) -> Part | None:
        """Return where the gradient of tensor `number` for this part belongs; None: to the whole
        tensor.
        """
        return None if number < self.count and not self.rows else part

    def room(self, part: Tensor, a: Total) -> Tensor:
        """Return a tensor for the totals of all rows, from that of some, uninitialised."""
        shape = list(part.shape)
        shape[self.axis] = a[0].shape[self.axis]
        return part.new_empty(shape)

    def wanted_of_slice(self, wanted: tuple[bool, ...], rows: Total) -> tuple[bool, ...]:
        """Return `wanted` with places for positions, which want nothing."""
        if not self.monoid.numbered:
            return wanted
        return (
            *wanted[: self.count],
            *(False,) * (len(rows) - self.count),
            *wanted[self.count :],
            False,
        )

    def without_positions(self, grads: Gradients, rows: Total) -> Gradients:
        if not self.monoid.numbered:
            return grads
        return (*grads[: self.count], *grads[len(rows) : -1])


def _parts(count: int, chunk: int) -> list[Part]:
    return [Part(at, min(at + chunk, count)) for at in range(0, max(count, 1), chunk)]
