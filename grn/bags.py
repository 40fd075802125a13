"""Bags of genes: the cells as the model reads them, dense (Bags) or packed (Tokens).

Letters: C cells, N genes, S states of cells, T tokens of all cells.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Self, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record", bound="DataclassInstance")

# Tokens are filled up to multiples of FILLED, and of many tokens to one of STEPS sizes from a power
# of two to the next.
FILLED, STEPS = 256, 8


@dataclass(frozen=True)
class Bags:
    """C cells over the N genes of the model's vocabulary.

    multiplicity [C, N]: float32, not negative; a gene of multiplicity 0 is absent as a key (not
        expressed, masked, knocked out) and still present as a query.
    basal [C]: multiplicity of the basal gene, the cell's sequencing depth (None: 1).
    states [C, S]: how much each cell belongs to each state (its type, for example); rows sum to 1.
        None: not known.
    room: for each of the S states, at least as many cells as belong to it; the host knows it, and
        need not wait for a GPU. None: not known.
    cut [C, N]: bool, genes whose multiplicity an intervention has set, so that nothing is to be
        learned of what regulates them there. None: none are.
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
class Tokens:
    """The tokens of some cells, packed: those of a cell follow each other, its basal gene and
    identity token last.

    gene [T]: 0 to N - 1, N for basal genes and N + 1 for identity tokens. multiplicity [T], not
        negative; sign [T].
    offsets [B + 1]: the tokens of bag b are offsets[b] to offsets[b + 1]. Bags are the C cells or,
        where tokens are filled up, these and one more, which holds what fills them up and has no
        identity token.
    identity [C]: where the identity tokens are.
    asking [B + 1]: the offsets of the identity tokens alone.
    """

    gene: Tensor
    multiplicity: Tensor
    sign: Tensor
    offsets: Tensor
    identity: Tensor
    asking: Tensor

    @classmethod
    def of(cls, strength: Tensor) -> Tokens:
        """Of the genes whose strength [C, N] is not 0: the signed multiplicities."""
        cells, genes = strength.shape
        cell, gene = strength.nonzero(as_tuple=True)
        sizes = torch.bincount(cell, minlength=cells) + 2
        offsets = F.pad(sizes.cumsum(0), (1, 0))
        place = torch.arange(len(cell), device=cell.device) + 2 * cell
        every = gene.new_full((len(cell) + 2 * cells,), genes)
        every[place] = gene
        every[offsets[1:] - 1] = genes + 1
        signed = strength.new_zeros(len(every))
        signed[place] = strength[cell, gene]
        signed[offsets[1:] - 2] = 1.0
        return cls(
            gene=every,
            multiplicity=signed.abs(),
            sign=torch.where(signed < 0, -1.0, 1.0).to(strength),
            offsets=offsets,
            identity=offsets[1:] - 1,
            asking=torch.arange(cells + 1, device=cell.device),
        )

    def filled_up(self) -> Tokens:
        """Return these tokens padded to the next of a few sizes: a recorded step is for one size.

        The tokens that fill it up are absent: no cell reads them.
        """
        tokens = len(self.gene)
        more = -tokens % max(FILLED, (1 << (tokens.bit_length() - 1)) // STEPS)
        return Tokens(
            gene=F.pad(self.gene, (0, more)),
            multiplicity=F.pad(self.multiplicity, (0, more)),
            sign=F.pad(self.sign, (0, more), value=1.0),
            offsets=F.pad(self.offsets, (0, 1), value=tokens + more),
            identity=self.identity,
            asking=F.pad(self.asking, (0, 1), value=len(self.identity)),
        )

    def repeated(self, times: int, vocabulary: int) -> Tokens:
        """Return the tokens of all cells once for each member: genes are then rows of tables
        [P, V].
        """
        first = torch.arange(times, device=self.gene.device)[:, None]

        def shifted(offsets: Tensor, by: int) -> Tensor:
            return F.pad((offsets[1:] + first * by).flatten(), (1, 0))

        return Tokens(
            gene=(self.gene + first * vocabulary).flatten(),
            multiplicity=self.multiplicity.repeat(times),
            sign=self.sign.repeat(times),
            offsets=shifted(self.offsets, len(self.gene)),
            identity=(self.identity + first * len(self.gene)).flatten(),
            asking=shifted(self.asking, len(self.identity)),
        )


@dataclass(frozen=True)
class Batch:
    """Bags with the targets of the objectives.

    seen: what the identity token reads: the same cells, some of them with fewer counts (None: the
        bags).
    kept [C, N]: bool, the genes that are not hidden from it (None: all, and in training it reads
        none of this batch).
    cells [C]: row of each cell in its data set.
    labels [C]: class index, -1 where missing.
    fold [C]: which ensemble members do not learn from the cell (see Model.held_out); -1: all learn.
    tokens: the same as `seen` and `kept` for a reader of tokens (None: it reads these).
    """

    bags: Bags
    cells: Tensor
    labels: Tensor
    fold: Tensor
    seen: Bags | None = None
    kept: Tensor | None = None
    tokens: Tokens | None = None

    def to(self, device: torch.device | str) -> Self:
        return map_tensors(self, lambda tensor: tensor.to(device, non_blocking=True))


def map_tensors(record: Record, function: Callable[[Tensor], Tensor]) -> Record:
    """Return a record with `function` applied to each of its tensors, nested records included."""
    changed: dict[str, Tensor | Bags | Tokens] = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, Tensor):
            changed[field.name] = function(value)
        elif isinstance(value, (Bags, Tokens)):
            changed[field.name] = map_tensors(value, function)
    return replace(record, **changed)
