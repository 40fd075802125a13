"""Edges over many bags: the mean signed and absolute weight of every (target, regulator) pair, tile
by tile.

    w_ij = s_ij / n_i, s_ij = m_j q_i.k_j, of each bag and head is lifted to (w, |w|, 1), added up,
    and divided once.

This is a fold over a commutative monoid, so bags may come in any batches, in any order and from any
devices. It is not a flashsign.Fold, which makes a new total for each add: here the total is a table
of gigabytes, of which a bag changes some rows and columns, in place and by a kernel. Memory holds
the sums, [N, R], and the weights of a few bags at a time:
never heads x bags x N x R.
Letters: C bags, H query heads, K key heads, E head width; N targets and R regulators, the rows and
columns of the sums; n queries and m keys of a bag; T queries and S keys of all packed bags.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from flashsign.attention.dispatch import Backend, choose_backend
from flashsign.attention.validation import is_whole, require_tensors
from flashsign.eager.transforms import transformed
from flashsign.edges.parts import EdgeCall, Index, Part, parts
from flashsign.errors import ShapeMismatch
from flashsign.operators.verify import known
from flashsign.tuning.accuracy import Bag
from flashsign.tuning.device import facts_of

WEIGHTS = 2**22
"""Most weights that are in memory at one time (16 MiB in float32; more was slower on a CPU)."""

Over = Literal["pairs", "targets"]
By = Literal["absolute", "signed"]


class EdgeMeans(NamedTuple):
    """Means over bags and heads, [N, R] each: signed, of w; absolute, of |w| (None where only
    signed sums are kept).

    A change of sign of q or of k leaves the absolute mean as it is and changes the sign of the
    signed one.

    Example:
        >>> import torch
        >>> from flashsign import EdgeSums
        >>> q, k = torch.randn(4, 2, 3, 8), torch.randn(4, 2, 5, 8)
        >>> means = EdgeSums(3, 5).add(q, k).mean()
        >>> bool((means.signed.abs() <= means.absolute + 1e-6).all())
        True
    """

    signed: Tensor
    absolute: Tensor | None


class TopEdges(NamedTuple):
    """The strongest regulators of every target, strongest first, [N, k] each, with their means.

    Where a target has fewer than k, the rest has regulator -1 and means 0. absolute: None where it
    was not kept.

    Example:
        >>> import torch
        >>> from flashsign import EdgeSums
        >>> q, k = torch.randn(4, 2, 3, 8), torch.randn(4, 2, 5, 8)
        >>> EdgeSums(3, 5).add(q, k).top(2).regulator.shape
        torch.Size([3, 2])
    """

    regulator: Tensor
    signed: Tensor
    absolute: Tensor | None


def stacked(found: list[TopEdges], k: int, absolute: bool, like: Tensor) -> TopEdges:
    """Return the edges of all targets from those of consecutive tiles, [rows, k] each.

    like: dtype and device of the means.
    """
    empty = like.new_zeros(0, k)
    found = [TopEdges(empty.long(), empty, empty if absolute else None), *found]
    sizes = [edges.absolute for edges in found if edges.absolute is not None]
    regulator = torch.cat([edges.regulator for edges in found])
    signed = torch.cat([edges.signed for edges in found])
    return TopEdges(regulator, signed, torch.cat(sizes) if absolute else None)


def taken(table: Tensor, at: Tensor) -> Tensor:
    """Return table[i, at[i, r]] for at [N, k], 0 where at is -1."""
    return torch.where(at >= 0, table.gather(1, at.clamp_min(0)), 0)


class EdgeSums:
    """Sums over bags of each pair's weight (a mean over heads), with counts: a commutative monoid
    under `plus`.

    signed, absolute [N, R]: sums of w and of |w|. listed [N] int64: number of bags that list the
        target as a query.
    pairs [N, R] int32: number of bags that list the target and in which the regulator is present (m
        > 0).

    Memory: N x R numbers for each of signed, absolute and pairs (the last two can be left out),
        WEIGHTS weights, the call's own tensors and the buffers of edges.parts. A table of 20 000
        targets x 20 000 regulators takes 1.6 GB in float32; where that is too much, use
        `top_edges`.

    Example:
        >>> import torch
        >>> from flashsign import EdgeSums
        >>> sums = EdgeSums(targets=3, regulators=5)
        >>> for batch in range(2):  # cells, heads, genes, width
        ...     q, k = torch.randn(4, 2, 3, 8), torch.randn(4, 2, 5, 8)
        ...     sums = sums.add(q, k)
        >>> sums.mean().signed.shape
        torch.Size([3, 5])
        >>> sums.pairs[0].tolist()
        [8, 8, 8, 8, 8]
    """

    def __init__(
        self,
        targets: int | range,
        regulators: int,
        *,
        absolute: bool = True,
        pairs: bool = True,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ):
        """Make sums of zero bags.

        targets: how many, or a range of step 1 for these rows of a larger table; regulators: how
            many; absolute, pairs: whether these tables are kept; dtype: of signed and absolute.
        Raises ShapeMismatch for targets that are neither, ValueError for another number, dtype or
        device that is none, BackendUnavailable for a GPU that is not there, MemoryError for tables
        that do not fit into a CPU's.
        """
        self.targets = targets if isinstance(targets, range) else range(targets)
        if self.targets.step != 1:
            raise ShapeMismatch(
                f"targets must be a number or a range of step 1; found {self.targets}."
            )
        shape = (len(self.targets), regulators)
        try:
            self.signed = torch.zeros(shape, dtype=dtype, device=device)
            self.absolute = torch.zeros(shape, dtype=dtype, device=device) if absolute else None
            self.pairs = torch.zeros(shape, dtype=torch.int32, device=device) if pairs else None
        except RuntimeError as problem:
            if isinstance(problem, torch.OutOfMemoryError) or not re.search(
                "allocate|overflow", str(problem)
            ):
                raise  # a GPU's memory is torch's own error, which callers may know
            raise MemoryError(
                f"Tables of {shape[0]} targets x {shape[1]} regulators do not fit into memory; use "
                "top_edges, which keeps the strongest alone, or pass absolute=False or "
                "pairs=False."
            ) from problem
        self.listed = torch.zeros(shape[0], dtype=torch.int64, device=device)

    def add(
        self,
        q: Tensor,
        k: Tensor,
        multiplicity: Tensor | None = None,
        *,
        offsets: Tensor | None = None,
        query_offsets: Tensor | None = None,
        targets: Tensor | None = None,
        regulators: Tensor | None = None,
        eps: float = 1e-6,
        backend: Backend = "auto",
    ) -> EdgeSums:
        """Add the weights of some bags in two passes, the norms of all rows and then tiles of
        weights; return self.

        Dense: q [C, H, n, E], k [C, K, m, E], multiplicity [C, m] or [C, K, m] (default: ones).
            Query i is target targets[i] and key j is regulator regulators[j]; by default i and j
            themselves.
        Packed: q [T, H, E], k [S, K, E], multiplicity [S] or [S, K], targets [T], regulators [S],
            where bag c owns the keys offsets[c]:offsets[c + 1] and the queries
            query_offsets[c]:query_offsets[c + 1] (default: the same).

        A query or key whose number is not in these sums (-1, say) counts in the norms only. A bag
        lists no number twice. Not differentiable.

        backend: "triton" is the GPU's kernel (float16, bfloat16 and float32, with float32 sums),
            "torch" runs anywhere, "auto" takes the kernel where it can run. The same call gives the
            same bits again on each of them.
        Raises ShapeMismatch (tensors that do not fit), BackendUnavailable (backend="triton" cannot
        run), ValueError (an unknown backend). Source: spherical attention, arXiv
        2505.09326.
        """
        require_tensors(q=q, k=k)
        if q.device != self.signed.device:
            raise ShapeMismatch(
                f"q must be on the sums' device {self.signed.device}; found {q.device}."
            )
        width = q.shape[-1]
        kernel = _choose(backend, q, self.signed.dtype) == "triton"
        kernel = (
            kernel
            and known("edge_sums", q, width, partial(kernel_problem, q.dtype, width, q.device))
            == ""
        )
        dtype = q.dtype if kernel else torch.promote_types(q.dtype, torch.float32)
        call = EdgeCall.of(
            q,
            k,
            multiplicity,
            offsets,
            query_offsets,
            targets,
            regulators,
            eps,
            dtype,
        )
        with torch.no_grad(), torch.autocast(q.device.type, enabled=False):
            for part in parts(
                call, self.targets.start, (len(self.targets), self.signed.shape[1]), kernel
            ):
                self._count(part)
                if kernel:
                    from flashsign.triton.edge_sums import add_weights

                    signed = self.signed[part.rows, part.columns]
                    absolute = (
                        None if self.absolute is None else self.absolute[part.rows, part.columns]
                    )
                    add_weights(part.q, part.k, part.inverse.float(), signed, absolute)
                else:
                    self._add_weights(part)
        return self

    def plus(self, other: EdgeSums) -> EdgeSums:
        """Return the sums over the bags of both.

        Raises ShapeMismatch unless targets, regulators and tables are the same.
        """
        mine, others = self._form(), other._form()
        if mine != others:
            raise ShapeMismatch(
                f"Edge sums can be added only for the same tables; found {mine} and {others}."
            )
        total = EdgeSums(self.targets, 0, absolute=False, pairs=False)
        for name in ("signed", "absolute", "pairs", "listed"):
            a, b = getattr(self, name), getattr(other, name)
            setattr(total, name, None if a is None else a + b)
        return total

    def mean(self, rows: slice = slice(None), *, over: Over = "pairs") -> EdgeMeans:
        """Return means over bags and heads for some rows (default: all), [rows, R]; NaN where no
        bag counts.

        over: "pairs" counts bags that list the target and in which the regulator is present;
            "targets" counts all bags that list the target, where an absent regulator has weight 0.
        Raises ValueError for another `over`, and for "pairs" where these sums do not count pairs.
        """
        count = self._counts(rows, over)
        count = torch.where(count > 0, count, torch.nan)
        absolute = None if self.absolute is None else self.absolute[rows] / count
        return EdgeMeans(self.signed[rows] / count, absolute)

    def top(
        self, k: int, *, by: By = "absolute", over: Over = "pairs", same: Tensor | None = None
    ) -> TopEdges:
        """Return the k strongest regulators of every target, [N, k], or all R of them where k is
        larger.

        Ties in any order.

        by: "absolute" ranks by the mean of |w|, "signed" by |mean of w|; over: as in mean. same
            [R]: the number of the target that each regulator is (-1: none); then no target is its
            own regulator. Pairs without a bag are left out.
        Raises ValueError for an unknown `by` or `over`, and where these sums do not keep what they
        need, ShapeMismatch for another `same`.
        """
        if by not in ("absolute", "signed"):
            raise ValueError(f"by must be absolute or signed, not {by!r}.")
        if by == "absolute" and self.absolute is None:
            raise ValueError(
                'These sums have no absolute weights: pass by="signed", or make them with '
                "absolute=True."
            )
        regulators = self.signed.shape[1]
        if same is not None and (same.shape != (regulators,) or not is_whole(same)):
            raise ShapeMismatch(
                f"same must be integers [{regulators}]; found {same.dtype} {list(same.shape)}."
            )
        found = []
        for rows in _tiles(len(self.targets), max(1, regulators)):
            means = self.mean(rows, over=over)
            ranked = means.absolute if by == "absolute" else means.signed.abs()
            assert ranked is not None
            strength = torch.where(ranked.isnan(), -1.0, ranked)
            if same is not None:
                own = (
                    torch.arange(rows.start, rows.stop, device=strength.device) + self.targets.start
                )
                strength.masked_fill_(own[:, None] == same.to(strength.device), -1.0)
            best = strength.topk(min(k, regulators), dim=1)
            known = best.values >= 0
            at = torch.where(known, best.indices, -1)
            absolute = None if means.absolute is None else taken(means.absolute, at)
            found.append(TopEdges(at, taken(means.signed, at), absolute))
        return stacked(found, min(k, regulators), self.absolute is not None, self.signed)

    def _add_weights(self, part: Part) -> None:
        """Add signed and absolute weights,
        for as many bags or targets at a time as WEIGHTS allows.
        """
        bags, heads, queries, width = part.q.shape
        key_heads, keys = part.k.shape[1:3]
        if self.absolute is None:
            self._add_signed(part)
            return
        step = max(1, WEIGHTS // max(1, heads * queries * keys))
        for start in range(0, bags, step):
            some = slice(start, start + step)
            k = part.k[some, :, None].mT
            for rows in _tiles(queries, max(1, heads * keys)):
                q = part.q[some, :, rows] * part.inverse[some, :, rows, None].to(part.q.dtype)
                w = q.reshape(len(q), key_heads, heads // key_heads, -1, width) @ k
                at = _within(part.rows, rows)
                _add_at(self.signed, at, part.columns, w.sum((0, 1, 2)))
                _add_at(self.absolute, at, part.columns, w.abs_().sum((0, 1, 2)))

    def _add_signed(self, part: Part) -> None:
        """Add signed weights only: the sum over bags and heads is then the inner axis of one matrix
        product.
        """
        k = part.k.repeat_interleave(part.q.shape[1] // part.k.shape[1], 1).mT.flatten(0, 2)
        for rows in _tiles(part.q.shape[2], max(1, k.shape[1])):
            q = part.q[:, :, rows] * part.inverse[:, :, rows, None].to(part.q.dtype)
            _add_at(
                self.signed,
                _within(part.rows, rows),
                part.columns,
                q.permute(2, 0, 1, 3).flatten(1) @ k,
            )

    def _count(self, part: Part) -> None:
        self.listed[part.rows] += part.listed.sum(0)
        if self.pairs is None:
            return
        if bool(part.listed.all()):
            _add_at(
                self.pairs,
                part.rows,
                part.columns,
                part.present.sum(0).int().expand(part.listed.shape[1], -1),
            )
            return
        listed, present = part.listed.float(), part.present.float()
        for rows in _tiles(listed.shape[1], max(1, present.shape[1])):
            both = listed[:, rows].mT @ present
            _add_at(self.pairs, _within(part.rows, rows), part.columns, both.int())

    def _counts(self, rows: slice, over: Over) -> Tensor:
        if over not in ("pairs", "targets"):
            raise ValueError(f"over must be pairs or targets, not {over!r}.")
        if over == "targets":
            return self.listed[rows, None]
        if self.pairs is None:
            raise ValueError(
                'These sums do not count pairs: pass over="targets", or make them with pairs=True.'
            )
        return self.pairs[rows]

    def _form(self) -> str:
        tables = [name for name in ("absolute", "pairs") if getattr(self, name) is not None]
        return f"{self.targets} x {self.signed.shape[1]} with {' and '.join(['signed', *tables])}"


def top_edges(
    replay: Callable[[EdgeSums], object],
    targets: int,
    regulators: int,
    k: int,
    *,
    rows: int | None = None,
    by: By = "absolute",
    over: Over = "pairs",
    same: Tensor | None = None,
    device: torch.device | str | None = None,
) -> TopEdges:
    """Return the k strongest regulators of every target, without a table of all pairs; the bags are
    replayed instead.

    replay(sums) adds every bag to the sums that it gets. It is called once for each tile of `rows`
    targets; queries of other targets cost nothing but their padding. Memory holds targets x k edges
    and rows x regulators sums (by default at most 2^28 numbers). k, by, over, same [regulators]: as
    in EdgeSums.top. Returns TopEdges of [targets, k] each, [targets, regulators] where k is larger.
    Where the tables fit in memory, EdgeSums needs one pass only. Raises what EdgeSums and its top
    raise.

    Example:
        >>> import torch
        >>> from flashsign import top_edges
        >>> q, k = torch.randn(4, 2, 30, 8), torch.randn(4, 2, 50, 8)
        >>> edges = top_edges(lambda sums: sums.add(q, k), 30, 50, k=3, rows=10)
        >>> edges.regulator.shape, edges.signed.shape
        (torch.Size([30, 3]), torch.Size([30, 3]))
    """
    tables = 1 + (by == "absolute") + (over == "pairs")
    rows = max(1, 2**28 // max(1, tables * regulators)) if rows is None else rows
    best = []
    for start in range(0, targets, rows):
        tile = range(start, min(start + rows, targets))
        sums = EdgeSums(
            tile, regulators, absolute=by == "absolute", pairs=over == "pairs", device=device
        )
        replay(sums)
        best.append(sums.top(k, by=by, over=over, same=same))
    return stacked(best, min(k, regulators), by == "absolute", torch.zeros(0, device=device))


def _choose(backend: Backend, q: Tensor, sums: torch.dtype) -> Literal["triton", "torch"]:
    """Return the backend that adds weights to sums of a dtype.

    Raises BackendUnavailable, ValueError.
    """
    reason = (
        "" if sums == torch.float32 else f"The kernel's sums are float32, and these sums are {sums}"
    )
    width, in_transform = q.shape[-1], transformed()
    return choose_backend(
        backend,
        facts_of(q),
        q.dtype,
        width=width,
        method="stream",
        in_transform=in_transform,
        reason=reason,
    )[0]


def kernel_problem(dtype: torch.dtype, width: int, device: torch.device) -> str:
    """Return what is wrong with the kernel, the end of a sentence, "" where nothing is: it is
    compared with float64.
    """
    sizes = (1, 7, 113, 1025) if device.type == "cuda" else (1, 7, 33)
    for genes in sizes:
        bag = Bag(genes, width, dtype, device)
        by_kernel = EdgeSums(genes, genes, device=device).add(bag.q, bag.k, bag.m, backend="triton")
        exact = EdgeSums(genes, genes, dtype=torch.float64, device=device)
        exact.add(bag.q.double(), bag.k.double(), bag.m.double(), backend="torch")
        assert exact.absolute is not None
        # A weight is a product of two numbers rounded to the dtype; signed weights may cancel, so
        # absolute ones count.
        allowed = 8 * max(torch.finfo(dtype).eps, 1e-5)
        for name in ("signed", "absolute"):
            true = getattr(exact, name)
            off = float(
                (getattr(by_kernel, name) - true).norm() / exact.absolute.norm().clamp_min(1e-30)
            )
            if not off <= allowed:
                return (
                    f"its {name} sums are off by {off:.2g} for bags of {genes} genes, where "
                    f"{allowed:.2g} is allowed"
                )
    return ""


def _tiles(rows: int, width: int) -> Iterator[slice]:
    """Yield slices of `rows` rows of `width` numbers each, so that a slice has at most WEIGHTS
    numbers.
    """
    step = max(1, WEIGHTS // width)
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def _within(index: Index, rows: slice) -> Index:
    """Return index[rows], for an index that is a tensor or itself a slice."""
    if isinstance(index, Tensor):
        return index[rows]
    return slice(index.start + rows.start, index.start + rows.stop)


def _add_at(table: Tensor, rows: Index, columns: Index, part: Tensor) -> None:
    """Add a part to table[rows, columns], for rows and columns in which no number occurs twice."""
    if isinstance(rows, slice):
        view = table[rows]
        view[:, columns] += part
    elif isinstance(columns, slice):
        view = table[:, columns]
        view[rows] += part
    else:
        table[rows[:, None], columns] += part
