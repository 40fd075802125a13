"""The regulation layer: one layer of spherical attention whose signs mean up- and down-regulation.

Training does not identify the sign of an attention weight (MATH: k, v and q, o may change sign together). Here they
cannot: what a regulator sends is a positive amount and what a target listens with is a positive gain, so that the sign
of a prediction's part is the sign of the score q_i.k_j alone.

    s_ij = m_j q_i.k_j                     score of regulator j on gene i; none on itself
    w_ij = s_ij / n_i                      n_i^2 = b_i^2 + sum_j s_ij^2, b_i: the basal gene's score
    y_i  = c_i + sum_heads g_i sum_j (w_ij - w'_ij) a_j            a_j, g_i > 0

m is a gene's multiplicity in its own unit; w'_ij is the weight that the regulator's mean multiplicity would have in the
same cell: what counts is how far a cell is from the average. y is the standardised expected multiplicity. Queries and
keys belong to genes, not to cells, so a bag costs two products with one table of scores [N, R], and no gene reads
itself. Several members, trained on different cells from different starts, are one stack: their mean predicts, their
agreement says how far a weight can be trusted.

Letters: P members, C cells, N genes, R regulators, H heads, E head width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ONE = 0.5413  # softplus(ONE) = 1: amounts and gains start there


@dataclass(frozen=True)
class Scores:
    """What a stack of members says about n targets. score [P, H, n, R + 1] (last: depth), amount [P, H, 1, R + 1],
    gain and basal [P, H, n, 1]: positive."""

    score: Tensor
    amount: Tensor
    gain: Tensor
    basal: Tensor

    def norms(self, m: Tensor) -> Tensor:
        """n [P, H, C, n] in cells whose regulators (and depth) are m [.., C, R + 1]."""
        return (m.square() @ self.score.square().mT + self.basal.square().mT).sqrt()

    def head_slopes(self) -> Tensor:
        """What one unit of a regulator adds to a target where the basal gene rules: [P, H, n, R + 1]."""
        return self.score * (self.amount * (self.gain / self.basal))


class Regulation(nn.Module):
    """Regulators of a cell -> standardised expected multiplicity of every gene.

    regulators: vocabulary positions, int64 [R].   unit [R + 1]: of each regulator's multiplicity, then the depth's.
    centre [R + 1]: mean multiplicities, in units.   reads_depth [P]: 1, or 0 for members to which depth says nothing.
    """

    regulators: Tensor
    unit: Tensor
    centre: Tensor
    reads_depth: Tensor

    def __init__(self, members: int, genes: int, regulators: Tensor, heads: int, width: int):
        super().__init__()
        count = len(regulators)
        self.members, self.genes, self.heads, self.width = members, genes, heads, width
        self.register_buffer("regulators", regulators)
        self.register_buffer("unit", torch.ones(count + 1))
        self.register_buffer("centre", torch.zeros(count + 1))
        self.register_buffer("reads_depth", torch.ones(members))
        self.query = nn.Parameter(torch.empty(members, heads, genes, width))
        self.key = nn.Parameter(torch.empty(members, heads, count + 1, width))
        self.log_basal = nn.Parameter(torch.empty(members, heads, genes))
        self.raw_amount = nn.Parameter(torch.empty(members, heads, count + 1))
        self.raw_gain = nn.Parameter(torch.empty(members, heads, genes))
        self.bias = nn.Parameter(torch.empty(members, genes))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Every prediction starts at the mean; keys start as different from each other as their width allows."""
        for parameter in (self.query, self.log_basal, self.bias):
            nn.init.zeros_(parameter)
        for parameter in (self.raw_amount, self.raw_gain):
            nn.init.constant_(parameter, ONE)
        with torch.no_grad():
            for keys in self.key.flatten(0, 1):
                nn.init.orthogonal_(keys, gain=max(1.0, (len(keys) / self.width) ** 0.5))

    def inputs(self, multiplicity: Tensor, depth: Tensor | None) -> Tensor:
        """multiplicity [C, R] of the regulators, depth [C] (None: 1) -> in units, [C, R + 1]."""
        depth = multiplicity.new_ones(len(multiplicity)) if depth is None else depth.to(multiplicity)
        return torch.cat([multiplicity, depth[:, None]], 1) / self.unit

    def scores(self, genes: slice = slice(None), members: slice = slice(None)) -> Scores:
        """Of a run of targets and members: all that a network is made of, without cells."""
        score = self.query[members, :, genes] @ self.key[members].mT
        first, last, _ = genes.indices(self.genes)
        own = ((self.regulators >= first) & (self.regulators < last)).nonzero()[:, 0]
        score[..., self.regulators[own] - first, own] = 0  # no gene regulates itself here
        score[..., -1] *= self.reads_depth[members, None, None]
        return Scores(
            score,
            F.softplus(self.raw_amount[members])[:, :, None],
            F.softplus(self.raw_gain[members, :, genes])[..., None],
            self.log_basal[members, :, genes].exp()[..., None],
        )

    def forward(self, multiplicity: Tensor, depth: Tensor | None = None) -> Tensor:
        """multiplicity [C, R], depth [C] -> the members' mean, [C, N] in sds of each gene."""
        with torch.autocast(multiplicity.device.type, enabled=False):
            m = self.inputs(multiplicity.to(self.unit), depth)
            # One after the other: the scores of all members at once would be large where there are many genes.
            said = [self.predict(m, slice(p, p + 1))[0] for p in range(self.members)]
            return torch.stack(said).mean(0)

    def predict(self, m: Tensor, members: slice = slice(None)) -> Tensor:
        """m [C, R + 1] or [P, C, R + 1], in units -> each member's prediction [P, C, N]."""
        return self.answer(self.scores(members=members), m) + self.bias[members, None]

    def answer(self, said: Scores, m: Tensor) -> Tensor:
        """What the scored targets make of the cells, before their bias: [P, C, n]."""
        m = m.unsqueeze(-3)
        amounts = (m - self.centre) @ (said.score * said.amount).mT
        return (amounts / said.norms(m) * said.gain.mT).sum(1)

    def penalty(self, said: Scores | None = None) -> Tensor:
        """Sum of squared slopes of each member's heads, [P]: what keeps noise out of the network. Depth's are free."""
        said = self.scores() if said is None else said
        return said.head_slopes()[..., :-1].square().sum((1, 2, 3)) * self.heads
