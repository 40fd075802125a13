"""Bags of genes: what the data layer hands to the model.

Letters: C cells, N genes of a dense bag, T genes of all packed bags together.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Bags:
    """C cells as bags of genes with multiplicities; one thing in two forms.

    *Dense*: every cell over the same gene list. genes [N], multiplicity [C, N], offsets None.
    *Packed*: every cell with its own genes. genes [T], multiplicity [T], offsets [C + 1]; cell c owns
    the slice offsets[c]:offsets[c + 1].

    genes are int64 positions in the vocabulary; multiplicity is float32 and not negative. Multiplicity 0 is
    a gene that is absent as a key (not expressed, masked, knocked out) and still present as a query. The basal
    gene is not listed: the model adds it to every bag, with multiplicity `basal` [C] (None: 1).
    regulators [C, R]: the regulators' multiplicities, masked ones too, for the layer that never reads a gene for itself
    (None: as they are in the bag, which a share of the genes does not have).
    """

    genes: Tensor
    multiplicity: Tensor
    offsets: Tensor | None = None
    basal: Tensor | None = None
    regulators: Tensor | None = None

    @property
    def packed(self) -> bool:
        return self.offsets is not None

    @property
    def cells(self) -> int:
        return len(self.multiplicity) if self.offsets is None else len(self.offsets) - 1

    def pack(self) -> Bags:
        """The packed form with every listed gene kept, zeros included (the same queries, the same keys)."""
        if self.packed:
            return self
        cells, genes = self.multiplicity.shape
        offsets = torch.arange(cells + 1, device=self.genes.device) * genes
        return Bags(self.genes.repeat(cells), self.multiplicity.reshape(-1), offsets, self.basal, self.regulators)

    def share(self, part: int, parts: int) -> Bags:
        """Every `parts`-th gene of each bag, from number `part` on; basal gene and regulators as they are.

        All parts together are the bags: genes that are dealt out, like cards, to the processes that share a model.
        """
        offsets = self.offsets
        if offsets is not None:
            offsets = F.pad(_dealt(offsets.diff(), part, parts).cumsum(0), (1, 0))
        mine = self.places(part, parts)
        return replace(self, genes=self.genes[mine], multiplicity=self.multiplicity[..., mine], offsets=offsets)

    def places(self, part: int, parts: int) -> Tensor:
        """Where the genes of a share are among those of the bags: positions on multiplicity's last axis."""
        listed = torch.arange(len(self.genes), device=self.genes.device)
        if self.offsets is None:
            return listed[part::parts]
        starts = torch.repeat_interleave(self.offsets[:-1], self.offsets.diff(), output_size=len(listed))
        return listed[(listed - starts) % parts == part]

    def to(self, device: torch.device | str) -> Self:
        return _map_tensors(self, lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Self:
        return _map_tensors(self, Tensor.pin_memory)


@dataclass(frozen=True)
class Batch:
    """Bags with what the objectives compare them to.

    bags: what the model reads; masked genes have multiplicity 0 there.
    multiplicity: before masking, shaped like bags.multiplicity.   masked: bool, the same shape.
    cells [C]: row of each cell in its data set.   labels [C]: class index, -1 where missing.
    property [C]: float32, NaN where missing.   importance: weight of each gene in the masked objective, shaped
    like bags.multiplicity; None: 1, every gene is listed.
    """

    bags: Bags
    multiplicity: Tensor
    masked: Tensor
    cells: Tensor
    labels: Tensor
    property: Tensor
    importance: Tensor | None = None

    def share(self, part: int, parts: int) -> Batch:
        """The same cells with a part of each one's genes (Bags.share)."""
        mine = self.bags.places(part, parts)
        return replace(
            self,
            bags=self.bags.share(part, parts),
            multiplicity=self.multiplicity[..., mine],
            masked=self.masked[..., mine],
            importance=None if self.importance is None else self.importance[..., mine],
        )

    def to(self, device: torch.device | str) -> Self:
        return _map_tensors(self, lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Self:
        return _map_tensors(self, Tensor.pin_memory)


def _dealt(sizes: Tensor, part: int, parts: int) -> Tensor:
    """How many of so many cards go to number `part` of the players."""
    return (sizes + parts - 1 - part) // parts


def _map_tensors(record, function):
    """The same record with `function` applied to each tensor, nested records included."""
    changed = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, Tensor):
            changed[field.name] = function(value)
        elif isinstance(value, Bags):
            changed[field.name] = _map_tensors(value, function)
    return replace(record, **changed)
