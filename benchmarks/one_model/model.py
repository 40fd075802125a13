"""One model: a transformer over bags of genes whose Q K^T, block after block, are signed networks.

Tokens are genes i, the basal gene b (the last key; its multiplicity is the cell's depth) and the identity token c.

    signed attention   s_ij(z) = m_j (q_i + d_iz) . k_j       z: the state (type) of the cell; 0 on itself
                       w_ij = s_ij / n_i,  n_i^2 = b_i^2 + sum_j s_ij^2,  b_i: the basal score
                       y_i  = level_iz + sum over heads g_i sum_j (w_ij - w_ij at the state's mean multiplicities) a_j
    block 1            regulators read regulators. The residual stream of regulator j is its multiplicity:
                       m'_j = m_j + r_j (y_j - m_j),  r_j: the share of counting in what the others leave of it
    block 2            genes read the regulators at m': direct effects; b reads them with scores of its own, then
                       RMSNorm and a feed-forward map, T times: z_b
    block 3            genes read b, whose key is z_b:   y_i += p_i . z_b
    identity           c reads all genes, then a feed-forward map: the odds of the types, X_grn, and every gene

a, g > 0, so that the sign of a score is the sign of its effect. q, k and d belong to genes, not to cells: the scores of
a block are one matrix a state. `attention.py` has the same numbers by flashsign.spherical_attention.

Letters: P members, G groups of cells that share a state, B cells of a group, N genes, n of them asked for,
R regulators, H heads, E head width, S states, Z width of a summary, K types.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

EPS = 1e-6
ONE = math.log(math.e - 1)  # softplus(ONE) = 1


@dataclass(frozen=True)
class Shape:
    """The sizes of a model. With states = 1 there are no deviations; with types = 0 no identity token."""

    genes: int
    regulators: int
    members: int = 5
    states: int = 1
    types: int = 0
    heads: int = 2
    width: int = 64
    summary: int = 128  # width of what b has read; 0: no second block
    summary_heads: int = 8
    summary_value: int = 16
    hidden: int = 256
    iterations: int = 2
    dropout: float = 0.5
    masked: float = 0.3  # share of the regulators that are hidden from b in a training step
    identity_heads: int = 2  # of each kind
    identity_value: int = 16
    identity_rank: int = 32
    identity: int = 64
    identity_hidden: int = 128


def rms_norm(x: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt()


def normal(*shape: int, sd: float = 1.0) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape) * sd)


def full(*shape: int, value: float = 0.0) -> nn.Parameter:
    return nn.Parameter(torch.full(shape, value))


class SignedAttention(nn.Module):
    """Genes read the regulators and the basal gene. Scores are of genes and states, so cells cost two products.

    own [N]: position among the regulators, -1 for other genes.   centre, square [P, S, R + 1]: mean and mean square of
    the multiplicities of a state's cells.   level [P, S, N]: mean of the standardised genes.
    """

    def __init__(self, shape: Shape, own: Tensor):
        super().__init__()
        P, H, R, E = shape.members, shape.heads, shape.regulators, min(shape.width, shape.regulators + 1)
        N = len(own)
        self.query = normal(P, H, N, E, sd=0.01 / math.sqrt(E))
        self.deviation = full(P, H, shape.states if shape.states > 1 else 0, N, E)
        self.key = nn.Parameter(torch.empty(P, H, R + 1, E))
        for key in self.key.data.flatten(0, 1):
            nn.init.orthogonal_(key, gain=max(1.0, math.sqrt((R + 1) / E)))
        self.raw_amount, self.raw_gain = full(P, H, R + 1, value=ONE), full(P, H, N, value=ONE)
        self.log_basal, self.bias = full(P, H, N), full(P, N)
        self.register_buffer("own", own)
        self.register_buffer("centre", torch.zeros(P, shape.states, R + 1))
        self.register_buffer("square", torch.ones(P, shape.states, R + 1))
        self.register_buffer("level", torch.zeros(P, shape.states, N))

    def scores(self, pick: Tensor) -> Tensor:
        """(q_i + d_iz) . k_j, 0 on itself: [P, H, S, n, R + 1]."""
        query = self.query[:, :, None, pick]
        if self.deviation.shape[2]:
            query = query + self.deviation[:, :, :, pick]
        score = query @ self.key[:, :, None].mT
        own = self.own[pick]
        itself = own[:, None] == torch.arange(score.shape[-1], device=own.device)
        return score.masked_fill(itself, 0.0)

    def positive(self, pick: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Amounts [P, H, 1, 1, R + 1], gains and basal scores [P, H, 1, n, 1]."""
        amount, gain = F.softplus(self.raw_amount)[:, :, None, None], F.softplus(self.raw_gain[:, :, pick])
        return amount, gain[:, :, None, :, None], self.log_basal[:, :, pick].exp()[:, :, None, :, None]

    def slopes(self, score: Tensor, pick: Tensor) -> Tensor:
        """What one unit of a regulator adds to a gene in an average cell: [P, S, n, R + 1]."""
        amount, gain, basal = self.positive(pick)
        norm = (score.square() @ self.square[:, None, :, :, None] + basal.square()).sqrt()
        return (score * amount * gain / norm).sum(1)

    def forward(self, m: Tensor, state: Tensor, pick: Tensor, score: Tensor | None = None) -> Tensor:
        """m [P, G, B, R + 1], state [G] -> [P, G, B, n]."""
        score = (self.scores(pick) if score is None else score)[:, :, state]
        amount, gain, basal = self.positive(pick)
        change = (m - self.centre[:, state, None])[:, None] @ (score * amount).mT
        norm = (m.square()[:, None] @ score.square().mT + basal.square().mT).sqrt()
        return (change * gain.mT / norm).sum(1) + (self.level[:, state] + self.bias[:, None])[..., None, pick]


class StaticAttention(nn.Module):
    """One query for all cells: w_j = s_j m_j / n, of H heads, values of E. m [P, .., M], or [B, M] for all members ->
    [P, .., H E]."""

    def __init__(self, members: int, keys: int, heads: int, width: int):
        super().__init__()
        self.score, self.value = normal(members, heads, keys), normal(members, heads, keys, width)

    def forward(self, m: Tensor) -> Tensor:
        P, H, M, E = self.value.shape
        scored = self.score[..., None] * self.value  # static scores multiply the values once
        if m.ndim == 2:  # the same cells for all members: one product for all of them
            message = (m @ scored.permute(2, 0, 1, 3).reshape(M, P * H * E)).view(-1, P, H, E).transpose(0, 1)
            square = (m.square() @ self.score.square().view(P * H, M).T).view(-1, P, H).transpose(0, 1)
            return (message * (square + EPS).rsqrt()[..., None]).flatten(2)
        flat = m.flatten(1, -2)
        message = (flat @ scored.transpose(1, 2).reshape(P, M, H * E)).unflatten(-1, (H, E))
        square = flat.square() @ self.score.square().mT
        return (message * (square + EPS).rsqrt()[..., None]).flatten(2).view(*m.shape[:-1], H * E)


class FeedForward(nn.Module):
    """h <- h + f(norm(h)), T times with the same weights."""

    def __init__(self, members: int, width: int, hidden: int, iterations: int, dropout: float, scale: float = 1.0):
        super().__init__()
        self.up, self.up_bias = normal(members, width, hidden, sd=width**-0.5), full(members, 1, hidden)
        self.down = normal(members, hidden, width, sd=scale * hidden**-0.5)
        self.iterations, self.dropout = iterations, dropout

    def forward(self, h: Tensor) -> Tensor:
        shape, h = h.shape, h.flatten(1, -2)
        for _ in range(self.iterations):
            f = F.gelu(rms_norm(h) @ self.up + self.up_bias) @ self.down
            h = h + F.dropout(f, self.dropout, self.training)
        return rms_norm(h).view(shape)


class Basal(nn.Module):
    """What the basal gene reads in block 2, and what the genes read of it in block 3."""

    def __init__(self, shape: Shape):
        super().__init__()
        P, N, Z, heads, value = shape.members, shape.genes, shape.summary, shape.summary_heads, shape.summary_value
        self.masked, self.dropout = shape.masked, shape.dropout
        self.read = StaticAttention(P, shape.regulators + 2, heads, value)
        nn.init.normal_(self.read.score, std=0.25)
        self.mix = normal(P, heads * value, Z, sd=(heads * value) ** -0.5)
        self.think = FeedForward(P, Z, shape.hidden, shape.iterations, shape.dropout, scale=0.5)
        self.query, self.bias = full(P, N, Z), full(P, N)

    def summary(self, m: Tensor) -> Tensor:
        """Centred multiplicities [P, G, B, R + 1] -> [P, G, B, Z]."""
        m = torch.cat([m, torch.ones_like(m[..., :1])], -1)
        return self.think((self.read(m).flatten(1, -2) @ self.mix).view(*m.shape[:-1], -1))

    def forward(self, m: Tensor, pick: Tensor) -> Tensor:
        key = F.dropout(self.summary(m), self.dropout, self.training)
        score = key.flatten(1, -2) @ self.query[:, pick].mT
        return score.view(*m.shape[:-1], -1)


class Identity(nn.Module):
    """The identity token reads all genes: as they are, and as they differ from the mean; the only path to the type."""

    def __init__(self, shape: Shape):
        super().__init__()
        P, N, H, E, Z = shape.members, shape.genes, shape.identity_heads, shape.identity_value, shape.identity
        self.present, self.different = StaticAttention(P, N + 1, H, E), StaticAttention(P, N + 1, H, E)
        self.first = normal(P, N, shape.identity_rank, sd=N**-0.5)
        self.output = normal(P, 2 * H * E + shape.identity_rank, Z, sd=(2 * H * E) ** -0.5)
        self.think = FeedForward(P, Z, shape.identity_hidden, 1, 0.0, scale=0.5)
        self.head, self.head_bias = full(P, Z, shape.types), full(P, 1, shape.types)
        self.predict = normal(P, Z, N, sd=0.01)
        self.register_buffer("importance", torch.full((P,), 1 / P))  # of each member's log probabilities
        self.register_buffer("scale", torch.ones(()))

    def forward(self, present: Tensor, different: Tensor) -> tuple[Tensor, Tensor]:
        """Both [B, N], 0 where a gene is hidden -> summaries [P, B, Z] and logits [P, B, K]."""
        one = torch.ones_like(present[:, :1])
        read = [self.present(torch.cat([present, one], -1)), self.different(torch.cat([different, one], -1))]
        P, N, rank = self.first.shape
        first = (different @ self.first.transpose(0, 1).reshape(N, P * rank)).view(-1, P, rank).transpose(0, 1)
        z = self.think(rms_norm(torch.cat([*read, first], -1) @ self.output))
        return z, z @ self.head + self.head_bias

    def of_members(self, present: Tensor, different: Tensor) -> Tensor:
        """Log probabilities [P, B, K]."""
        return self(present * self.scale, different)[1].log_softmax(-1)


class Model(nn.Module):
    """m [P, G, B, R + 1]: multiplicities of the regulators, last that of the basal gene, in units of their sd.
    state [G]: of each group of cells.   pick [n]: the genes that are asked for -> [P, G, B, n] in sds of each gene.

    A regulator is predicted by block 1, all other genes by block 2.   counting [R]: r_j.   unit [R + 1]: sd of m'.
    """

    def __init__(self, shape: Shape, own: Tensor):
        super().__init__()
        self.shape, R = shape, shape.regulators
        self.first = SignedAttention(shape, torch.arange(R, device=own.device))
        self.second = SignedAttention(shape, own)
        self.basal = Basal(shape) if shape.summary else None
        self.identity = Identity(shape) if shape.types else None
        self.register_buffer("own", own)
        self.register_buffer("counting", torch.zeros(R))
        self.register_buffer("unit", torch.ones(R + 1))

    def among(self, m: Tensor, state: Tensor, score: Tensor | None = None) -> Tensor:
        """Block 1: what the regulators say of each other, [P, G, B, R] in sds."""
        return self.first(m, state, torch.arange(self.shape.regulators, device=m.device), score)

    def expected(self, m: Tensor, y: Tensor, state: Tensor) -> Tensor:
        """m' of every regulator, in its unit."""
        change = self.counting * (
            y - self.first.level[:, state, None] - (m - self.first.centre[:, state, None])[..., :-1]
        )
        return (m + F.pad(change, (0, 1))) / self.unit

    def of_genes(
        self, m: Tensor, state: Tensor, pick: Tensor, hidden: Tensor | None = None, score: Tensor | None = None
    ) -> Tensor:
        """Blocks 2 and 3, from m' of the regulators: [P, G, B, n].   hidden [P, G, B, R + 1]: what b does not see."""
        y = self.second(m, state, pick, score)
        if self.basal is None:
            return y
        seen = m - self.second.centre[:, state, None]
        return y + self.basal(seen if hidden is None else seen.masked_fill(hidden, 0.0), pick)

    def both(self, m: Tensor, state: Tensor, pick: Tensor, hidden: Tensor | None = None, scores=(None, None)) -> Tensor:
        """All regulators, and the genes asked for, which are none: [P, G, B, R + n].   scores: where they are known."""
        y = self.among(m, state, scores[0])
        return torch.cat([y, self.of_genes(self.expected(m, y, state), state, pick, hidden, scores[1])], -1)

    def forward(
        self, m: Tensor, state: Tensor, pick: Tensor, hidden: Tensor | None = None, scores=(None, None)
    ) -> Tensor:
        found = self.both(m, state, pick, hidden, scores)
        place = torch.where(
            self.own[pick] >= 0, self.own[pick], self.shape.regulators + torch.arange(len(pick), device=pick.device)
        )
        return found[..., place]
