"""Packed bags as dense ones: bags of similar size are padded to one length, and the door's one form is dense.

Letters: T queries and S keys of all bags together, C bags, H query heads, K key heads, E head width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from flashsign.validation import bag_sizes


class Slots(NamedTuple):
    """Where the padded rows of some bags come from: row [C', L] of the packed tensor, and whether present [C', L]."""

    row: Tensor
    present: Tensor

    @classmethod
    def of(cls, starts: Tensor, sizes: Tensor) -> Slots:
        """Slots of bags that begin at starts [C'] and have sizes [C'] rows; L is the largest size."""
        position = torch.arange(int(sizes.max()), device=starts.device)
        present = position < sizes[:, None]
        return cls(torch.where(present, starts[:, None] + position, 0), present)

    def pad(self, rows: Tensor) -> Tensor:
        """rows [T, ...] -> [C', L, ...], zeros where no row is."""
        padded = rows.index_select(0, self.row.reshape(-1)).reshape(*self.row.shape, *rows.shape[1:])
        return torch.where(self.present.reshape(*self.present.shape, *[1] * (rows.ndim - 1)), padded, 0)

    def unpad(self, padded: Tensor) -> Tensor:
        """The rows that are present, bag after bag: [C', L, ...] -> [T', ...]."""
        kept = self.present.reshape(-1).nonzero().squeeze(-1)
        return padded.flatten(0, 1).index_select(0, kept)


def pad_attention(
    dense: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    multiplicity: Tensor,
    offsets: Tensor,
    query_offsets: Tensor,
) -> Tensor:
    """`dense(q, k, v, multiplicity)` over packed bags: q [T, H, E], k, v [S, K, E], multiplicity [S(, K)] -> [T, H, E].

    Bags without keys read zeros. Raises ShapeMismatch when offsets do not cut the rows exactly.
    """
    sizes, query_sizes = bag_sizes("offsets", offsets, len(k)), bag_sizes("query_offsets", query_offsets, len(q))
    outputs, rows = [], []
    for bags in similar_bags(sizes, query_sizes):
        keys = Slots.of(offsets[bags], sizes[bags])
        queries = Slots.of(query_offsets[bags], query_sizes[bags])
        m = keys.pad(multiplicity)
        padded = (queries.pad(q).transpose(1, 2), keys.pad(k).transpose(1, 2), keys.pad(v).transpose(1, 2))
        output = dense(*padded, m if m.ndim == 2 else m.transpose(1, 2))
        outputs.append(queries.unpad(output.transpose(1, 2)))
        rows.append(queries.unpad(queries.row))
    if not outputs:
        return q * 0
    return in_place(torch.cat(outputs), torch.cat(rows))


def in_place(found: Tensor, rows: Tensor) -> Tensor:
    """found [T, ...], of which number i belongs into row rows[i], in the order of the rows."""
    back = torch.empty_like(rows)
    back[rows] = torch.arange(len(rows), device=rows.device)
    return found.index_select(0, back)


def similar_bags(sizes: Tensor, query_sizes: Tensor) -> Iterator[Tensor]:
    """Groups of bags [C'] whose sizes are within a factor of sqrt(2), so that padding stays small."""
    classes = torch.stack([(2 * (size + 1).log2()).ceil() for size in (sizes, query_sizes)])
    _, group = torch.unique(classes, dim=1, return_inverse=True)
    return (torch.nonzero(group == number).squeeze(-1) for number in torch.unique(group))
