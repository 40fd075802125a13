"""The regulation layer: one layer of spherical attention whose signs mean up- and down-regulation.

Training does not identify the sign of an attention weight: the sign of k and v, or of q and o, may change together.
Here the sign is identified, because every regulator contributes a positive amount a_j and every target multiplies by a
positive gain g_i. The sign of a regulator's contribution to a prediction is then the sign of the score q_i.k_j alone.

    s_ij = m_j q_i.k_j                     score of regulator j on gene i; 0 on itself
    w_ij = s_ij / n_i                      n_i^2 = b_i^2 + sum_j s_ij^2, b_i: the basal gene's score
    y_i  = c_i + sum_heads g_i sum_j (w_ij - w'_ij) a_j            a_j, g_i > 0

m_j is the multiplicity of a gene in its own unit. w'_ij is the weight that the regulator's mean multiplicity would have
in the same cell, so that a cell's difference from the average is what counts. y is the standardised expected
multiplicity. Queries and keys belong to genes and not to cells, so a batch of cells costs two products with one table
of scores [N, R], and no gene reads itself. The last key carries the sequencing depth of the cell: its multiplicity is
that of the cell's basal gene. The ensemble members, trained on different cells from different initial values, are
stacked in one layer: their mean is the prediction, and their agreement measures how far a weight can be trusted.

Letters: P members, C cells, N genes, n of them chosen, R regulators, H heads, E head width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ONE = 0.5413  # softplus(ONE) = 1: the initial value of amounts and gains


@dataclass(frozen=True)
class Scores:
    """The members' networks for n targets: what is the same in every cell.

    score [P, H, n, R + 1]: q_i.k_j, the last column is that of the depth.   amount [P, H, 1, R + 1], gain and
    basal_score [P, H, n, 1]: a_j, g_i and b_i, all positive.
    """

    score: Tensor
    amount: Tensor
    gain: Tensor
    basal_score: Tensor

    def norms(self, m: Tensor) -> Tensor:
        """n_i [P, H, C, n] in cells with inputs m [.., C, R + 1] (see RegulationLayer.inputs)."""
        return (m.square() @ self.score.square().mT + self.basal_score.square().mT).sqrt()

    def head_slopes(self) -> Tensor:
        """What one unit of a regulator adds to a target while n_i = b_i, for each head: [P, H, n, R + 1]."""
        return self.score * (self.amount * (self.gain / self.basal_score))


class RegulationLayer(nn.Module):
    """Multiplicities of a cell's regulators -> standardised expected multiplicity of every gene.

    regulators: vocabulary positions, int64 [R].   unit [R + 1]: of each regulator's multiplicity, last of the basal
    gene's.   centre [R + 1]: mean multiplicities, in these units.   reads_depth [P]: 1, or 0 for members that do not
    read the depth.
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
        """Every prediction starts at the gene's mean; keys start as different from each other as their width allows."""
        for parameter in (self.query, self.log_basal, self.bias):
            nn.init.zeros_(parameter)
        for parameter in (self.raw_amount, self.raw_gain):
            nn.init.constant_(parameter, ONE)
        with torch.no_grad():
            for keys in self.key.flatten(0, 1):
                nn.init.orthogonal_(keys, gain=max(1.0, (len(keys) / self.width) ** 0.5))

    def inputs(self, multiplicity: Tensor, basal: Tensor | None) -> Tensor:
        """multiplicity [C, R] of the regulators and basal [C] of the basal gene (None: 1) -> [C, R + 1], in units."""
        basal = multiplicity.new_ones(len(multiplicity)) if basal is None else basal.to(multiplicity)
        return torch.cat([multiplicity, basal[:, None]], 1) / self.unit

    def scores(self, genes: slice = slice(None), members: slice = slice(None)) -> Scores:
        """The scores of a slice of targets and members."""
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

    def forward(self, multiplicity: Tensor, basal: Tensor | None = None) -> Tensor:
        """multiplicity [C, R], basal [C] (None: 1) -> the mean over the members, [C, N] in sds of each gene."""
        with torch.autocast(multiplicity.device.type, enabled=False):
            m = self.inputs(multiplicity.to(self.unit), basal)
            # One member after the other: the scores of all at once would be large where there are many genes.
            predictions = [self.predict(m, slice(p, p + 1))[0] for p in range(self.members)]
            return torch.stack(predictions).mean(0)

    def predict(self, m: Tensor, members: slice = slice(None)) -> Tensor:
        """Inputs m [C, R + 1] or [P, C, R + 1], in units -> the prediction of each member [P, C, N]."""
        return self.predict_from(self.scores(members=members), m) + self.bias[members, None]

    def predict_from(self, scores: Scores, m: Tensor) -> Tensor:
        """The prediction of each member for the targets of `scores`, without their bias: [P, C, n]."""
        m = m.unsqueeze(-3)
        amounts = (m - self.centre) @ (scores.score * scores.amount).mT
        return (amounts / scores.norms(m) * scores.gain.mT).sum(1)

    def squared_slopes(self, scores: Scores | None = None) -> Tensor:
        """Sum of the squared head slopes of each member, [P], those of the depth left out: what the penalty weighs."""
        scores = self.scores() if scores is None else scores
        return scores.head_slopes()[..., :-1].square().sum((1, 2, 3)) * self.heads
