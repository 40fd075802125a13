"""The linear reader: a linear map of low rank tells the type, and a feed-forward map what it misses.

Beside the map, a token with one query for all cells reads the genes by static spherical attention (basal_gene.py): half
of its heads read multiplicities, which tell what a cell has, the others standardised ones, which tell how it differs
from the other cells. A feed-forward map and RMSNorm follow.

Members come in pairs. The genes weigh ten times as much as the labels for one, three hundred times for the other; which
is right differs from data set to data set, so held-out labels decide how much each half counts.

Letters: P members, C cells, N genes, H heads of one kind, E head width, S summary width, K cell types.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flashsign import rms_norm
from grn.config.schema import ModelConfig
from grn.model.basal_gene import EPS, StaticAttention
from grn.model.reader import Reader, ReaderShape

HEADS, VALUE, RANK = 2, 16, 32  # of each kind, width of a value, rank of the linear map


class LinearReader(Reader):
    """See Reader."""

    folds = 4
    of_genes = (10.0, 300.0)
    rates = (0.8, 1 / 6)

    @classmethod
    def shape_for(cls, config: ModelConfig, *, classes: int, held_out: int) -> ReaderShape:
        return ReaderShape(
            members=cls.folds * len(cls.of_genes),
            classes=classes,
            summary=config.width_of_cells,
            hidden=max(config.hidden // 2, 1),
            embedding=config.width_of_cells,
            held_out=held_out,
        )

    def __init__(self, genes: int, shape: ReaderShape):
        super().__init__(genes, shape)
        members, summary = shape.members, shape.summary
        width = 2 * HEADS * VALUE
        self.present = StaticAttention(members, genes + 1, HEADS, VALUE)
        self.different = StaticAttention(members, genes + 1, HEADS, VALUE)
        self.first = nn.Parameter(torch.randn(members, genes, RANK) / math.sqrt(genes))
        self.output = nn.Parameter(torch.randn(members, width + RANK, summary) / math.sqrt(width))
        self.up = nn.Parameter(torch.randn(members, summary, shape.hidden) / math.sqrt(summary))
        self.up_bias = nn.Parameter(torch.zeros(members, 1, shape.hidden))
        self.down = nn.Parameter(torch.randn(members, shape.hidden, summary) * 0.5 / math.sqrt(shape.hidden))

    def summaries(self, multiplicity: Tensor, standardised: Tensor, basal: Tensor) -> Tensor:
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

    def without_each(self, multiplicity: Tensor, standardised: Tensor, basal: Tensor) -> Tensor:
        """See Reader. From sums over the genes, without each of them."""
        present = self.present.without_each(torch.cat([multiplicity * self.unit, basal[None]]))
        different = self.different.without_each(torch.cat([standardised, basal[None]]))
        parts = standardised[:, None] * self.first  # [P, N, rank]
        read = torch.cat([present[:, :-1], different[:, :-1], parts.sum(1, keepdim=True) - parts], -1)
        return self.logits(self.summarised(read))
