"""A block whose attention is a signed network: genes read the regulators and the basal gene.

    s_ij(z) = m_j (q_i + d_iz) . k_j
    n_i^2   = b_i^2 + sum_j s_ij^2
    w_ij    = s_ij / n_i
    y_i     = level_iz + sum over heads g_i sum_j (w_ij - w_ij at the state's means) a_j

z: the state of the cell (its type, for example). s_ij is 0 on the gene itself.
b_i: the score of the basal gene, which bounds the norm from below.
The state's means are those of its multiplicities.

Training does not identify the sign of an attention weight: k and v, or q and o, may change theirs
together. Here the value of a regulator is a positive amount a_j and a gene's read-out a positive
gain g_i, so that neither may, and the sign of a score is the sign of what the regulator does.
Queries and keys belong to genes and states and not to cells: Q K^T is one matrix a state, read from
the model's file without any cell.

Letters: P members, B cells, n genes, R regulators, H query heads, K key heads, E head width, S
states.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from flashsign import attention_and_penalty, attention_by_scores

ONE = math.log(math.e - 1)  # softplus(ONE) = 1
MOST_KEYS = 256  # that are learned at full width
BEND = 10.0  # of the norm that a block starts with, what is not the basal gene's is a hundredth


class GeneEmbedding(nn.Module):
    """The queries of genes, what a state adds to them, and the keys of the regulators and, last, of
    the basal gene.

    query [P, H, N, E], deviation [P, H, S or 0, N, E], key [P, K, R + 1, E]; None where heads are
    as wide as there are keys, and these are many: the keys are the identity then, as their products
    would take most of a step.
    """

    def __init__(
        self,
        members: int,
        genes: int,
        keys: int,
        heads: int,
        key_heads: int,
        width: int,
        states: int,
    ):
        super().__init__()
        width = min(width, keys)
        self.query = nn.Parameter(
            torch.randn(members, heads, genes, width) * 0.01 / math.sqrt(width)
        )
        self.deviation = nn.Parameter(
            torch.zeros(members, heads, states if states > 1 else 0, genes, width)
        )
        free = width == keys > MOST_KEYS
        self.key = None if free else nn.Parameter(torch.empty(members, key_heads, keys, width))
        for key in () if self.key is None else self.key.data.flatten(0, 1):
            nn.init.orthogonal_(key, gain=max(1.0, math.sqrt(keys / width)))

    def forward(self, pick: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the queries in each state, [P, H, S, n, E] (one state: S = 1), and the keys of
        each query head.
        """
        query = self.query.index_select(-2, pick)[:, :, None]
        if self.deviation.shape[2]:
            query = query + self.deviation.index_select(-2, pick)
        if self.key is None:
            return query, None
        return query, self.key.repeat_interleave(query.shape[1] // self.key.shape[1], 1)

    @torch.no_grad()
    def start(self, member: int, shared: Tensor, deviations: Tensor | None) -> float:
        """Set the queries and keys of a member to scores that are shared [n, R + 1] and, in each
        state, deviate from them, [S, n, R + 1].

        Return the share of their squares that heads are too narrow for.

        The first query head of each key head holds them; where heads are narrow, the next leading
        directions of the keys. The queries of the others start at 0.
        """
        if deviations is None:
            deviations = shared.new_zeros(len(self.deviation[member, 0]), *shared.shape)
        for table in (self.query, self.deviation):
            table[member] = 0
        if self.key is None or self.key.shape[-1] == self.key.shape[-2]:
            self.query[member, 0], self.deviation[member, 0] = shared, deviations
            if self.key is not None:
                self.key[member, 0] = torch.eye(self.key.shape[-1])
            return 0.0
        every = torch.cat([shared[None], deviations]).flatten(0, 1)
        values, directions = torch.linalg.eigh((every.T @ every).double())
        values, directions = values.flip(0).clamp(min=0), directions.flip(1).to(every)
        heads, width = self.key.shape[1], self.key.shape[-1]
        for head in range(heads):
            own = directions[:, head * width : (head + 1) * width]  # the last may have fewer
            some, first = slice(0, own.shape[1]), head * (self.query.shape[1] // heads)
            self.key[member, head, :, some] = own
            self.query[member, first, :, some] = shared @ own
            self.deviation[member, first, ..., some] = deviations @ own
        kept = heads * width
        return float(values[kept:].sum() / values.sum().clamp(min=1e-30))


class Scores(torch.autograd.Function):
    """Q K^T, [P, H, S, n, K] of queries [P, H, S, n, E] and keys [P, H, K, E] (None: the identity),
    and 0 at the key `own` [n] (-1: none) of each query. Tables are the largest tensors here: masks
    of their size, forward and backward, were 7 % of a step. So the backward pass takes off again,
    to float rounding, what a gradient at `own` has added.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor | None, own: Tensor | None) -> Tensor:
        scores = (
            query.clone()
            if key is None
            else (query.flatten(2, 3) @ key.mT).unflatten(2, query.shape[2:4])
        )
        if own is not None:
            at = own.clamp(min=0)[:, None].expand(*scores.shape[:-1], 1)
            scores.scatter_(-1, at, scores.gather(-1, at).masked_fill_((own >= 0)[:, None], 0.0))
        ctx.save_for_backward(None if key is None else query, key, own)
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_scores: Tensor) -> tuple[Tensor, Tensor | None, None]:
        query, key, own = ctx.saved_tensors
        if key is None:
            if own is not None:
                at = own.clamp(min=0)[:, None].expand(*of_scores.shape[:-1], 1)
                of_own = of_scores.gather(-1, at).masked_fill_((own >= 0)[:, None], 0.0)
                of_scores = of_scores.scatter(-1, at, of_own)
            return of_scores, None, None
        of_rows = of_scores.flatten(2, 3)
        of_query = (of_rows @ key).unflatten(2, query.shape[2:4])
        of_key = of_rows.mT @ query.flatten(2, 3)
        if own is not None:
            at = own.clamp(min=0)
            left_out = of_scores.gather(-1, at[:, None].expand(*of_scores.shape[:-1], 1))
            left_out = left_out.masked_fill_((own < 0)[:, None], 0.0)
            of_query -= left_out * key.index_select(-2, at)[:, :, None]
            of_key.index_add_(-2, at, (left_out * query).sum(2), alpha=-1)
        return of_query, of_key, None


class SignedBlock(nn.Module):
    """A block, with the means that its cells' states have.

    own [N]: position of each gene of the block among the regulators, -1 for others.
    centre, square [P, S, R + 1]: mean multiplicities of a state's cells, and mean squares.
    level [P, S, N]: mean of the standardised genes.
    mixed [S, S]: how the means of states are mixed in training (regulation/levels.py); the identity
        elsewhere.
    """

    own: Tensor
    centre: Tensor
    square: Tensor
    level: Tensor
    mixed: Tensor

    def __init__(
        self,
        members: int,
        own: Tensor,
        regulators: int,
        heads: int,
        key_heads: int,
        width: int,
        states: int,
    ):
        super().__init__()
        genes, keys = len(own), regulators + 1
        self.embedding = GeneEmbedding(members, genes, keys, heads, key_heads, width, states)
        self.raw_amount = nn.Parameter(torch.full((members, key_heads, keys), ONE))
        self.raw_gain = nn.Parameter(torch.full((members, heads, genes), ONE))
        self.log_basal = nn.Parameter(torch.zeros(members, heads, genes))
        self.bias = nn.Parameter(torch.zeros(members, genes))
        self.register_buffer("own", own)
        self.of_regulators = bool((own >= 0).any())  # other genes meet themselves nowhere
        self.register_buffer("centre", torch.zeros(members, states, keys))
        self.register_buffer("square", torch.ones(members, states, keys))
        self.register_buffer("level", torch.zeros(members, states, genes))
        self.register_buffer("mixed", torch.eye(states), persistent=False)

    @property
    def genes(self) -> int:
        return len(self.own)

    def means(self, of: Tensor) -> Tensor:
        """`centre` or `level`. In training a part of the differences between states may be left in,
        so that they count as regulation; predictions know the means of states in full.
        """
        if not self.training:
            return of
        with torch.autocast(of.device.type, enabled=False):  # depths are far from 0
            return self.mixed @ of

    def scores(self, pick: Tensor) -> Tensor:
        """Q K^T for a multiplicity of 1: [P, H, S, n, R + 1], 0 where a gene meets itself."""
        query, key = self.embedding(pick)
        own = self.own[pick] if self.of_regulators else None
        with torch.autocast(query.device.type, enabled=False):  # sums over keys cancel
            scores: Tensor = Scores.apply(query, key, own)  # type: ignore[no-untyped-call]
        return scores

    @torch.no_grad()
    def start(self, member: int, shared: Tensor, deviations: Tensor | None) -> float:
        """Set a member to slopes that are shared, [n, R + 1], and, in each state, deviate from
        them, [S, n, R + 1]: what one unit of a regulator adds in a cell of average norm.

        Return the share of the squared scores that heads are too narrow for.

        b_i is BEND times the root mean square of what the gene reads, so that norms hardly differ
        between cells.
        """
        slopes = shared[None] if deviations is None else shared + deviations
        read = (slopes.square() @ self.square[member, ..., None])[..., 0].mean(0).sqrt()  # [n]
        basal = torch.where(read > 0, BEND * read, 1.0)
        self.log_basal[member] = basal.log()
        self.raw_gain[member] = basal + torch.log(-torch.expm1(-basal))  # softplus gives it back
        self.raw_amount[member] = ONE
        bent = math.sqrt(1 + 1 / BEND**2)  # n_i over b_i
        return self.embedding.start(
            member, bent * shared, None if deviations is None else bent * deviations
        )

    def amounts(self) -> Tensor:
        """a_j, above 0, of the regulators and the basal gene: [P, H, R + 1]."""
        amount = F.softplus(self.raw_amount)
        return amount.repeat_interleave(self.raw_gain.shape[1] // amount.shape[1], 1)

    def gains(self, pick: Tensor) -> tuple[Tensor, Tensor]:
        """g_i and b_i, above 0: [P, H, n] each."""
        return F.softplus(self.raw_gain[:, :, pick]), self.log_basal[:, :, pick].exp()

    def forward(
        self, m: Tensor, states: Tensor, pick: Tensor, room: Sequence[int] | None = None
    ) -> Tensor:
        """m [B, R + 1], or [P, B, R + 1] of each member, states [B, S] -> [P, B, n] in sds of the
        genes.

        A cell that belongs to several states in part has their mean. room: see Bags.
        """
        cell, share, sizes = bags_of_states(states, room)
        keys, centre = bags_of_cells(m, cell), self.means(self.centre)[:, None]
        (gain, basal), amounts = self.gains(pick), self.amounts()[..., None]
        read = attention_by_scores(
            self.scores(pick), amounts, keys, centre=centre, basal=basal, groups=sizes
        )
        return self.told(read[..., 0], gain, cell, share, states, pick)

    def learned(
        self,
        m: Tensor,
        states: Tensor,
        pick: Tensor,
        penalty: Tensor,
        prior: Tensor | None = None,
        room: Sequence[int] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the output of `forward`, and the penalty of the slopes (penalty.py), [P], from the
        scores that both need.

        penalty [P, 3].
        prior [n, R]: what slopes on regulators are divided by.
        room: see Bags.
        """
        cell, share, sizes = bags_of_states(states, room)
        gain, basal = self.gains(pick)
        read, shrink = attention_and_penalty(
            self.scores(pick),
            self.amounts(),
            bags_of_cells(m, cell),
            centre=self.means(self.centre)[:, None],
            gain=gain,
            basal=basal,
            square=self.square,
            penalty=penalty,
            prior=None if prior is None else F.pad(prior, (0, 1), value=1.0),
            groups=sizes,
        )
        return self.told(read, gain, cell, share, states, pick), shrink

    def told(
        self, read: Tensor, gain: Tensor, cell: Tensor, share: Tensor, states: Tensor, pick: Tensor
    ) -> Tensor:
        """Return what bags have read [P, H, cells in their states, n], added up for each cell:
        [P, B, n].

        cell, share: see bags_of_states.
        """
        change = (read * gain[:, :, None]).sum(1) * share[:, None]
        level = (
            states @ self.means(self.level[..., pick])
            + states.sum(1, keepdim=True) * self.bias[:, None, pick]
        )
        return level.index_add(1, cell, change)

    def slopes(self, scores: Tensor, pick: Tensor) -> Tensor:
        """Return what one unit of a regulator adds to a gene in an average cell of each state:
        [P, S, n, R + 1].
        """
        gain, basal = self.gains(pick)
        norm = (
            scores.square() @ self.square[:, None, :, :, None] + basal.square()[:, :, None, :, None]
        ).sqrt()
        return (scores * self.amounts()[:, :, None, None] * gain[:, :, None, :, None] / norm).sum(1)

    @torch.no_grad()
    def derivatives(
        self,
        m: Tensor,
        state: int,
        pick: Tensor,
        scores: Tensor,
        share: Tensor,
        heads: slice = slice(None),
    ) -> Tensor:
        """Return the mean over cells of d y_i / d m_j, the change of the norm in it: [P, n, R + 1].

        m [B, R + 1] or [P, B, R + 1]: cells of the state.
        share [B]: what each counts.
        heads: of these alone.

            d y_i / d m_j = sum over heads g_i s_ij (a_j / n_i - m_j s_ij sum_k (m_k - c_k) s_ik a_k
            / n_i^3)
        """
        gain, basal = (each[:, heads] for each in self.gains(pick))
        s, amount = (
            scores[:, heads, state],
            self.amounts()[:, heads],
        )  # [P, H, n, R + 1], [P, H, R + 1]
        m = m if m.ndim == 2 else m[:, None]
        square = m.square() @ s.square().mT + basal.square()[:, :, None]  # [P, H, B, n]
        read = (m - self.centre[:, None, state, None]) @ (s * amount[:, :, None]).mT
        inverse = square.rsqrt() * share[:, None]
        bent = (read * inverse / square).mT @ m  # [P, H, n, R + 1]
        of_heads = s * (amount[:, :, None] * inverse.sum(2)[..., None] - s * bent)
        return (gain[..., None] * of_heads).sum(1)

    @torch.no_grad()
    def mean_weights(
        self, m: Tensor, state: int, pick: Tensor, scores: Tensor, heads: slice = slice(None)
    ) -> Tensor:
        """Return the mean over cells of w_ij = s_ij / n_i: [P, H, n, R + 1]. Arguments as for
        `derivatives`.
        """
        s, basal = scores[:, heads, state], self.gains(pick)[1][:, heads]
        m = m if m.ndim == 2 else m[:, None]
        inverse = (m.square() @ s.square().mT + basal.square()[:, :, None]).rsqrt()
        return s * (inverse.mT @ m) / m.shape[-2]


def bags_of_states(
    states: Tensor, room: Sequence[int] | None = None
) -> tuple[Tensor, Tensor, Sequence[int]]:
    """Return the cell of each bag and how much it belongs to the bag's state, one state's bags
    after another's, and their number in each state.

    A cell is a bag in each state [C, S] that it belongs to. Where there is more room, the rest are
    bags of cell 0 that belong to the state by 0: the shapes of a CUDA graph are the same in every
    step.
    """
    belongs, number = states.T > 0, torch.arange(len(states), device=states.device)
    sizes = belongs.sum(1).tolist() if room is None else room
    place = belongs.cumsum(1) - 1
    cells, shares = [], []
    for state, size in enumerate(sizes):
        to = place[state].where(belongs[state], size)  # the others: one beyond the end
        cells.append(number.new_zeros(size + 1).scatter_(0, to, number)[:size])
        shares.append(states.new_zeros(size + 1).scatter_(0, to, states[:, state])[:size])
    return torch.cat(cells), torch.cat(shares), sizes


def bags_of_cells(m: Tensor, cell: Tensor) -> Tensor:
    """Return the multiplicities of each bag, [C, R + 1] of all members or [P, 1, C, R + 1]
    of each.
    """
    return m.index_select(-2, cell) if m.ndim == 2 else m.index_select(-2, cell)[:, None]
