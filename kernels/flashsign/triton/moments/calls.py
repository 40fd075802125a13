"""Launches of the kernels of moments.

Forward is a pass over the keys and one over the queries; backward two passes over the queries and one over the keys.
The kernels' one layout (common.layout): q [C', H, N, E], k and v [C', K, M, E], multiplicity m [C', 1 or K, M] float32,
any strides with E adjacent; packed bags have C' = 1 and offsets [bags + 1]. E is at most dispatch.WIDEST["moments"].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from flashsign.triton.common.launch import start
from flashsign.triton.common.layout import aligned, cdiv, multiplicity_strides, precision, strides
from flashsign.triton.moments import ill_conditioned_rows
from flashsign.triton.moments.backward import key_gradients, query_gradients, sum_queries
from flashsign.triton.moments.forward import attend_moments
from flashsign.triton.moments.sums import add_parts, sum_keys
from flashsign.tuning.block_sizes import RowBlockSizes
from flashsign.tuning.choose import choose_row_block_sizes
from flashsign.tuning.device import multiprocessor_count
from flashsign.tuning.head_width import moment_block, padded_width

Arguments = dict[str, Any]
"""Arguments of a kernel, by name."""

MOST_ROWS = 4096
"""The most keys or queries that one program sums in float32."""
FEWEST_ROWS = 256
"""Sums are not split into parts of fewer rows, which would take longer to write than to compute."""


class MatrixPair(NamedTuple):
    """Two matrices for each bag and key head, A and G or dA and 2 dG: sums [bags K, 2, E_PAD, E_PAD] float32, and their
    scales, maxima and trace, totals [bags K, 4, blocks] (sums.add_parts)."""

    sums: Tensor
    totals: Tensor


class IllConditionedRows(NamedTuple):
    """Lists of ill-conditioned rows, one for each bag and key head: rows [C' H N] int32, and how many are on each,
    counts [bags K] int32 (forward.attend_moments)."""

    rows: Tensor
    counts: Tensor

    @property
    def arguments(self) -> Arguments:
        return {"row_list": self.rows, "row_count": self.counts}


def forward(
    q: Tensor, k: Tensor, v: Tensor, m: Tensor, offsets: Tensor | None, query_offsets: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Outputs like q, 1 / n of every row [C', H, N] float32, and sums and totals of A and G (MatrixPair)."""
    call = Call(aligned(q), aligned(k), aligned(v), m, offsets, query_offsets, eps)
    o = torch.empty_like(q)
    inverse = torch.empty(q.shape[:3], device=q.device, dtype=torch.float32)
    listed = call.empty_lists()
    moments = call.sum_keys(listed)
    call.attend_moments(moments, o, inverse, listed)
    call.attend_rows(moments, o, inverse, listed)
    return o, inverse, *moments


def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, m: Tensor, o: Tensor, inverse: Tensor, sums: Tensor, totals: Tensor,
    offsets: Tensor | None, query_offsets: Tensor | None, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """dq, dk, dv like q, k, v, and dm [C', K, M] float32 of every key head.

    grad: of the output; o, inverse, sums, totals: as forward returned them.
    """
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    dm = torch.empty(k.shape[:3], device=k.device, dtype=torch.float32)
    call = Call(aligned(q), aligned(k), aligned(v), m, offsets, query_offsets, eps)
    grad, moments = aligned(grad), MatrixPair(sums, totals)
    listed, delta = call.empty_lists(), torch.empty_like(inverse)
    gradients = call.sum_queries(grad, o, inverse, moments, delta, listed)
    call.key_gradients(gradients, moments, dk, dv, dm)
    call.query_gradients(grad, inverse, delta, moments, gradients, dq, listed)
    call.row_gradients(grad, o, inverse, moments, dq, listed)
    return dq, dk, dv, dm


@dataclass(frozen=True)
class Call:
    """The tensors of a call, and the launches of its kernels. Those that write into arguments return None."""

    q: Tensor
    k: Tensor
    v: Tensor
    m: Tensor
    offsets: Tensor | None
    query_offsets: Tensor | None
    eps: float

    @property
    def bags(self) -> int:
        return self.q.shape[0] if self.offsets is None else len(self.offsets) - 1

    @property
    def heads(self) -> tuple[int, int]:
        """Numbers of query heads and of key heads."""
        return self.q.shape[1], self.k.shape[1]

    @property
    def width(self) -> int:
        return padded_width(self.q.shape[-1])

    @property
    def half(self) -> bool:
        """Whether numbers have 16 bits."""
        return self.q.element_size() == 2

    @property
    def block(self) -> int:
        """Entries of a matrix that one program of add_parts adds up."""
        return moment_block(self.width)

    @property
    def widths(self) -> Arguments:
        return {"E": self.q.shape[-1], "E_PAD": self.width}

    @property
    def head_counts(self) -> Arguments:
        heads, key_heads = self.heads
        return {"heads": heads, "key_heads": key_heads}

    @property
    def key_strides(self) -> Arguments:
        return {**strides(k=self.k, v=self.v), **multiplicity_strides(self.m)}

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, device=self.q.device, dtype=dtype)

    def empty_lists(self) -> IllConditionedRows:
        """Uninitialised lists, long enough for all rows; add_parts sets their counts to zero."""
        rows = self.q.shape[0] * self.q.shape[1] * self.q.shape[2]
        return IllConditionedRows(
            self.empty(rows, dtype=torch.int32), self.empty(self.bags * self.heads[1], dtype=torch.int32)
        )

    def empty_parts(self, parts: int) -> tuple[Tensor, Tensor]:
        """Uninitialised parts of a MatrixPair's sums, and a number for each."""
        bags_and_heads = self.bags * self.heads[1]
        return self.empty(parts, bags_and_heads, 2, self.width, self.width), self.empty(parts, bags_and_heads)

    def splits(self, rows: Tensor, sizes: RowBlockSizes, fewest: int) -> int:
        """Into how many parts the rows of every bag and head are split; rows [C', heads, rows, E].

        As many as give every multiprocessor sizes.programs programs. A part has at least `fewest` and at most MOST_ROWS
        rows, on average over the bags.
        """
        mean = rows.shape[2] if self.offsets is None else cdiv(rows.shape[2], self.bags)
        filling = multiprocessor_count(rows.device) * sizes.programs // (self.bags * rows.shape[1])
        return max(1, min(filling, cdiv(mean, fewest)), cdiv(mean, MOST_ROWS))

    def sum_keys(self, listed: IllConditionedRows) -> MatrixPair:
        """A and G of all keys. Empties the lists."""
        sizes, (_, key_heads) = choose_row_block_sizes("moment_keys", self.k, self.width), self.heads
        splits = self.splits(self.k, sizes, FEWEST_ROWS)
        parts, scales = self.empty_parts(splits)
        start(
            sum_keys,
            (splits, key_heads, self.bags),
            tensors={
                "k": self.k,
                "v": self.v,
                "multiplicity": self.m,
                "offsets": self.offsets,
                "parts": parts,
                "scales": scales,
            },
            numbers={**self.key_strides, "rows": self.k.shape[2], "key_heads": key_heads},
            constants={
                **self.widths,
                "BLOCK": sizes.rows,
                "M_BLOCK": 1024,
                "STAGES": sizes.stages,
                "PRECISION": precision(self.q.dtype),
                "PACKED": self.offsets is not None,
            },
            num_warps=sizes.warps,
            num_stages=sizes.stages,
        )
        return self.add(parts, scales, listed, scaled=True)

    def sum_queries(
        self, grad: Tensor, o: Tensor, inverse: Tensor, moments: MatrixPair, delta: Tensor, listed: IllConditionedRows
    ) -> MatrixPair:
        """dA and 2 dG of all queries; the first of their totals is 1 for bags that take the high-precision path.

        grad, o like q; inverse [C', H, N]; moments: A and G. Writes delta [C', H, N]. Empties the lists.
        """
        q, (heads, key_heads) = self.q, self.heads
        sizes = choose_row_block_sizes("moment_query_sums", q, self.width)
        splits = self.splits(q, sizes, FEWEST_ROWS)
        parts, needs_high_precision = self.empty_parts(splits * (heads // key_heads))
        start(
            sum_queries,
            (splits, heads, self.bags),
            tensors={
                "q": q,
                "o": o,
                "grad": grad,
                "inverse": inverse,
                "totals": moments.totals,
                "query_offsets": self.query_offsets,
                "parts": parts,
                "needs_high_precision": needs_high_precision,
                "delta": delta,
            },
            numbers={
                **strides(q=q, o=o, grad=grad),
                "queries_all": q.shape[2],
                **self.head_counts,
                "eps": self.eps,
            },
            constants={
                **self.widths,
                "QUERIES": sizes.rows,
                "STAGES": sizes.stages,
                "BLOCK": self.block,
                "PRECISION": precision(q.dtype),
                "PACKED": self.offsets is not None,
            },
            num_warps=sizes.warps,
            num_stages=sizes.stages,
        )
        return self.add(parts, needs_high_precision, listed, scaled=False)

    def add(self, parts: Tensor, scales: Tensor, listed: IllConditionedRows, scaled: bool) -> MatrixPair:
        """The sum of parts [parts, bags K, 2, E_PAD, E_PAD]: see sums.add_parts. Empties the lists."""
        sums, totals = self.empty(*parts.shape[1:]), self.empty(parts.shape[1], 4, self.width**2 // self.block)
        start(
            add_parts,
            (self.width**2 // self.block, parts.shape[1]),
            tensors={"parts": parts, "scales": scales, "out": sums, "totals": totals, "row_count": listed.counts},
            numbers={"count": len(parts)},
            constants={
                "E_PAD": self.width,
                "BLOCK": self.block,
                "PARTS": 1 << (len(parts) - 1).bit_length(),
                "SCALED": scaled,
            },
            num_warps=4,
        )
        return MatrixPair(sums, totals)

    def over_rows(
        self, kernel: Any, rows: Literal["QUERIES", "KEYS"], name: str, tensors: Arguments, numbers: Arguments
    ) -> None:
        """Launches a pass over queries or keys that sums nothing; name: of its block sizes in tables.PASSES."""
        over = self.q if rows == "QUERIES" else self.k
        sizes = choose_row_block_sizes(name, over, self.width)
        start(
            kernel,
            (self.splits(over, sizes, sizes.rows), over.shape[1], self.bags),
            tensors=tensors,
            numbers=numbers,
            constants={
                **self.widths,
                rows: sizes.rows,
                "STAGES": sizes.stages,
                "BLOCK": self.block,
                "PRECISION": precision(self.q.dtype),
                "HALF": self.half,
                "PACKED": self.offsets is not None,
            },
            num_warps=sizes.warps,
            num_stages=sizes.stages,
        )

    def attend_moments(self, moments: MatrixPair, o: Tensor, inverse: Tensor, listed: IllConditionedRows) -> None:
        """Writes o, like q, and inverse [C', H, N], and lists ill-conditioned rows."""
        q = self.q
        self.over_rows(
            attend_moments,
            "QUERIES",
            "moment_queries",
            tensors={
                "q": q,
                "moments": moments.sums,
                "totals": moments.totals,
                "query_offsets": self.query_offsets,
                "o": o,
                "inverse": inverse,
                **listed.arguments,
            },
            numbers={
                **strides(q=q, o=o),
                "queries_all": q.shape[2],
                **self.head_counts,
                "eps": self.eps,
            },
        )

    def query_gradients(
        self, grad: Tensor, inverse: Tensor, delta: Tensor, moments: MatrixPair, gradients: MatrixPair, dq: Tensor,
        listed: IllConditionedRows,
    ) -> None:  # fmt: skip
        """Writes dq, like q, and lists ill-conditioned rows; moments: A and G, gradients: dA and 2 dG."""
        q = self.q
        self.over_rows(
            query_gradients,
            "QUERIES",
            "moment_query_gradients",
            tensors={
                "q": q,
                "grad": grad,
                "inverse": inverse,
                "delta": delta,
                "moments": moments.sums,
                "totals": moments.totals,
                "gradient_totals": gradients.totals,
                "query_offsets": self.query_offsets,
                "dq": dq,
                **listed.arguments,
            },
            numbers={
                **strides(q=q, grad=grad, dq=dq),
                "queries_all": q.shape[2],
                **self.head_counts,
                "eps": self.eps,
            },
        )

    def key_gradients(self, gradients: MatrixPair, moments: MatrixPair, dk: Tensor, dv: Tensor, dm: Tensor) -> None:
        """Writes dk, dv, like k, v, and dm [C', K, M]; gradients: dA and 2 dG, moments: A and G."""
        self.over_rows(
            key_gradients,
            "KEYS",
            "moment_key_gradients",
            tensors={
                "k": self.k,
                "v": self.v,
                "multiplicity": self.m,
                "offsets": self.offsets,
                "gradients": gradients.sums,
                "gradient_totals": gradients.totals,
                "totals": moments.totals,
                "dk": dk,
                "dv": dv,
                "dm": dm,
            },
            numbers={
                **self.key_strides,
                **strides(dk=dk, dv=dv),
                "rows": self.k.shape[2],
                "key_heads": self.k.shape[1],
                "eps": self.eps,
            },
        )

    def attend_rows(self, moments: MatrixPair, o: Tensor, inverse: Tensor, listed: IllConditionedRows) -> None:
        """Writes o and inverse of the listed rows by streaming, over what attend_moments wrote."""
        self.over_listed(
            ill_conditioned_rows.attend_rows,
            tensors={
                "q": self.q,
                "k": self.k,
                "v": self.v,
                "multiplicity": self.m,
                "offsets": self.offsets,
                "query_offsets": self.query_offsets,
                "totals": moments.totals,
                **listed.arguments,
                "o": o,
                "inverse": inverse,
            },
            numbers={**strides(q=self.q), **self.key_strides, **strides(o=o)},
        )

    def row_gradients(
        self, grad: Tensor, o: Tensor, inverse: Tensor, moments: MatrixPair, dq: Tensor, listed: IllConditionedRows
    ) -> None:
        """Writes dq of the listed rows by streaming, over what query_gradients wrote."""
        self.over_listed(
            ill_conditioned_rows.row_gradients,
            tensors={
                "q": self.q,
                "k": self.k,
                "v": self.v,
                "grad": grad,
                "o": o,
                "multiplicity": self.m,
                "inverse": inverse,
                "offsets": self.offsets,
                "query_offsets": self.query_offsets,
                "totals": moments.totals,
                **listed.arguments,
                "dq": dq,
            },
            numbers={
                **strides(q=self.q),
                **self.key_strides,
                **strides(grad=grad, o=o, dq=dq),
            },
        )

    def over_listed(self, kernel: Any, tensors: Arguments, numbers: Arguments) -> None:
        """Launches a pass over the listed rows, with few programs, as lists are mostly empty. numbers: strides."""
        _, key_heads = self.heads
        programs = max(1, 2 * multiprocessor_count(self.q.device) // (self.bags * key_heads))
        start(
            kernel,
            (programs, key_heads, self.bags),
            tensors=tensors,
            numbers={
                **numbers,
                "queries_all": self.q.shape[2],
                "keys_all": self.k.shape[2],
                **self.head_counts,
                "eps": self.eps,
            },
            constants={
                **self.widths,
                "QUERIES": 64 if self.half else 32,
                "KEYS": 32,
                "BLOCK": self.block,
                "PRECISION": precision(self.q.dtype),
                "PACKED": self.offsets is not None,
            },
            num_warps=4,
        )
