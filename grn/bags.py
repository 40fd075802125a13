"""Bags of genes: the cells as the model reads them.

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
    """C cells as bags of genes with multiplicities, in one of two forms.

    *Dense*: every cell has the same gene list. genes [N], multiplicity [C, N], offsets None.
    *Packed*: every cell has its own genes (a ragged batch). genes [T], multiplicity [T], offsets [C + 1]; the genes of
    cell c are the slice offsets[c]:offsets[c + 1].

    genes: int64 positions in the vocabulary.   multiplicity: float32, not negative; a gene of multiplicity 0 is absent
    as a key (not expressed, masked, knocked out) and still present as a query.   basal [C]: multiplicity of the basal
    gene, which the model adds to every bag (None: 1).   regulators [C, R]: multiplicities of the regulators, masked
    ones too, for the regulation layer, which never predicts a gene from itself (None: they are read from the bags,
    which is impossible where these have a part of the genes only).
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

    def bag_of_gene(self) -> Tensor:
        """The bag that each gene belongs to, int64: [T] of packed bags, [C, 1] of dense ones."""
        bag = torch.arange(self.cells, device=self.genes.device)
        if self.offsets is None:
            return bag[:, None]
        return torch.repeat_interleave(bag, self.offsets.diff(), output_size=len(self.genes))

    def pack(self) -> Bags:
        """The same bags in packed form. Every listed gene stays, zeros included: the same queries and the same keys."""
        if self.packed:
            return self
        cells, genes = self.multiplicity.shape
        offsets = torch.arange(cells + 1, device=self.genes.device) * genes
        return Bags(self.genes.repeat(cells), self.multiplicity.reshape(-1), offsets, self.basal, self.regulators)

    def part_of_genes(self, part: int, parts: int) -> Bags:
        """Every `parts`-th gene of each bag, beginning with number `part`; basal gene and regulators as they are.

        Gene parallelism splits the genes of each bag in this way: all parts together are the bags.
        """
        offsets = self.offsets
        if offsets is not None:
            sizes = (offsets.diff() + parts - 1 - part) // parts
            offsets = F.pad(sizes.cumsum(0), (1, 0))
        own = self.part_positions(part, parts)
        return replace(self, genes=self.genes[own], multiplicity=self.multiplicity[..., own], offsets=offsets)

    def part_positions(self, part: int, parts: int) -> Tensor:
        """Where the genes of `part_of_genes` are among those of the bags: positions on multiplicity's last axis."""
        position = torch.arange(len(self.genes), device=self.genes.device)
        if self.offsets is None:
            return position[part::parts]
        return position[(position - self.offsets[self.bag_of_gene()]) % parts == part]

    def to(self, device: torch.device | str) -> Self:
        return _map_tensors(self, lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Self:
        return _map_tensors(self, Tensor.pin_memory)


@dataclass(frozen=True)
class Batch:
    """Bags with the targets of the objectives.

    bags: what the model reads; masked genes have multiplicity 0 there.
    multiplicity: before masking, shaped like bags.multiplicity.   masked: bool, the same shape.
    cells [C]: row of each cell in its data set.   labels [C]: class index, -1 where missing.
    property [C]: float32, NaN where missing.   importance: weight of each gene in the masked objective, shaped like
    bags.multiplicity (None: 1, as every gene is listed).
    """

    bags: Bags
    multiplicity: Tensor
    masked: Tensor
    cells: Tensor
    labels: Tensor
    property: Tensor
    importance: Tensor | None = None

    def part_of_genes(self, part: int, parts: int) -> Batch:
        """The same cells with a part of the genes of each (Bags.part_of_genes)."""
        own = self.bags.part_positions(part, parts)
        return replace(
            self,
            bags=self.bags.part_of_genes(part, parts),
            multiplicity=self.multiplicity[..., own],
            masked=self.masked[..., own],
            importance=None if self.importance is None else self.importance[..., own],
        )

    def unmasked(self) -> Batch:
        """The same cells with nothing hidden from the model; packed bags still list the absent genes that they had."""
        bags = replace(self.bags, multiplicity=self.multiplicity)
        return replace(self, bags=bags, masked=torch.zeros_like(self.masked))

    def to(self, device: torch.device | str) -> Self:
        return _map_tensors(self, lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Self:
        return _map_tensors(self, Tensor.pin_memory)


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
