"""The regulation layer: one layer of spherical attention whose signs mean up- and down-regulation.

Training does not identify the sign of an attention weight: the sign of k and v, or of q and o, may change together.
Here the sign is identified, because every regulator contributes a positive amount a_j and every target multiplies by a
positive gain g_i. The sign of a regulator's contribution to a prediction is then the sign of the score alone.

    s_ij(z) = m_j (q_i + d_iz).k_j         score of regulator j on gene i in state z of the cell; 0 on itself
    w_ij    = s_ij / n_i                   n_i^2 = b_i^2 + sum_j s_ij^2, b_i: the basal gene's score
    y_i     = c_iz + sum_heads g_i sum_j (w_ij - w'_ij) a_j         a_j, g_i > 0

m_j is the multiplicity of a gene in its own unit. w'_ij is the weight that the regulator's mean multiplicity over the
cells of the state would have in the same cell: what counts is a cell's difference from cells of its own state, and the
level of the state enters as such, in c_iz. A cell that belongs to several states in part is predicted by their mean,
weighted by its memberships. With one state, all cells are compared with each other.

y is the standardised expected multiplicity, or, for members that predict ranks, the standardised rank of the cell among
all cells. Queries and keys belong to genes and states and not to cells, so a batch of cells costs two products with one
table of scores [N, R] a state, and no gene reads itself. The last key carries the sequencing depth of the cell: its
multiplicity is that of the cell's basal gene. The ensemble members, trained on different cells, are stacked in one
layer: the mean of those that predict multiplicities is the prediction.

Letters: P members, C cells, N genes, n of them chosen, R regulators, H heads, E head width, K states.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ONE = 0.5413  # softplus(ONE) = 1: the initial value of amounts and gains
# The axis of the genes in parameters and buffers that have one.
GENES = {"query": -2, "deviation": -2, "log_basal": -1, "raw_gain": -1, "bias": -1, "penalty": -1}
LINEAR = 2.0  # basal score with which a layer starts, in units of the other scores' norm in an average cell


@dataclass(frozen=True)
class Scores:
    """The members' networks for n targets in one state: what is the same in every cell of the state.

    score [P, H, n, R + 1]: (q_i + d_i).k_j, the last column is that of the depth.   amount [P, H, 1, R + 1], gain and
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
    gene's.   centre [K, R + 1]: mean multiplicities in each state, in these units.   reads_depth [P]: 1, or 0 for
    members that do not read the depth.   predicts_ranks [P]: 1, or 0 for members that predict multiplicities.
    penalty [P, N] and ratio: with which the members were fitted (grn/regulation/linear.py).
    """

    regulators: Tensor
    unit: Tensor
    centre: Tensor
    reads_depth: Tensor
    predicts_ranks: Tensor
    penalty: Tensor
    ratio: Tensor

    def __init__(
        self,
        members: int,
        genes: int,
        regulators: Tensor,
        heads: int,
        width: int,
        states: int = 1,
        deviates: bool = False,
    ):
        super().__init__()
        count = len(regulators)
        self.members, self.genes, self.heads = members, genes, heads
        self.width, self.states = width, states
        self.register_buffer("regulators", regulators.clone())
        self.register_buffer("unit", torch.ones(count + 1))
        self.register_buffer("centre", torch.zeros(states, count + 1))
        self.register_buffer("reads_depth", torch.ones(members))
        self.register_buffer("predicts_ranks", torch.zeros(members))
        self.register_buffer("penalty", torch.ones(members, genes))
        self.register_buffer("ratio", torch.zeros(()))
        self.query = nn.Parameter(torch.empty(members, heads, genes, width))
        self.deviation = nn.Parameter(torch.empty(members, heads, 0, genes, width))
        self.key = nn.Parameter(torch.empty(members, heads, count + 1, width))
        self.log_basal = nn.Parameter(torch.empty(members, heads, genes))
        self.raw_amount = nn.Parameter(torch.empty(members, heads, count + 1))
        self.raw_gain = nn.Parameter(torch.empty(members, heads, genes))
        self.bias = nn.Parameter(torch.empty(members, states, genes))
        self.reset_parameters()
        if deviates:
            self.let_states_deviate()

    def reset_parameters(self) -> None:
        """Every prediction starts at the gene's mean; keys start as different from each other as their width allows."""
        for parameter in (self.query, self.deviation, self.log_basal, self.bias):
            nn.init.zeros_(parameter)
        for parameter in (self.raw_amount, self.raw_gain):
            nn.init.constant_(parameter, ONE)
        with torch.no_grad():
            for keys in self.key.flatten(0, 1):
                nn.init.orthogonal_(keys, gain=max(1.0, (len(keys) / self.width) ** 0.5))

    @torch.no_grad()
    def start_from(self, member: int, slopes: Tensor, deviations: Tensor, bias: Tensor) -> None:
        """Sets a member to the linear prediction bias_z + sum_j (slopes_j + deviations_zj) (m_j - centre_zj), nearly.

        slopes [N, R + 1], deviations [K, N, R + 1], bias [K, N], for regulators in their units. The singular directions
        of all slopes are dealt out to the heads, the strongest first, as many as their width holds. The basal score is
        LINEAR times the root of sum_j s_ij^2 in an average cell, so that the norm hardly bends the prediction; training
        decides where it does.
        """
        of_states = slopes + deviations if self.deviates else slopes[None]
        square = self.centre.to(slopes).square() + 1  # mean square of the inputs, whose sd is about 1
        every = torch.cat([slopes[None], deviations]).flatten(0, 1)  # [(1 + K) N, R + 1]
        _, _, directions = torch.linalg.svd(every.mT @ every)  # of the right singular vectors, [R + 1, R + 1]
        for head in range(self.heads):
            keys = directions[head :: self.heads][: self.width].mT.to(self.key)  # [R + 1, up to E]
            if keys.shape[1] == 0:
                continue
            used = slice(keys.shape[1])
            self.key[member, head, :, used] = keys
            self.query[member, head, :, used] = slopes.to(keys) @ keys
            if self.deviates:
                self.deviation[member, head, :, :, used] = deviations.to(keys) @ keys
            scores = of_states.to(keys) @ keys @ keys.mT
            size = (scores.square() * square.to(keys)[:, None]).sum(-1).mean(0).sqrt()
            basal = LINEAR * size.clamp(min=1.0)
            self.log_basal[member, head] = basal.log()
            self.raw_gain[member, head] = basal + torch.log(-torch.expm1(-basal))  # softplus of it is the basal score
        self.raw_amount[member] = math.log(math.expm1(1))
        self.bias[member] = bias.to(self.bias)

    def inputs(self, multiplicity: Tensor, basal: Tensor | None) -> Tensor:
        """multiplicity [C, R] of the regulators and basal [C] of the basal gene (None: 1) -> [C, R + 1], in units."""
        basal = multiplicity.new_ones(len(multiplicity)) if basal is None else basal.to(multiplicity)
        return torch.cat([multiplicity, basal[:, None]], 1) / self.unit

    def let_states_deviate(self) -> None:
        """Gives the states deviations, which are 0 to begin with."""
        shape = (self.members, self.heads, self.states, self.genes, self.width)
        self.deviation = nn.Parameter(self.deviation.new_zeros(shape))

    def part(self, member: int, genes: slice = slice(None)) -> RegulationLayer:
        """Some genes of one member as a layer of its own, in the same memory: what changes there changes here."""
        first, last, _ = genes.indices(self.genes)
        with torch.device("meta"):
            one = RegulationLayer(
                1, last - first, self.regulators.to("meta"), self.heads, self.width, self.states, self.deviates
            )
        own = slice(member, member + 1)
        for name, parameter in self.named_parameters():
            setattr(one, name, nn.Parameter(of_genes(name, parameter.data[own], genes)))
        for name, buffer in self.named_buffers():
            of_members = name in ("reads_depth", "predicts_ranks", "penalty")
            setattr(one, name, of_genes(name, buffer[own], genes) if of_members else buffer)
        one.regulators = self.regulators - first  # outside of this part: negative or too large
        return one

    @property
    def deviates(self) -> bool:
        """Whether the states have scores of their own."""
        return self.deviation.shape[2] > 0

    @property
    def of_values(self) -> list[int]:
        """The members that predict multiplicities; all of them where none does."""
        chosen: list[int] = (self.predicts_ranks == 0).nonzero()[:, 0].tolist()
        return chosen or list(range(self.members))

    def scores(self, genes: slice = slice(None), members: slice = slice(None), state: int = 0) -> Scores:
        """The scores of a slice of targets and members in one state."""
        query = self.query[members, :, genes]
        if self.deviates:
            query = query + self.deviation[members, :, state, genes]
        return self._scores(query, genes, members)

    def shared_scores(self, genes: slice = slice(None), members: slice = slice(None)) -> Scores:
        """The scores that the states deviate from."""
        return self._scores(self.query[members, :, genes], genes, members)

    def _scores(self, query: Tensor, genes: slice, members: slice) -> Scores:
        score = query @ self.key[members].mT
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

    def forward(self, multiplicity: Tensor, basal: Tensor | None = None, states: Tensor | None = None) -> Tensor:
        """multiplicity [C, R], basal [C] (None: 1), states [C, K] -> the members' mean, [C, N] in sds of each gene.

        states: how much each cell belongs to each state, which sums to 1; None: in equal parts.
        """
        with torch.autocast(multiplicity.device.type, enabled=False):
            m = self.inputs(multiplicity.to(self.unit), basal)
            if states is None:
                states = m.new_full((len(m), self.states), 1 / self.states)
            # One member after the other: the scores of all at once would be large where there are many genes.
            predictions = [self.predict(m, states, slice(p, p + 1))[0] for p in self.of_values]
            return torch.stack(predictions).mean(0)

    def predict(self, m: Tensor, states: Tensor, members: slice = slice(None)) -> Tensor:
        """Inputs m [C, R + 1] or [P, C, R + 1], in units, and states [.., C, K] -> predictions [P, C, N]."""
        prediction = states @ self.bias[members]
        if not self.deviates:
            return prediction + predict_from(self.scores(members=members), m, states @ self.centre)
        for k in range(self.states):
            of_state = predict_from(self.scores(members=members, state=k), m, self.centre[k])
            prediction = prediction + states[..., k : k + 1] * of_state
        return prediction

    def squared_slopes(self, factor: Tensor | None = None) -> Tensor:
        """What the penalty weighs, for each member and target [P, N]: the sum of the squared slopes that all states
        share and of the squared deviations, over the squared ratio. The slopes of the depth are left out.

        factor [N, R]: what each pair's slopes are divided by, where a prior gives pairs penalties of their own."""
        divided = 1.0 if factor is None else 1 / factor
        shared = self.shared_scores().head_slopes()[..., :-1]
        total = (shared * divided).square().sum((1, 3))
        for k in range(self.states if self.deviates else 0):
            deviation = self.scores(state=k).head_slopes()[..., :-1] - shared
            total = total + (deviation * divided).square().sum((1, 3)) / self.ratio.square()
        return total


def of_genes(name: str, values: Tensor, genes: slice) -> Tensor:
    """The part of a parameter, a buffer or a gradient of a layer, by its name, that belongs to some genes, as a view;
    the whole of one that belongs to none."""
    if name not in GENES:
        return values
    first, last, _ = genes.indices(values.shape[GENES[name]])
    return values.narrow(GENES[name], first, last - first)


def predict_from(scores: Scores, m: Tensor, centre: Tensor) -> Tensor:
    """The prediction of each member for the targets of `scores`, without their bias: [P, C, n].

    m [C, R + 1] or [P, C, R + 1]: inputs.   centre [.., R + 1]: those of an average cell.
    """
    m = m.unsqueeze(-3)
    centre = centre if centre.ndim == 1 else centre.unsqueeze(-3)
    amounts = (m - centre) @ (scores.score * scores.amount).mT
    return (amounts / scores.norms(m) * scores.gain.mT).sum(1)
