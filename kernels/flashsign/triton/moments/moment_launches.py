"""Launches of the kernels of moments.

Forward is a pass over the keys and one over the queries; backward two passes over the queries and
one over the keys. E is at most dispatch.WIDEST["moments"].
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from flashsign.attention.call import AttentionCall, pointers
from flashsign.triton.common.launch import start
from flashsign.triton.common.layout import aligned, aligned_call, cdiv
from flashsign.triton.moments import ill_conditioned_rows
from flashsign.triton.moments.moment_backward import key_gradients, query_gradients, sum_queries
from flashsign.triton.moments.moment_forward import attend_moments
from flashsign.triton.moments.moment_sums import add_parts, sum_keys
from flashsign.tuning.block_sizes import RowBlockSizes
from flashsign.tuning.choose import TABLES_ALONE, Tiles, choose_row_block_sizes
from flashsign.tuning.device import multiprocessor_count

Arguments = dict[str, Any]
"""Arguments of a kernel, by name."""

MOST_ROWS = 4096
"""The most keys or queries that one program sums in float32."""
FEWEST_ROWS = 256
"""Sums are not split into parts of fewer rows, which would take longer to write than to compute."""


class MatrixPair(NamedTuple):
    """Two matrices for each bag and key head, A and G or dA and 2 dG: sums
    [bags K, E_PAD V_PAD + E_PAD E_PAD] float32, and their scales, maxima and trace, totals
    [bags K, 4, blocks] (moment_sums.add_parts).
    """

    sums: Tensor
    totals: Tensor


class IllConditionedRows(NamedTuple):
    """Lists of ill-conditioned rows, one for each bag and key head: row_list [C' H N] int32, and
    how many are on each, row_count [bags K] int32 (moment_forward.attend_moments).
    """

    row_list: Tensor
    row_count: Tensor


def forward(
    call: AttentionCall, tiles: Tiles = TABLES_ALONE
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return outputs [C', H, N, V], 1 / n of every row [C', H, N] float32, and sums and totals of A
    and G (MatrixPair).
    """
    o, inverse = call.empty_output(), call.empty_rows()
    passes = Passes(aligned_call(call), tiles)
    listed = passes.empty_lists()
    moments = passes.sum_keys(listed)
    passes.attend_moments(moments, o, inverse, listed)
    passes.attend_rows(moments, o, inverse, listed)
    return o, inverse, *moments


def backward(
    call: AttentionCall,
    grad: Tensor,
    o: Tensor,
    inverse: Tensor,
    sums: Tensor,
    totals: Tensor,
    tiles: Tiles = TABLES_ALONE,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return dq, dk, dv like q, k, v, and dm [C', K, M] float32 of every key head.

    grad: of the output; o, inverse, sums, totals: as forward returned them.
    """
    dq, dk, dv, dm = call.empty_gradients()
    passes = Passes(aligned_call(call), tiles)
    grad, moments = aligned(grad), MatrixPair(sums, totals)
    listed, delta = passes.empty_lists(), call.empty_rows()
    gradients = passes.sum_queries(grad, o, inverse, moments, delta, listed)
    passes.key_gradients(gradients, moments, dk, dv, dm)
    passes.query_gradients(grad, inverse, delta, moments, gradients, dq, listed)
    passes.row_gradients(grad, o, inverse, moments, dq, listed)
    return dq, dk, dv, dm


@dataclass(frozen=True)
class Passes:
    """The launches of a call's kernels; tiles: block sizes of some kernels. What writes into
    arguments returns None.
    """

    call: AttentionCall
    tiles: Tiles = field(default_factory=dict)

    @property
    def block(self) -> int:
        """Entries of a matrix that one program of add_parts adds up."""
        return min(1024, self.call.width**2)

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """Arguments of all kernels, by name."""
        return {**self.call.arguments, "BLOCK": self.block}

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, device=self.call.q.device, dtype=dtype)

    def empty_lists(self) -> IllConditionedRows:
        """Return uninitialised lists, long enough for all rows; add_parts sets their counts to
        zero.
        """
        rows, bags_and_heads = self.call.q.shape[:3].numel(), self.call.bags * self.call.heads[1]
        return IllConditionedRows(
            *(self.empty(count, dtype=torch.int32) for count in (rows, bags_and_heads))
        )

    def empty_parts(self, parts: int) -> tuple[Tensor, Tensor]:
        """Return uninitialised parts of a MatrixPair's sums, and a number for each."""
        bags_and_heads = self.call.bags * self.call.heads[1]
        numbers = self.call.width * (self.call.value_width + self.call.width)
        return self.empty(parts, bags_and_heads, numbers), self.empty(parts, bags_and_heads)

    def splits(self, rows: Tensor, sizes: RowBlockSizes, fewest: int) -> int:
        """Return the number of parts into which the rows of every bag and head are split; rows [C',
        heads, rows, E].

        As many as give every multiprocessor sizes.programs programs. A part has at least `fewest`
        and at most MOST_ROWS rows, on average over the bags.
        """
        mean = cdiv(rows.shape[2], self.call.bags) if self.call.packed else rows.shape[2]
        filling = (
            multiprocessor_count(rows.device) * sizes.programs // (self.call.bags * rows.shape[1])
        )
        return max(1, min(filling, cdiv(mean, fewest)), cdiv(mean, MOST_ROWS))

    def sum_keys(self, listed: IllConditionedRows) -> MatrixPair:
        """Return A and G of all keys. Empty the lists."""
        k, (_, key_heads) = self.call.k, self.call.heads
        sizes = choose_row_block_sizes("moment_keys", k, self.call.width, self.tiles)
        splits = self.splits(k, sizes, FEWEST_ROWS)
        parts, scales = self.empty_parts(splits)
        start(
            sum_keys,
            (splits, key_heads, self.call.bags),
            {
                **self.arguments,
                "parts": parts,
                "scales": scales,
                "BLOCK": sizes.rows,
                "M_BLOCK": 1024,
                "STAGES": sizes.stages,
            },
            num_warps=sizes.warps,
            num_stages=sizes.stages,
        )
        return self.add(parts, scales, listed, scaled=True)

    def sum_queries(
        self,
        grad: Tensor,
        o: Tensor,
        inverse: Tensor,
        moments: MatrixPair,
        delta: Tensor,
        listed: IllConditionedRows,
    ) -> MatrixPair:
        """Return dA and 2 dG of all queries; the first of their totals is 1 for bags that take the
        high-precision path.

        grad, o [C', H, N, V]; inverse [C', H, N]; moments: A and G. Writes delta [C', H, N].
        Empties the lists.
        """
        q, (heads, key_heads) = self.call.q, self.call.heads
        sizes = choose_row_block_sizes("moment_query_sums", q, self.call.width, self.tiles)
        splits = self.splits(q, sizes, FEWEST_ROWS)
        parts, needs_high_precision = self.empty_parts(splits * (heads // key_heads))
        start(
            sum_queries,
            (splits, heads, self.call.bags),
            {
                **self.arguments,
                **pointers(o=o, grad=grad),
                "inverse": inverse,
                "totals": moments.totals,
                "parts": parts,
                "needs_high_precision": needs_high_precision,
                "delta": delta,
                "QUERIES": sizes.rows,
                "STAGES": sizes.stages,
            },
            num_warps=sizes.warps,
            num_stages=sizes.stages,
        )
        return self.add(parts, needs_high_precision, listed, scaled=False)

    def add(
        self, parts: Tensor, scales: Tensor, listed: IllConditionedRows, scaled: bool
    ) -> MatrixPair:
        """Return the sum of parts [parts, bags K, ...]: see moment_sums.add_parts.

        Empty the lists.
        """
        blocks = self.call.width**2 // self.block
        sums, totals = self.empty(*parts.shape[1:]), self.empty(parts.shape[1], 4, blocks)
        start(
            add_parts,
            (blocks, parts.shape[1]),
            {
                **self.arguments,
                "parts": parts,
                "scales": scales,
                "out": sums,
                "totals": totals,
                "row_count": listed.row_count,
                "count": len(parts),
                "PARTS": 1 << (len(parts) - 1).bit_length(),
                "SCALED": scaled,
            },
            num_warps=4,
        )
        return MatrixPair(sums, totals)

    def over_rows(
        self, kernel: Any, rows: Literal["QUERIES", "KEYS"], name: str, arguments: Arguments
    ) -> None:
        """Launch a pass over queries or keys that sums nothing; name: of its block sizes in
        tables.PASSES.
        """
        over = self.call.q if rows == "QUERIES" else self.call.k
        sizes = choose_row_block_sizes(name, over, self.call.width, self.tiles)
        start(
            kernel,
            (self.splits(over, sizes, sizes.rows), over.shape[1], self.call.bags),
            {**self.arguments, **arguments, rows: sizes.rows, "STAGES": sizes.stages},
            num_warps=sizes.warps,
            num_stages=sizes.stages,
        )

    def attend_moments(
        self, moments: MatrixPair, o: Tensor, inverse: Tensor, listed: IllConditionedRows
    ) -> None:
        """Write o [C', H, N, V] and inverse [C', H, N], and list ill-conditioned rows."""
        given = {"moments": moments.sums, "totals": moments.totals, **listed._asdict()}
        written = {**pointers(o=o), "inverse": inverse}
        self.over_rows(attend_moments, "QUERIES", "moment_queries", {**given, **written})

    def query_gradients(
        self,
        grad: Tensor,
        inverse: Tensor,
        delta: Tensor,
        moments: MatrixPair,
        gradients: MatrixPair,
        dq: Tensor,
        listed: IllConditionedRows,
    ) -> None:
        """Write dq, like q, and list ill-conditioned rows; moments: A and G, gradients: dA and 2
        dG.
        """
        arguments = {
            **pointers(grad=grad, dq=dq),
            "inverse": inverse,
            "delta": delta,
            "moments": moments.sums,
            "totals": moments.totals,
            "gradient_totals": gradients.totals,
            **listed._asdict(),
        }
        self.over_rows(query_gradients, "QUERIES", "moment_query_gradients", arguments)

    def key_gradients(
        self, gradients: MatrixPair, moments: MatrixPair, dk: Tensor, dv: Tensor, dm: Tensor
    ) -> None:
        """Write dk, dv, like k, v, and dm [C', K, M]; gradients: dA and 2 dG, moments: A and G."""
        arguments = {
            "gradients": gradients.sums,
            "gradient_totals": gradients.totals,
            "totals": moments.totals,
            **pointers(dk=dk, dv=dv),
            "dm": dm,
        }
        self.over_rows(key_gradients, "KEYS", "moment_key_gradients", arguments)

    def attend_rows(
        self, moments: MatrixPair, o: Tensor, inverse: Tensor, listed: IllConditionedRows
    ) -> None:
        """Write o and inverse of the listed rows by streaming, over what attend_moments wrote."""
        written = {**pointers(o=o), "inverse": inverse}
        self.over_listed(ill_conditioned_rows.attend_rows, moments, listed, written)

    def row_gradients(
        self,
        grad: Tensor,
        o: Tensor,
        inverse: Tensor,
        moments: MatrixPair,
        dq: Tensor,
        listed: IllConditionedRows,
    ) -> None:
        """Write dq of the listed rows by streaming, over what query_gradients wrote."""
        arguments = {**pointers(grad=grad, o=o, dq=dq), "inverse": inverse}
        self.over_listed(ill_conditioned_rows.row_gradients, moments, listed, arguments)

    def over_listed(
        self, kernel: Any, moments: MatrixPair, listed: IllConditionedRows, arguments: Arguments
    ) -> None:
        """Launch a pass over the listed rows, with few programs, as lists are mostly empty."""
        q, (_, key_heads) = self.call.q, self.call.heads
        programs = max(1, 2 * multiprocessor_count(q.device) // (self.call.bags * key_heads))
        start(
            kernel,
            (programs, key_heads, self.call.bags),
            {
                **self.arguments,
                **arguments,
                **listed._asdict(),
                "totals": moments.totals,
                "QUERIES": 64 if q.element_size() == 2 else 32,
                "KEYS": 32,
            },
            num_warps=4,
        )
