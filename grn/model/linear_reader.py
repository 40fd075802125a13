"""The linear reader: a linear map of low rank tells the type, and a feed-forward map what it
misses.

Members come in pairs. The genes weigh ten times as much as the labels for one, three hundred times
for the other; which is right differs from data set to data set, so held-out labels decide how much
each half counts.

Letters: P members, C cells, N genes, R rank, S summary width, K cell types.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flashsign import rms_norm
from grn.config.schema import ModelConfig
from grn.model.basal_gene import EPS
from grn.model.reader import Reader, ReaderShape

RANK = 32  # of the linear map


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
        self.first = nn.Parameter(torch.randn(members, genes, RANK) / math.sqrt(genes))
        self.output = nn.Parameter(torch.randn(members, RANK, summary) / math.sqrt(RANK))
        self.up = nn.Parameter(torch.randn(members, summary, shape.hidden) / math.sqrt(summary))
        self.up_bias = nn.Parameter(torch.zeros(members, 1, shape.hidden))
        self.down = nn.Parameter(
            torch.randn(members, shape.hidden, summary) * 0.5 / math.sqrt(shape.hidden)
        )

    def summaries(self, multiplicity: Tensor, standardised: Tensor) -> Tensor:
        flat = self.first.transpose(0, 1).flatten(1)  # one product for all members
        return self.summarised(
            (standardised @ flat).unflatten(-1, (self.shape.members, -1)).transpose(0, 1)
        )

    def summarised(self, mapped: Tensor) -> Tensor:
        """Summaries [P, C, S] of what the linear map gives, [P, C, R]."""
        h = rms_norm(mapped @ self.output, eps=EPS)
        return rms_norm(h + F.gelu(h @ self.up + self.up_bias) @ self.down, eps=EPS)

    def without_each(self, multiplicity: Tensor, standardised: Tensor) -> Tensor:
        """See Reader. From the sum over the genes, without each of them."""
        parts = standardised[:, None] * self.first  # [P, N, R]
        return self.logits(self.summarised(parts.sum(1, keepdim=True) - parts))
