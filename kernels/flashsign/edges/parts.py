"""The checked arguments of EdgeSums.add, cut into parts: dense bags with scaled keys, norms, and
places in the sums.

Letters: C bags, H query heads, K key heads, n queries and m keys of a bag, E head width; N x R: the
sums' table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from flashsign.attention.validation import check_packing, check_tensors, is_whole
from flashsign.eager.dense import scale_multiplicity
from flashsign.eager.packing import Slots, groups_of_bags
from flashsign.eager.streaming import inverse_norm
from flashsign.errors import ShapeMismatch

NUMBERS = 2**24
"""Most numbers of queries and keys that are converted to float64 or padded at one time (128 MiB in
float64).
"""
LAID_OUT = 2**27
"""Most numbers of queries and keys that are laid out by target and regulator at one time (512 MiB
in float32).
"""

Index = slice | Tensor
"""Row or column numbers of the sums: a slice where they follow each other, else an int64 tensor."""


class EdgeCall(NamedTuple):
    """The arguments of a call.

    Dense: q [C, H, n, E], k [C, K, m, E], multiplicity [C, m] or [C, K, m], targets [n], regulators
        [m].
    Packed: q [T, H, E], k [S, K, E], multiplicity [S] or [S, K], targets [T], regulators [S].
    dtype: that of the products.
    """

    q: Tensor
    k: Tensor
    multiplicity: Tensor
    offsets: Tensor | None
    query_offsets: Tensor | None
    targets: Tensor | None
    regulators: Tensor | None
    eps: float
    dtype: torch.dtype

    @classmethod
    def of(
        cls,
        q: Tensor,
        k: Tensor,
        multiplicity: Tensor | None,
        offsets: Tensor | None,
        query_offsets: Tensor | None,
        targets: Tensor | None,
        regulators: Tensor | None,
        eps: float,
        dtype: torch.dtype,
    ) -> EdgeCall:
        """Raise ShapeMismatch unless all tensors fit together."""
        packed = offsets is not None
        check_tensors(q, k, k, multiplicity, packed)
        offsets, query_offsets = check_packing(q, k, offsets, query_offsets)
        if packed and (targets is None or regulators is None):
            raise ShapeMismatch(
                "Each packed bag lists its own genes: pass targets [T] and regulators [S]."
            )
        queries, keys = (len(q), len(k)) if packed else (q.shape[2], k.shape[2])
        for name, numbers, count in (
            ("targets", targets, queries),
            ("regulators", regulators, keys),
        ):
            if numbers is None:
                continue
            if numbers.shape != (count,) or not is_whole(numbers):
                raise ShapeMismatch(
                    f"{name} must be integers of shape [{count}]; found {numbers.dtype} "
                    f"{list(numbers.shape)}."
                )
            if numbers.device != q.device:
                raise ShapeMismatch(
                    f"{name} must be on q's device {q.device}; found {numbers.device}."
                )
        if multiplicity is None:
            multiplicity = k.new_ones(k.shape[:1] if packed else (k.shape[0], k.shape[2]))
        return cls(q, k, multiplicity, offsets, query_offsets, targets, regulators, eps, dtype)


class Part(NamedTuple):
    """Some bags as one dense call. Query i belongs to row rows[i] of the sums, and key j to column
    columns[j].

    q [C, H, n, E], k [C, K, m, E] (scaled by its multiplicity), one dtype. inverse [C, H, n]: 1 /
    n_i over the number of heads. listed [C, n], present [C, m] bool: which queries and keys the
    bags have.
    """

    q: Tensor
    k: Tensor
    inverse: Tensor
    listed: Tensor
    present: Tensor
    rows: Index
    columns: Index


def inverse_norms(q: Tensor, k: Tensor, eps: float) -> Tensor:
    """Return 1 / n_i of every query, from float64 moments.

    q [C, H, n, E], k (scaled) [C, K, m, E] -> [C, H, n] float64.

    z = q G q^T, G = sum_j k_j^T k_j, takes (H n + K m) E^2 operations where a pass over the keys
    takes H n m E. The product of two float32 numbers is exact in float64, so these moments are
    right for ill-conditioned rows too. Where the inputs are float64, such a row keeps a relative
    error of 0.13 u / max(rho, eps) (kernels/README.md).
    """
    bags, heads, queries, width = q.shape
    found = []
    for some in _slices(
        bags, max(1, NUMBERS // max(1, width * (heads * queries + k.shape[1] * k.shape[2])))
    ):
        wide = k[some].double()
        g = wide.mT @ wide
        t = g.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None]
        rows = q[some].double().reshape(len(wide), k.shape[1], heads // k.shape[1] * queries, width)
        z = ((rows @ g) * rows).sum(-1).clamp_min(0)
        found.append(
            inverse_norm(z, eps * rows.square().sum(-1) * t).reshape(len(wide), heads, queries)
        )
    return torch.cat(found) if found else q.new_zeros(q.shape[:3], dtype=torch.float64)


def parts(call: EdgeCall, first: int, shape: tuple[int, int], whole: bool) -> Iterator[Part]:
    """Yield the parts of a call for sums of shape [N, R] = shape, whose first target is number
    `first`.

    Queries and keys that are not in the sums count in the norms only. whole: rows and columns of
    every part must be slices, as the Triton kernel adds to contiguous tables.
    Raises ShapeMismatch for offsets that do not cut the rows, and for a bag that lists a gene
    twice.
    """
    if call.offsets is None or call.query_offsets is None:
        yield from _dense(call, first, shape, whole)
        return

    def at_once(queries: int, keys: int) -> int:
        step = max(1, NUMBERS // max(1, _numbers(call, queries, keys)))
        return min(step, max(1, LAID_OUT // max(1, _numbers(call, *shape)))) if whole else step

    for group in groups_of_bags(
        call.offsets, call.query_offsets, len(call.k), len(call.q), at_once
    ):
        padded = _padded(call, group.queries, group.keys, first, shape)
        yield from (_laid_out(padded, shape),) if whole else _one_by_one(padded)


def _slices(count: int, step: int) -> Iterator[slice]:
    return (slice(start, start + step) for start in range(0, count, step))


def _numbers(call: EdgeCall, queries: int, keys: int) -> int:
    return call.q.shape[-1] * (call.q.shape[1] * queries + call.k.shape[1] * keys)


def _dense(call: EdgeCall, first: int, shape: tuple[int, int], whole: bool) -> Iterator[Part]:
    k, present = scaled(call.k, call.multiplicity, call.dtype)
    q = call.q.to(call.dtype)
    queries, rows = _rows_within("targets", call.targets, q.shape[2], first, shape[0])
    keys, columns = _rows_within("regulators", call.regulators, k.shape[2], 0, shape[1])
    inverse = inverse_norms(q[:, :, queries], k, call.eps) / q.shape[1]
    listed = present.new_ones(len(q), inverse.shape[2])
    part = Part(q[:, :, queries], k[:, :, keys], inverse, listed, present[:, keys], rows, columns)
    if not whole or (isinstance(rows, slice) and isinstance(columns, slice)):
        yield part
        return
    own_rows, own_columns = (
        _range(index, q.device).expand(len(q), -1) for index in (rows, columns)
    )
    step = max(1, LAID_OUT // max(1, _numbers(call, *shape)))
    tensors = (part.q, part.k, part.inverse, listed, part.present, own_rows, own_columns)
    for some in _slices(len(q), step):
        yield _laid_out(_Padded(*(x[some] for x in tensors)), shape)


class _Padded(NamedTuple):
    """As Part, but each bag has its own rows [C, n] and columns [C, m] of the sums, -1 for what is
    not in them.
    """

    q: Tensor
    k: Tensor
    inverse: Tensor
    listed: Tensor
    present: Tensor
    rows: Tensor
    columns: Tensor


def _padded(
    call: EdgeCall, queries: Slots, keys: Slots, first: int, shape: tuple[int, int]
) -> _Padded:
    assert call.targets is not None and call.regulators is not None
    k, present = scaled(keys.pad_heads(call.k), keys.pad_numbers(call.multiplicity), call.dtype)
    q = queries.pad_heads(call.q).to(call.dtype)
    inverse = inverse_norms(q, k, call.eps) / q.shape[1]
    rows = _inside("targets", queries.pad(call.targets), queries.present, first, shape[0])
    columns = _inside("regulators", keys.pad(call.regulators), keys.present & present, 0, shape[1])
    return _Padded(q, k, inverse, rows >= 0, columns >= 0, rows, columns)


def _one_by_one(padded: _Padded) -> Iterator[Part]:
    """Yield a part for every bag, with those of its queries and keys that are in the sums."""
    for bag in range(len(padded.q)):
        own, queries, keys = (
            slice(bag, bag + 1),
            *(x[bag].nonzero()[:, 0] for x in (padded.listed, padded.present)),
        )
        q = padded.q[own][:, :, queries]
        k = padded.k[own][:, :, keys]
        inverse = padded.inverse[own][:, :, queries]
        masks = padded.listed[own][:, queries], padded.present[own][:, keys]
        yield Part(q, k, inverse, *masks, padded.rows[bag, queries], padded.columns[bag, keys])


def _laid_out(padded: _Padded, shape: tuple[int, int]) -> Part:
    """Return one part whose queries are all targets and whose keys are all regulators.

    Zeros for what a bag does not list.
    """
    q, inverse, listed = (
        _by_number(x, padded.rows, shape[0])
        for x in (padded.q, padded.inverse, padded.listed[:, None])
    )
    k, present = (
        _by_number(x, padded.columns, shape[1]) for x in (padded.k, padded.present[:, None])
    )
    return Part(q, k, inverse, listed[:, 0], present[:, 0], slice(0, shape[0]), slice(0, shape[1]))


def _by_number(rows: Tensor, at: Tensor, size: int) -> Tensor:
    """Return rows [C, heads, n, ...] by their numbers, [C, heads, size, ...].

    Row i of bag c goes to number at[c, i]; -1 leaves it out.
    """
    bag, row = (at >= 0).nonzero(as_tuple=True)
    out = rows.new_zeros(len(rows), size, rows.shape[1], *rows.shape[3:])
    out[bag, at[bag, row]] = rows.transpose(1, 2)[bag, row]
    return out.transpose(1, 2)


def scaled(k: Tensor, multiplicity: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return keys scaled by multiplicities [C, K, m, E], and those that are present [C, m].

    k [C, K, m, E], multiplicity [C, m] or [C, K, m], divided by a power of two near the bag's
    largest, which changes no weight. Absent keys are zeros, whatever they held.
    """
    wide = torch.promote_types(dtype, torch.float32)
    m = scale_multiplicity(
        (multiplicity if multiplicity.ndim == 3 else multiplicity[:, None]).to(wide)
    )
    rows = torch.where(m[..., None] == 0, 0, m[..., None] * k.to(wide)).to(dtype)
    return rows, (m != 0).any(1)


def _rows_within(
    name: str, ids: Tensor | None, count: int, first: int, size: int
) -> tuple[Index, Index]:
    """Return which of `count` queries or keys have a number of these, and the numbers less `first`.

    The numbers are from `first` to first + size - 1.

    ids [count]: their numbers, None for 0, 1, 2, ...; name: of the argument, for errors.
    """
    if ids is None:
        stop = max(first, min(count, first + size))
        return slice(first, stop), slice(0, stop - first)
    at = _inside(name, ids[None], torch.ones_like(ids[None], dtype=torch.bool), first, size)[0]
    kept = (at >= 0).nonzero()[:, 0]
    return _run(kept), _run(at[kept])


def _inside(name: str, ids: Tensor, listed: Tensor, first: int, size: int) -> Tensor:
    """Return ids [C, n] less `first`, and -1 where that is outside of `size` or `listed` [C, n] is
    False.

    Raises ShapeMismatch where a bag has a number twice; name: of the argument.
    """
    at = torch.where(listed & (ids >= first) & (ids < first + size), ids - first, -1)
    ordered = at.sort(1).values
    double = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    if double.any():
        gene = int(ordered[:, 1:][double][0]) + first
        raise ShapeMismatch(
            f"{name}: a bag lists number {gene} twice; add their multiplicities and list it once."
        )
    return at


def _run(ids: Tensor) -> Index:
    """Return ids as a slice where they follow each other, so that the sums are indexed without a
    copy.
    """
    if not len(ids):
        return slice(0, 0)
    first = int(ids[0])
    follows = bool((ids == torch.arange(first, first + len(ids), device=ids.device)).all())
    return slice(first, first + len(ids)) if follows else ids


def _range(index: Index, device: torch.device) -> Tensor:
    return (
        index if isinstance(index, Tensor) else torch.arange(index.start, index.stop, device=device)
    )
