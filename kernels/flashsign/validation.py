"""The checks of a call before anything is computed: what does not fit is an error of one sentence.

Letters: C cells (bags), H query heads, K key heads, N queries, M keys, E head width; packed: T queries and S keys of
all bags together.
"""

from __future__ import annotations

import torch
from torch import Tensor

from flashsign.errors import ShapeMismatch
from flashsign.tensor_cache import cached

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_tensors(q: Tensor, k: Tensor, v: Tensor, multiplicity: Tensor | None, packed: bool) -> None:
    """Raises ShapeMismatch, with what was found, unless the tensors fit together (forms: spherical_attention)."""
    form, ndim = ("packed", 3) if packed else ("dense", 4)

    def found() -> str:
        return f"found q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"

    if q.ndim != ndim or k.ndim != ndim:
        expected = "q [T, H, E] and k, v [S, K, E]" if packed else "q [C, H, N, E] and k, v [C, K, M, E]"
        hint = "" if packed else " (packed bags come with offsets)"
        raise ShapeMismatch(f"A {form} call{hint} has {expected}; {found()}.")
    if k.shape != v.shape:
        raise ShapeMismatch(f"k and v must have one shape; {found()}.")
    if q.shape[-1] != k.shape[-1]:
        raise ShapeMismatch(f"q and k must have one head width; {found()}.")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ShapeMismatch(f"Query heads must be a multiple of key heads; {found()}.")
    if not packed and q.shape[0] != k.shape[0]:
        raise ShapeMismatch(f"q and k must have the same number of cells; {found()}.")
    if not (q.dtype == k.dtype == v.dtype and q.dtype in DTYPES):
        raise ShapeMismatch(
            f"q, k and v must share one floating dtype; found {q.dtype}, {k.dtype}, {v.dtype} "
            "(float16, bfloat16, float32 and float64 are taken)."
        )
    if not (q.device == k.device == v.device):
        raise ShapeMismatch(f"q, k and v must be on one device; found {q.device}, {k.device}, {v.device}.")
    if multiplicity is None:
        return
    per_key = k.shape[:1] if packed else (k.shape[0], k.shape[2])
    per_key_and_head = k.shape[:-1]
    if multiplicity.shape not in (per_key, per_key_and_head):
        raise ShapeMismatch(
            f"multiplicity must have shape {list(per_key)} or {list(per_key_and_head)} for k {list(k.shape)}; "
            f"found {list(multiplicity.shape)}."
        )
    if multiplicity.device != k.device:
        raise ShapeMismatch(f"multiplicity must be on k's device {k.device}; found {multiplicity.device}.")


def check_packing(
    q: Tensor, k: Tensor, offsets: Tensor | None, query_offsets: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Both offsets, contiguous, the queries' by default the keys'. Raises ShapeMismatch unless they cut alike."""
    if offsets is None:
        if query_offsets is not None:
            raise ShapeMismatch("query_offsets came without offsets: a packed call needs the keys' offsets too.")
        return None, None
    query_offsets = offsets if query_offsets is None else query_offsets
    check_offsets("offsets", offsets, k)
    check_offsets("query_offsets", query_offsets, q)
    if len(offsets) != len(query_offsets):
        raise ShapeMismatch(
            f"offsets describe {len(offsets) - 1} bags and query_offsets {len(query_offsets) - 1}: make them equal."
        )
    return offsets.contiguous(), query_offsets.contiguous()


def check_offsets(name: str, offsets: Tensor, packed: Tensor) -> None:
    """Raises ShapeMismatch unless offsets [C + 1] can cut packed [T, heads, E]."""
    if offsets.ndim != 1 or len(offsets) == 0 or offsets.dtype not in (torch.int32, torch.int64):
        raise ShapeMismatch(
            f"{name} must be int32 or int64 of shape [C + 1]; found {offsets.dtype} {list(offsets.shape)}."
        )
    if offsets.device != packed.device:
        raise ShapeMismatch(f"{name} must be on the packed rows' device {packed.device}; found {offsets.device}.")


def bag_sizes(name: str, offsets: Tensor, rows: int) -> Tensor:
    """How many rows each bag has, [C]. Raises ShapeMismatch as check_cut."""
    check_cut(name, offsets, rows)
    return offsets.diff()


def check_cut(name: str, offsets: Tensor, rows: int) -> None:
    """Raises ShapeMismatch unless offsets [C + 1] rise from 0 to the number of rows.

    Synchronises with the GPU the first time that it sees these offsets.
    """
    first, last, rising, _ = cached(offsets, "cut", lambda: _cut(offsets))
    if first != 0 or last != rows or not rising:
        raise ShapeMismatch(
            f"{name} must rise from 0 to the {rows} packed rows; found {first} to {last} over {len(offsets) - 1} bags."
        )


def largest_bag_size(offsets: Tensor) -> int:
    """Rows of the largest bag. Does not synchronise with the GPU where check_cut has seen the offsets before."""
    return cached(offsets, "cut", lambda: _cut(offsets))[3]


def _cut(offsets: Tensor) -> tuple[int, int, bool, int]:
    """First, last, whether no offset is below the one before it, and the largest bag's size."""
    sizes = offsets.diff()
    # An empty bag is added, as there may be no bags.
    fewest, most = torch.cat([sizes, sizes.new_zeros(1)]).aminmax()
    first, last, least, largest = torch.stack([offsets[0], offsets[-1], fewest, most]).tolist()
    return first, last, least >= 0, largest
