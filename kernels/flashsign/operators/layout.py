"""The one layout of the kernels: dense and packed calls are brought to it, and outputs are brought back from it.

    q [C', H, N, E], k and v [C', K, M, E], multiplicity [C', 1 or K, M]

Dense calls have C' = C bags. Packed calls have C' = 1, all bags one after the other, and offsets [C + 1].
"""

from __future__ import annotations

from torch import Tensor


def heads_first(rows: Tensor) -> Tensor:
    """Packed rows [T, heads, E] -> [1, heads, T, E], a view."""
    return rows.transpose(0, 1)[None]


def rows_first(rows: Tensor) -> Tensor:
    """The inverse of heads_first: [1, heads, T, E] -> packed rows [T, heads, E], a view."""
    return rows[0].transpose(0, 1)


def multiplicity_heads_first(m: Tensor, packed: bool) -> Tensor:
    """Multiplicity of a call, [C, M] or [C, K, M], packed [S] or [S, K] -> [C', 1 or K, M], a view."""
    if packed:
        return m.mT[None] if m.ndim == 2 else m[None, None]
    return m if m.ndim == 3 else m[:, None]


def multiplicity_rows_first(m: Tensor) -> Tensor:
    """The inverse of multiplicity_heads_first for packed bags: [1, 1 or K, S] -> [S, 1 or K], a view."""
    return m[0].mT


def has_contiguous_rows(x: Tensor) -> bool:
    """Whether the numbers of each row [..., E] are adjacent and no rows overlap. Then so are those of empty_like(x)."""
    *steps, along = x.stride()
    return along == 1 and all(n == 1 or step >= x.shape[-1] for n, step in zip(x.shape, steps, strict=False))
