"""What reads cells: the only path from a cell to its type and its representation X_grn.

A reader makes a summary of each cell, of which a linear map tells the type and another one the
genes. Two read: the transformer of the paper (transformer.py), and a linear map with a feed-forward
map (linear_reader.py). Both are ensembles, and held-out labels decide how much each kind of member
counts and how sure a label is.

Letters: P members, C cells, N genes, S width of a summary, K cell types, D embedding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from grn.config.schema import ModelConfig

HIDDEN = 1e30  # sd of what is not read: the keys of guides, which new cells lack
# sds from the mean, where differences are cut off: a rare gene is many sds away where it is seen
LARGEST = 8.0


@dataclass(frozen=True)
class ReaderShape:
    """The sizes of a reader.

    members: of the ensemble.
    classes: cell types, 0 without.
    summary: width of a member's.
    hidden: of the feed-forward map.
    embedding: width of X_grn.
    held_out: number of held-out cells that are kept (see `threshold`).
    layers, query_heads, key_heads, iterations: of the transformer.
    """

    members: int = 8
    classes: int = 0
    summary: int = 64
    hidden: int = 128
    embedding: int = 64
    held_out: int = 0
    layers: int = 2
    query_heads: int = 4
    key_heads: int = 2
    iterations: int = 2


class Reader(nn.Module):
    """Multiplicities [C, N] -> (embedding [C, D], logits [C, K]) of an ensemble.

    importance [P]: what each member's log probabilities count, chosen on held-out cells; their sum
        sharpens or softens the probabilities, so that a confidence of .9 is right nine times of
        ten.
    axes [P * S, D]: the leading directions of the members' summaries over the training cells.
    confidence, right: of held-out cells, which no judging member had seen.
    held_out [P]: the fold that a member does not learn from until it is judged; members of
        different kinds share folds.
    """

    held_out: Tensor
    mean: Tensor
    sd: Tensor
    importance: Tensor
    centre: Tensor
    axes: Tensor
    confidence: Tensor
    right: Tensor

    folds: int  # that are held out until half-way: one for each member of a kind
    # weight of the genes beside the labels in training, for each kind of member
    of_genes: tuple[float, ...]
    rates: tuple[float, float]  # learning rate and weight decay, in those of the trainer

    def __init__(self, genes: int, shape: ReaderShape):
        super().__init__()
        self.shape, self.genes = shape, genes
        members, summary, classes = shape.members, shape.summary, shape.classes
        self.head = nn.Parameter(torch.zeros(members, summary, classes))
        self.head_bias = nn.Parameter(torch.zeros(members, 1, classes))
        self.predict = nn.Parameter(torch.randn(members, summary, genes) * 0.01)
        self.register_buffer("mean", torch.zeros(genes))
        self.register_buffer("sd", torch.ones(genes))
        self.register_buffer("held_out", torch.arange(members) // self.kinds)
        self.register_buffer("importance", torch.full((members,), 1 / members))
        self.register_buffer("centre", torch.zeros(members * summary))
        self.register_buffer("axes", torch.zeros(members * summary, shape.embedding))
        self.register_buffer("confidence", torch.zeros(shape.held_out))
        self.register_buffer("right", torch.zeros(shape.held_out, dtype=torch.bool))

    @classmethod
    def shape_for(cls, config: ModelConfig, *, classes: int, held_out: int) -> ReaderShape:
        """Return the shape that a configuration asks for."""
        raise NotImplementedError

    @property
    def kinds(self) -> int:
        """Of members, which take turns."""
        return len(self.of_genes) if self.shape.classes else 1

    def standardised(self, multiplicity: Tensor) -> Tensor:
        """Multiplicities [C, N] in sds from the mean of the training cells, not beyond LARGEST."""
        return ((multiplicity - self.mean) / self.sd).clamp(-LARGEST, LARGEST)

    def start(self, multiplicity: sp.csr_matrix, fold: np.ndarray, labels: np.ndarray) -> None:
        """Set what is known before training, of each member from the cells that it learns from.

        multiplicity: CSR [C, N], of the training cells.
        fold [C]: which members do not learn from a cell, see Batch.
        labels [C]: -1 where missing.
        """

    def most_cells(self, gpu: bool) -> int | None:
        """Return the most cells that are read together, also in a training step; None: any
        number.
        """
        return None

    def multiplications(self, cells: int) -> int:
        """About so many it takes to read cells; 0: too few for a second thread."""
        return 0

    def summaries(self, multiplicity: Tensor, standardised: Tensor) -> Tensor:
        """Each member's summary of every cell, [P, C, S]. A gene is hidden where both inputs [C, N]
        are 0.
        """
        raise NotImplementedError

    def of_members(self, summaries: Tensor) -> Tensor:
        """Each member's log probabilities, [P, C, K]."""
        return (summaries @ self.head + self.head_bias).log_softmax(-1)

    def logits(self, summaries: Tensor) -> Tensor:
        """Return the members' log probabilities, each as much as it counts: [C, K]."""
        return (self.importance[:, None, None] * self.of_members(summaries)).sum(0)

    def forward(
        self, multiplicity: Tensor, standardised: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """standardised: what is read in place of `standardised(multiplicity)`."""
        z = self.standardised(multiplicity) if standardised is None else standardised
        summaries = self.summaries(multiplicity, z)
        cell = (summaries.transpose(0, 1).flatten(1) - self.centre) @ self.axes
        return cell, self.logits(summaries) if self.shape.classes else None

    def without_each(self, multiplicity: Tensor, standardised: Tensor) -> Tensor:
        """Return the logits of one cell with each of its genes hidden in turn. [N] each -> [N, K].

        A hidden gene is neither there nor different from its mean, as genes that are hidden in
        training.
        """
        raise NotImplementedError

    def threshold(self, error: float) -> float:
        """Return the least confidence at which at most `error` of the held-out cells were labelled
        wrongly.

        Cells below it are left unassigned. Infinite where no threshold keeps the promise: nothing
        is assigned then.
        """
        confidence, order = self.confidence.sort(descending=True)
        wrong = (~self.right[order]).cumsum(0)
        # One error more than was seen: of a few cells, none may be wrong by luck.
        allowed = (wrong + 1) <= error * torch.arange(1, len(wrong) + 1, device=wrong.device)
        return float(confidence[allowed.nonzero()[-1]]) if allowed.any() else math.inf
