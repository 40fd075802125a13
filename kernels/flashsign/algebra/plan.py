"""Folds in slices: blocks A_i x B_j forward, and the same blocks backward, each lifted again from the total.

Local Gradient Theorem: if d(a.b)/da is a function D(a.b, a), the gradient of a fold for one of its items is
D(total, item), and the parts of an item that several rows share are added. So a fold stores its inputs and its total.
Without D, the totals before each slice are needed; they are computed again by halving, so that only log2(slices) of
them exist at a time.

Letters: N rows of A, M items, the rows of B, C bags (the batch axis, where there is one).
Source: MonoidReduce, A. Cuba Gyllensten, 2025; kernels/README.md, "Folds".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, distributed

from flashsign.algebra.collecting import collected_gradients, collecting_forward, collects
from flashsign.algebra.monoid import Gradients, Monoid, Total
from flashsign.algebra.over_group import ONE_DERIVATIVE, combined_over_group, summed_over_group
from flashsign.algebra.slices import Slices, as_leaves, pull
from flashsign.eager.transforms import differentiable_gradients, in_batches, transformed, without_autocast

Order = Literal["rows", "items", "tree"]


class Part(NamedTuple):
    """Some rows of A or of B. shares: how many slices of B these are, which are folded side by side."""

    start: int
    stop: int
    shares: int = 1


@dataclass(frozen=True)
class Plan:
    """How a fold of B's rows, for each of A's rows, is cut into slices.

    rows: A's tensors have N rows, which are cut; otherwise they are whole for every slice. order: "rows" takes all
    items of a slice of rows first, "items" all rows of a slice of items, "tree" several slices of items at once.
    mask: [(C), N or 1, M], without rows [(C), M]; first: the position of the first item; group: who has other items.
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
    group: distributed.ProcessGroup | None = None

    @property
    def axis(self) -> int:
        """The axis of rows in A and B and of N in totals."""
        return int(self.batched)

    @property
    def slices(self) -> Slices:
        return Slices(self.monoid, self.depth, self.batched)

    def run(self, *tensors: Tensor) -> Total:
        """The differentiable total of (*A, *B): tensors [(C), N, ...]."""
        if transformed():
            if self.group is not None:
                raise NotImplementedError(ONE_DERIVATIVE)
            return self.plain(*tensors)
        total: Total = _Reduce.apply(self, *tensors)  # type: ignore[no-untyped-call]
        return total

    def plain(self, *tensors: Tensor) -> Total:
        """The total in plain operations, all slices in memory: differentiable in any mode and order."""
        a, b = tensors[: self.count], tensors[self.count :]
        found = []
        for i in self.a_parts(a):
            totals = [self.total_of(a, b, i, j) for j in self.b_parts(a, b)]
            found.append(reduce(self.monoid.combine, totals))
        if len(found) == 1:
            return found[0]
        return tuple(torch.cat(parts, self.axis) for parts in zip(*found, strict=True))

    def forward(self, a: Total, b: Total) -> Total:
        """The total, one slice in memory at a time; not differentiable."""
        totals: Total = ()
        for i, j, starts in self._blocks(a, b):
            part = self.total_of(a, b, i, j)
            if len(self.a_parts(a)) == 1:
                totals = part if starts else self.monoid.combine(totals, part)
                continue
            if not totals:
                totals = tuple(self._room(x, a) for x in part)
            here = self._of_rows(totals, i)
            for whole, new in zip(here, part if starts else self.monoid.combine(here, part), strict=True):
                whole.copy_(new)
        return totals

    def backward(self, a: Total, b: Total, total: Total, grads: Total, wanted: tuple[bool, ...]) -> Gradients:
        """The gradients for (*A, *B), None where none is wanted."""
        if self.depth == 1:
            return self._chain_gradients(a, b, grads, wanted)
        slices, count = self.slices, self.count
        # What the outer loop runs over is summed slice by slice, so that 16-bit tensors need no wide copy of it.
        items_outer = sum(x.numel() for x in b) >= sum(x.numel() for x in a) or not self.rows
        sums = _Sums((*a, *b), wanted, self.axis)
        outer, inner = (self.b_parts(a, b), self.a_parts(a)) if items_outer else (self.a_parts(a), self.b_parts(a, b))
        of_outer = range(count, len(wanted)) if items_outer else range(count)
        for o in outer:
            of_slice: dict[int, Tensor] = {}
            for n in inner:
                i, j = (n, o) if items_outer else (o, n)
                if j.start == j.stop:
                    continue
                arguments = self.slice_of(a, b, i, j)
                found = slices.gradients(
                    *arguments,
                    self._of_rows(total, i),
                    self._of_rows(grads, i),
                    self._wanted_of_slice(wanted, arguments[0]),
                    j.shares,
                )
                for number, grad in zip(sums.numbers, self._without_positions(found, arguments[0]), strict=True):
                    if grad is None or not wanted[number]:
                        continue
                    if number in of_outer:
                        of_slice[number] = of_slice[number].add_(grad) if number in of_slice else _wide_copy(grad)
                    else:
                        sums.add(number, self._place(i if items_outer else j, number), grad)
            for number, grad in of_slice.items():
                sums.put(number, self._place(o, number), grad)
        return sums.result()

    def a_parts(self, a: Total) -> list[Part]:
        """Slices of A's rows, at least one."""
        if not self.rows:
            return [Part(0, 0)]
        rows = a[0].shape[self.axis]
        return [Part(at, min(at + self.a_chunk, rows)) for at in range(0, max(rows, 1), self.a_chunk)]

    def b_parts(self, a: Total, b: Total) -> list[Part]:
        """Slices of B's rows, at least one, so that a fold of no items still has the shape of a total."""
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

    def _blocks(self, a: Total, b: Total) -> Iterator[tuple[Part, Part, bool]]:
        """Every pair of a slice of rows and one of items, and whether it is the first of its rows."""
        rows, items = self.a_parts(a), self.b_parts(a, b)
        if self.order == "items":
            return ((i, j, j is items[0]) for j in items for i in rows)
        return ((i, j, j is items[0]) for i in rows for j in items)

    def total_of(self, a: Total, b: Total, i: Part, j: Part) -> Total:
        """The total of some rows over some items."""
        return self.slices.total(*self.slice_of(a, b, i, j), j.shares)

    def slice_of(self, a: Total, b: Total, i: Part, j: Part) -> tuple[Total, Total, Tensor | None]:
        """The tensors of a slice: of A, of B, positions included, and of the mask."""
        rows = tuple(self._cut(x, i) for x in a) if self.rows else a
        return *self._numbered(rows, b, i, j), self._masked(i, j)

    def _numbered(self, rows: Total, b: Total, i: Part, j: Part) -> tuple[Total, Total]:
        items = tuple(self._cut(x, j) for x in b)
        if not self.monoid.numbered:
            return rows, items
        if rows:
            start = i if self.rows else Part(0, rows[0].shape[self.axis])
            rows = *rows, self._positions(start, rows[0])
        return rows, (*items, self._positions(Part(self.first + j.start, self.first + j.stop), items[0]))

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

    def _of_rows(self, totals: Total, i: Part) -> Total:
        return tuple(self._cut(x, i) for x in totals) if self.rows else totals

    def _place(self, part: Part, number: int) -> Part | None:
        return None if number < self.count and not self.rows else part

    def _room(self, part: Tensor, a: Total) -> Tensor:
        shape = list(part.shape)
        shape[self.axis] = a[0].shape[self.axis]
        return part.new_empty(shape)

    def _wanted_of_slice(self, wanted: tuple[bool, ...], rows: Total) -> tuple[bool, ...]:
        """wanted, with places for positions, which want nothing."""
        if not self.monoid.numbered:
            return wanted
        return (*wanted[: self.count], *(False,) * (len(rows) - self.count), *wanted[self.count :], False)

    def _without_positions(self, grads: Gradients, rows: Total) -> Gradients:
        if not self.monoid.numbered:
            return grads
        return (*grads[: self.count], *grads[len(rows) : -1])

    def _chain_gradients(self, a: Total, b: Total, grads: Total, wanted: tuple[bool, ...]) -> Gradients:
        """Without D: autograd through prefix . slice, from the last slice to the first."""
        sums = _Sums((*a, *b), wanted, self.axis)
        parts = self.b_parts(a, b)
        for i in self.a_parts(a):
            nothing = self.total_of(a, b, i, Part(0, 0))
            self._chain(a, b, i, parts, nothing, self._of_rows(grads, i), wanted, sums)
        return sums.result()

    def _chain(
        self,
        a: Total,
        b: Total,
        i: Part,
        parts: list[Part],
        prefix: Total,
        grads: Total,
        wanted: tuple[bool, ...],
        sums: _Sums,
    ) -> Total:
        """Adds the gradients of these slices, whose items follow prefix; returns the gradient for prefix."""
        combine = self.monoid.combine
        if len(parts) > 1:
            half = len(parts) // 2
            middle = prefix
            for j in parts[:half]:
                middle = combine(middle, self.total_of(a, b, i, j))
            grads = self._chain(a, b, i, parts[half:], middle, grads, wanted, sums)
            del middle
            return self._chain(a, b, i, parts[:half], prefix, grads, wanted, sums)
        (j,) = parts
        rows, items, mask = self.slice_of(a, b, i, j)
        leaves = as_leaves((*rows, *items), self._wanted_of_slice(wanted, rows))
        before = as_leaves(prefix, tuple(x.is_floating_point() for x in prefix))
        with torch.enable_grad():
            own = self.slices.total(leaves[: len(rows)], leaves[len(rows) :], mask)
            whole = combine(before, own)
        found = pull(whole, grads, (*leaves, *before))
        for number, grad in zip(sums.numbers, self._without_positions(found[: len(leaves)], rows), strict=True):
            if grad is not None and wanted[number]:
                sums.add(number, self._place(i if number < self.count else j, number), grad)
        return tuple(torch.zeros_like(x) if g is None else g for g, x in zip(found[len(leaves) :], prefix, strict=True))


class _Sums:
    """The gradients of all tensors, filled slice by slice; sums of 16-bit numbers are float32 until the end."""

    def __init__(self, tensors: Total, wanted: tuple[bool, ...], axis: int):
        self.tensors, self.wanted, self.axis = tensors, wanted, axis
        self.found: Gradients | list[Tensor | None] = [None] * len(tensors)
        self.numbers = range(len(tensors))

    def add(self, number: int, part: Part | None, grad: Tensor) -> None:
        """Adds a part of the gradient of a tensor; part: its rows, None: all of them."""
        self._view(number, part, wide=True).add_(grad)

    def put(self, number: int, part: Part | None, grad: Tensor) -> None:
        """Writes the whole gradient of some rows."""
        self._view(number, part, wide=False).copy_(grad)

    def _view(self, number: int, part: Part | None, wide: bool) -> Tensor:
        assert isinstance(self.found, list)
        whole = self.found[number]
        if whole is None:
            x = self.tensors[number]
            dtype = torch.promote_types(x.dtype, torch.float32) if wide else x.dtype
            # Plain strides: the tensor may be expanded, and several of its elements one place in memory.
            whole = self.found[number] = torch.zeros(x.shape, dtype=dtype, device=x.device)
        return whole if part is None else whole.narrow(self.axis, part.start, part.stop - part.start)

    def result(self) -> Gradients:
        for number, x in enumerate(self.tensors):
            if self.wanted[number] and self.found[number] is None:
                self._view(number, None, wide=False)
            grad = self.found[number]
            if grad is not None:
                assert isinstance(self.found, list)
                self.found[number] = grad.to(x.dtype)
        return tuple(self.found)


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: Plan, *tensors: Tensor) -> Total:
        a, b = tensors[: plan.count], tensors[plan.count :]
        slopes: Total = ()
        # Under autocast, products would be rounded that a monoid keeps wide.
        with without_autocast(b[0]):
            if plan.group is None and collects(plan, a, b, ctx.needs_input_grad[1:]):
                total, slopes = collecting_forward(plan, a, b, ctx.needs_input_grad[1:])
            else:
                total = plan.forward(a, b)
            if plan.group is not None:
                total = combined_over_group(plan.monoid, total, plan.group)
        # The total may be an input itself (a sum of one item), and autograd forbids to return a view of an input.
        inputs = {x.untyped_storage()._cdata for x in tensors}
        total = tuple(x.clone() if x.untyped_storage()._cdata in inputs else x for x in total)
        ctx.save_for_backward(*tensors, *total, *slopes)
        ctx.plan, ctx.sizes = plan, (len(tensors), len(total))
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        plan, (inputs, numbers) = ctx.plan, ctx.sizes
        saved = ctx.saved_tensors  # read once: checkpointing allows no more
        tensors, total, slopes = saved[:inputs], saved[inputs : inputs + numbers], saved[inputs + numbers :]
        if torch.is_grad_enabled() or any(map(in_batches, grads)):
            if plan.group is not None:
                raise NotImplementedError(ONE_DERIVATIVE)
            return None, *differentiable_gradients(plan.plain, tensors, grads)
        wanted = ctx.needs_input_grad[1:]
        with without_autocast(grads[0]):
            if slopes:
                return None, *collected_gradients(slopes, grads, tensors, wanted)
            if plan.group is not None:
                grads = summed_over_group(grads, plan.group)
            return None, *plan.backward(tensors[: plan.count], tensors[plan.count :], total, grads, wanted)


def _wide_copy(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32), copy=True)


def _parts(count: int, chunk: int) -> list[Part]:
    return [Part(at, min(at + chunk, count)) for at in range(0, max(count, 1), chunk)]
