"""One call of attention, in the kernels' one layout: dense and packed bags alike.

    q [C', H, N, E], k [C', K, M, E], v [C', K, M, V], multiplicity m [C', 1 or K, M] float32

Dense calls have C' = C bags. Packed calls have C' = 1, all bags one after the other, and offsets
[C + 1].
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from flashsign.attention.validation import check_cut, has_values
from flashsign.tuning.block_sizes import ROW_STEP, padded_width


@dataclass(frozen=True)
class AttentionCall:
    """The tensors of a call; offsets and query_offsets [C + 1] cut packed keys and queries, None
    where bags are dense.

    The numbers of a row are adjacent; E and V, at most E, are multiples of ROW_STEP, filled up with
    zeros.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    m: Tensor
    offsets: Tensor | None
    query_offsets: Tensor | None
    eps: float

    @classmethod
    def of(
        cls,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        multiplicity: Tensor,
        offsets: Tensor | None,
        query_offsets: Tensor | None,
        eps: float,
    ) -> AttentionCall:
        """Return the call of the checked arguments of spherical_attention.

        Raises ShapeMismatch unless the offsets cut the packed rows exactly.
        """
        q, k, v = map(_padded, (q, k, v))
        m = multiplicity.to(torch.float32)
        if offsets is not None and query_offsets is not None:
            # The check synchronises with the GPU, which is impossible while a graph is recorded.
            if has_values(offsets) and not (q.is_cuda and torch.cuda.is_current_stream_capturing()):
                check_cut("offsets", offsets, len(k))
                check_cut("query_offsets", query_offsets, len(q))
            q, k, v = heads_first(q), heads_first(k), heads_first(v)
            m = m.mT[None] if m.ndim == 2 else m[None, None]
        elif m.ndim == 2:
            m = m[:, None]
        q, k, v = (x if has_contiguous_rows(x) else x.contiguous() for x in (q, k, v))
        return cls(
            q, k, v, m if m.stride(-1) == 1 else m.contiguous(), offsets, query_offsets, float(eps)
        )

    def output(self, o: Tensor, width: int) -> Tensor:
        """Return the output in the form of the caller's q, with values as wide as the caller's."""
        o = rows_first(o) if self.packed else o
        return o[..., :width] if width < o.shape[-1] else o

    @property
    def packed(self) -> bool:
        return self.offsets is not None

    @property
    def bags(self) -> int:
        return self.q.shape[0] if self.offsets is None else self.offsets.shape[0] - 1

    @property
    def width(self) -> int:
        """The width of tiles of queries and keys."""
        return padded_width(self.q.shape[-1])

    @property
    def value_width(self) -> int:
        """The width of tiles of values."""
        return padded_width(self.v.shape[-1])

    @property
    def heads(self) -> tuple[int, int]:
        return self.q.shape[1], self.k.shape[1]

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """The arguments that kernels have in common, by name: tensors with their strides, how many
        there are of everything, and constants.
        """
        return {
            **pointers(q=self.q, k=self.k, v=self.v),
            "multiplicity": self.m,
            **multiplicity_strides(self.m),
            "offsets": self.offsets,
            "query_offsets": self.query_offsets,
            "queries_all": self.q.shape[2],
            "keys_all": self.k.shape[2],
            "heads": self.q.shape[1],
            "key_heads": self.k.shape[1],
            "eps": self.eps,
            "E": self.q.shape[3],
            "E_PAD": self.width,
            "V": self.v.shape[3],
            "V_PAD": self.value_width,
            "PRECISION": precision(self.q.dtype),
            "HALF": self.q.element_size() == 2,
            "PACKED": self.packed,
        }

    def empty_output(self) -> Tensor:
        """Return a tensor for o [C', H, N, V], uninitialised, with q's order of strides."""
        return torch.empty_like(self.q[..., : self.v.shape[-1]])

    def empty_rows(self) -> Tensor:
        """Return a tensor for a number of every query [C', H, N] float32, uninitialised."""
        return torch.empty(self.q.shape[:3], device=self.q.device, dtype=torch.float32)

    def empty_gradients(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return tensors for dq, dk, dv, and dm [C', K, M] float32 of every key head,
        uninitialised.
        """
        dm = torch.empty(self.k.shape[:3], device=self.k.device, dtype=torch.float32)
        return torch.empty_like(self.q), torch.empty_like(self.k), torch.empty_like(self.v), dm

    def with_(self, **tensors: Any) -> AttentionCall:
        return replace(self, **tensors)


@cache
def _stride_names(name: str) -> tuple[str, str, str]:
    return f"{name}_bag", f"{name}_head", f"{name}_row"


def pointers(**tensors: Tensor) -> dict[str, Any]:
    """Return the arguments q, q_bag, q_head, q_row of each q=rows [C', heads, rows, E]: the tensor
    and its strides but the last.

    The stride of an axis of length one, which may be any number, is passed as 0.
    """
    arguments: dict[str, Any] = dict(tensors)
    for name, rows in tensors.items():
        a, b, c, _ = rows.stride()
        cells, heads, count, _ = rows.shape
        bag, head, row = _stride_names(name)
        arguments[bag] = a if cells > 1 else 0
        arguments[head] = b if heads > 1 else 0
        arguments[row] = c if count > 1 else 0
    return arguments


def multiplicity_strides(m: Tensor) -> dict[str, int]:
    """Return the arguments m_bag, m_head of m [C', 1 or K, rows].

    m_head is 0 where all key heads share multiplicities.
    """
    return {"m_bag": m.stride(0), "m_head": m.stride(1) if m.shape[1] > 1 else 0}


def precision(dtype: torch.dtype) -> str:
    """Return the input_precision of tl.dot.

    float32 products are three TF32 products, as exact as float32 ones and faster.
    """
    return "tf32x3" if dtype == torch.float32 else "tf32"


def _padded(x: Tensor) -> Tensor:
    missing = -x.shape[-1] % ROW_STEP
    return F.pad(x, (0, missing)) if missing else x


def heads_first(rows: Tensor) -> Tensor:
    """Return packed rows [T, heads, E] as [1, heads, T, E], a view."""
    return rows.transpose(0, 1)[None]


def rows_first(rows: Tensor) -> Tensor:
    """Return [1, heads, T, E] as packed rows [T, heads, E], a view: the inverse of heads_first."""
    return rows[0].transpose(0, 1)


def has_contiguous_rows(x: Tensor) -> bool:
    """Return whether the numbers of each row [..., E] are adjacent and no rows overlap.

    Then so are those of empty_like(x).
    """
    *steps, along = x.stride()
    return along == 1 and all(
        n == 1 or step >= x.shape[-1] for n, step in zip(x.shape, steps, strict=False)
    )
