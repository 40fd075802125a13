"""Bags of genes: the cells as the model reads them.

Letters: C cells, N genes, S states of cells.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class Bags:
    """C cells over the N genes of the model's vocabulary.

    multiplicity [C, N]: float32, not negative; a gene of multiplicity 0 is absent as a key (not expressed, masked,
    knocked out) and still present as a query.   basal [C]: multiplicity of the basal gene, the cell's sequencing depth
    (None: 1).   states [C, S]: how much each cell belongs to each state (its type, for example); rows sum to 1. None:
    not known.   room: for each of the S states, at least as many cells as belong to it; the host knows it, and need
    not wait for a GPU. None: not known.   cut [C, N]: bool, genes whose multiplicity an intervention has set, so that
    nothing is to be learned of what regulates them there. None: none are.
    """

    multiplicity: Tensor
    basal: Tensor | None = None
    states: Tensor | None = None
    cut: Tensor | None = None
    room: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return len(self.multiplicity)

    def to(self, device: torch.device | str) -> Self:
        return map_tensors(self, lambda tensor: tensor.to(device, non_blocking=True))


@dataclass(frozen=True)
class Batch:
    """Bags with the targets of the objectives.

    seen: what the identity token reads: the same cells, some of them with fewer counts (None: the bags).   kept [C, N]:
    bool, the genes that are not hidden from it (None: all, and in training it reads none of this batch).   cells [C]:
    row of each cell in its data set.   labels [C]: class index, -1 where missing.   fold [C]: which ensemble members do
    not learn from the cell (see Model.held_out); -1: all learn.
    """

    bags: Bags
    cells: Tensor
    labels: Tensor
    fold: Tensor
    seen: Bags | None = None
    kept: Tensor | None = None

    def to(self, device: torch.device | str) -> Self:
        return map_tensors(self, lambda tensor: tensor.to(device, non_blocking=True))


def map_tensors(record, function):
    """The same record with `function` applied to each tensor, nested records included."""
    changed = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, Tensor):
            changed[field.name] = function(value)
        elif isinstance(value, Bags):
            changed[field.name] = map_tensors(value, function)
    return replace(record, **changed)
