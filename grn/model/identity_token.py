"""The identity token: the only path from a cell to its type and its representation X_grn.

The token's query is the same for every cell, so that the score of a gene in a head is one number: static spherical
attention (basal_gene.py). Half of the heads read multiplicities, which tell what a cell has, the others standardised
ones, which tell how it differs from the other cells; labels differ in which of the two they follow. A linear map of low
rank is the first value of the summary, beside the heads. A feed-forward map and RMSNorm follow. Nothing reads the
token: it is never a key.

Members come in pairs. The genes weigh ten times as much as the labels for one, three hundred times for the other; which
is right differs from data set to data set, so held-out labels decide how much each half counts.

Letters: P members, C cells, N genes, H heads of one kind, E head width, S summary width, K cell types, D embedding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flashsign import rms_norm
from grn.model.basal_gene import EPS, StaticAttention

HIDDEN = 1e30  # sd of what the token does not read: the keys of guides, which new cells lack
LARGEST = 8.0  # sds from the mean, where differences are cut off: a rare gene is many sds away where it is seen
MEMBERS = 8
HEADS, VALUE, RANK = 2, 16, 32  # of each kind, width of a value, rank of the linear map


@dataclass(frozen=True)
class IdentityShape:
    """members: in pairs, where there are cell types.   classes: cell types, 0 without.   summary: width of a member's.
    hidden: of the feed-forward map.   embedding: width of X_grn.   held_out: number of held-out cells that are kept
    (see `threshold`)."""

    members: int = MEMBERS
    classes: int = 0
    summary: int = 64
    hidden: int = 128
    embedding: int = 64
    held_out: int = 0


class IdentityToken(nn.Module):
    """Multiplicities [C, N] -> (embedding [C, D], logits [C, K]) of an ensemble.

    importance [P]: what each member's log probabilities count, chosen on held-out cells; their sum sharpens or softens
    the probabilities, so that a confidence of .9 is right nine times of ten.   axes [P * S, D]: the leading directions
    of the members' summaries over the training cells.   confidence, right: of held-out cells, which no judging member
    had seen.   held_out [P]: the fold that a member does not learn from until it is judged; a pair has the same.
    """

    held_out: Tensor
    mean: Tensor
    sd: Tensor
    scale: Tensor
    importance: Tensor
    centre: Tensor
    axes: Tensor
    confidence: Tensor
    right: Tensor

    def __init__(self, genes: int, shape: IdentityShape):
        super().__init__()
        self.shape, self.genes = shape, genes
        members, summary, classes = shape.members, shape.summary, shape.classes
        width = 2 * HEADS * VALUE
        self.present = StaticAttention(members, genes + 1, HEADS, VALUE)
        self.different = StaticAttention(members, genes + 1, HEADS, VALUE)
        self.first = nn.Parameter(torch.randn(members, genes, RANK) / math.sqrt(genes))
        self.output = nn.Parameter(torch.randn(members, width + RANK, summary) / math.sqrt(width))
        self.up = nn.Parameter(torch.randn(members, summary, shape.hidden) / math.sqrt(summary))
        self.up_bias = nn.Parameter(torch.zeros(members, 1, shape.hidden))
        self.down = nn.Parameter(torch.randn(members, shape.hidden, summary) * 0.5 / math.sqrt(shape.hidden))
        self.head = nn.Parameter(torch.zeros(members, summary, classes))
        self.head_bias = nn.Parameter(torch.zeros(members, 1, classes))
        self.predict = nn.Parameter(torch.randn(members, summary, genes) * 0.01)
        self.register_buffer("mean", torch.zeros(genes))
        self.register_buffer("sd", torch.ones(genes))
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("held_out", torch.arange(members) // (2 if classes else 1))
        self.register_buffer("importance", torch.full((members,), 1 / members))
        self.register_buffer("centre", torch.zeros(members * summary))
        self.register_buffer("axes", torch.zeros(members * summary, shape.embedding))
        self.register_buffer("confidence", torch.zeros(shape.held_out))
        self.register_buffer("right", torch.zeros(shape.held_out, dtype=torch.bool))

    @property
    def unit(self) -> Tensor:
        """What multiplicities are multiplied by, [N]; 0 for what is hidden."""
        return self.scale * (self.sd < HIDDEN)

    def standardised(self, multiplicity: Tensor) -> Tensor:
        """Multiplicities [C, N] in sds from the mean of the training cells, not beyond LARGEST."""
        return ((multiplicity - self.mean) / self.sd).clamp(-LARGEST, LARGEST)

    def summaries(self, multiplicity: Tensor, standardised: Tensor, basal: Tensor) -> Tensor:
        """Each member's summary of every cell, [P, C, S]. A gene is hidden where both inputs are 0.

        multiplicity, standardised [C, N], basal [C].
        """
        own = basal[:, None]
        present = self.present(torch.cat([multiplicity * self.unit, own], 1))
        different = self.different(torch.cat([standardised, own], 1))
        flat = self.first.transpose(0, 1).flatten(1)  # one product for all members
        first = (standardised @ flat).unflatten(-1, (self.shape.members, -1)).transpose(0, 1)
        return self.summarised(torch.cat([present, different, first], -1))

    def summarised(self, read: Tensor) -> Tensor:
        """Summaries [P, C, S] of what the heads read and of the linear map, [P, C, 2 H E + rank]."""
        h = rms_norm(read @ self.output, eps=EPS)
        return rms_norm(h + F.gelu(h @ self.up + self.up_bias) @ self.down, eps=EPS)

    def of_members(self, summaries: Tensor) -> Tensor:
        """Each member's log probabilities, [P, C, K]."""
        return (summaries @ self.head + self.head_bias).log_softmax(-1)

    def logits(self, summaries: Tensor) -> Tensor:
        """The members' log probabilities, each as much as it counts: [C, K]."""
        return (self.importance[:, None, None] * self.of_members(summaries)).sum(0)

    def forward(
        self, multiplicity: Tensor, basal: Tensor, standardised: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """standardised: what is read in place of `standardised(multiplicity)`."""
        z = self.standardised(multiplicity) if standardised is None else standardised
        summaries = self.summaries(multiplicity, z, basal)
        cell = (summaries.transpose(0, 1).flatten(1) - self.centre) @ self.axes
        return cell, self.logits(summaries) if self.shape.classes else None

    def without_each(self, multiplicity: Tensor, standardised: Tensor, basal: Tensor) -> Tensor:
        """The logits of one cell with each of its genes hidden in turn. [N] each, basal [] -> [N, K].

        A hidden gene is neither there nor different from its mean, as genes that are hidden in training.
        """
        present = self.present.without_each(torch.cat([multiplicity * self.unit, basal[None]]))
        different = self.different.without_each(torch.cat([standardised, basal[None]]))
        parts = standardised[:, None] * self.first  # [P, N, rank]
        read = torch.cat([present[:, :-1], different[:, :-1], parts.sum(1, keepdim=True) - parts], -1)
        return self.logits(self.summarised(read))

    def threshold(self, error: float) -> float:
        """The least confidence at which at most `error` of the held-out cells were labelled wrongly.

        Cells below it are left unassigned. Infinite where no threshold keeps the promise: nothing is assigned then.
        """
        confidence, order = self.confidence.sort(descending=True)
        wrong = (~self.right[order]).cumsum(0)
        # One error more than was seen: of a few cells, none may be wrong by luck.
        allowed = (wrong + 1) <= error * torch.arange(1, len(wrong) + 1, device=wrong.device)
        return float(confidence[allowed.nonzero()[-1]]) if allowed.any() else math.inf
