"""Packed bags in torch: bags of similar size are padded to one length, computed as dense ones, and
put back in order.

Letters: T queries and S keys of all bags, C bags, C' bags of a group, N queries and M keys of a
group's largest bag, H query heads, K key heads, E head width, V value width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from flashsign.attention.validation import check_cut


class Slots(NamedTuple):
    """The rows of some bags, padded to L: row [C', L], their numbers in the packed tensor, and
    present [C', L], False for padding, which repeats the first row of its bag.
    """

    row: Tensor
    present: Tensor

    @classmethod
    def of(cls, starts: Tensor, sizes: Tensor) -> Slots:
        """Return slots of bags that begin at rows starts [C'] and have sizes [C'] rows; L is the
        largest size.
        """
        position = torch.arange(int(sizes.max()), device=starts.device)
        present = position < sizes[:, None]
        first = torch.where(sizes > 0, starts, 0)[:, None]
        return cls(torch.where(present, first + position, first), present)

    def pad(self, rows: Tensor) -> Tensor:
        """Return rows [T, ...] as [C', L, ...]."""
        return rows.index_select(0, self.row.reshape(-1)).reshape(*self.row.shape, *rows.shape[1:])

    def pad_heads(self, rows: Tensor) -> Tensor:
        """Return rows [T, heads, E] as [C', heads, L, E]."""
        return self.pad(rows).transpose(1, 2)

    def pad_numbers(self, numbers: Tensor) -> Tensor:
        """Return numbers of rows [T] as [C', L], [T, heads] as [C', heads, L], 0 for padding: it is
        absent.
        """
        padded = self.pad(numbers)
        if padded.ndim == 2:
            return torch.where(self.present, padded, 0)
        return torch.where(self.present[..., None], padded, 0).transpose(1, 2)

    def unpad(self, padded: Tensor) -> Tensor:
        """Return the rows that are present, bag after bag: [C', L, ...] -> [T', ...]."""
        kept = self.present.reshape(-1).nonzero().squeeze(-1)
        return padded.flatten(0, 1).index_select(0, kept)


class Group(NamedTuple):
    """Bags of similar size: the slots of their keys and of their queries."""

    keys: Slots
    queries: Slots

    def dense(
        self, q: Tensor, k: Tensor, v: Tensor, multiplicity: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the group's bags of a packed call as a dense one.

        q [T, H, E], k [S, K, E], v [S, K, V], multiplicity [S] or [S, K] -> q [C', H, N, E], k
        [C', K, M, E], v [C', K, M, V], multiplicity [C', M] or [C', K, M], 0 for padding.
        """
        keys = self.keys
        return (
            self.queries.pad_heads(q),
            keys.pad_heads(k),
            keys.pad_heads(v),
            keys.pad_numbers(multiplicity),
        )


def groups_of_bags(
    offsets: Tensor,
    query_offsets: Tensor,
    keys: int,
    queries: int,
    at_once: Callable[[int, int], int] | None = None,
) -> Iterator[Group]:
    """Yield groups of bags of similar size, in which every bag is once.

    offsets and query_offsets [C + 1] cut `keys` and `queries` packed rows into bags;
    at_once(queries, keys): how many bags a group may have at most, given the largest numbers of
    queries and of keys in it (default: any number).
    Raises ShapeMismatch unless the offsets cut the rows exactly.
    """
    check_cut("offsets", offsets, keys)
    check_cut("query_offsets", query_offsets, queries)
    sizes, query_sizes = offsets.diff(), query_offsets.diff()
    for similar in similar_bags(sizes, query_sizes):
        most = (
            len(similar)
            if at_once is None
            else at_once(int(query_sizes[similar].max()), int(sizes[similar].max()))
        )
        for bags in torch.split(similar, most):
            yield Group(
                Slots.of(offsets[bags], sizes[bags]),
                Slots.of(query_offsets[bags], query_sizes[bags]),
            )


def similar_bags(sizes: Tensor, query_sizes: Tensor) -> Iterator[Tensor]:
    """Yield groups of bags, each the numbers [C'] of bags whose sizes are within a factor of
    sqrt(2): little padding.

    sizes, query_sizes [C]: numbers of keys and of queries of each bag.
    """
    classes = torch.stack([(2 * (size + 1).log2()).ceil() for size in (sizes, query_sizes)])
    _, group = torch.unique(classes, dim=1, return_inverse=True)
    return (torch.nonzero(group == number).squeeze(-1) for number in torch.unique(group))


def packed_attention(
    dense: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    multiplicity: Tensor,
    offsets: Tensor,
    query_offsets: Tensor,
) -> Tensor:
    """Attend over packed bags by `dense`, which computes dense ones (dense_attention).

    q [T, H, E], k [S, K, E], v [S, K, V], multiplicity [S] or [S, K], offsets and query_offsets
    [C + 1] -> [T, H, V]. The queries of a bag without keys get zeros.
    Raises ShapeMismatch unless the offsets cut the rows exactly.
    """
    unpadded, rows = [], []
    for group in groups_of_bags(offsets, query_offsets, len(k), len(q)):
        output = dense(*group.dense(q, k, v, multiplicity))
        unpadded.append(group.queries.unpad(output.transpose(1, 2)))
        rows.append(group.queries.unpad(group.queries.row))
    if not unpadded:
        return q[..., : v.shape[-1]] * 0
    row = torch.cat(rows)
    back = torch.empty_like(row)
    back[row] = torch.arange(len(row), device=row.device)
    return torch.cat(unpadded).index_select(0, back)
