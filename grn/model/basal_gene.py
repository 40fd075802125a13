"""The basal gene: what it reads of the regulators, and what genes read of it in the next block.

As a query, the basal gene reads the regulators by spherical attention with scores of its own;
RMSNorm and one feed-forward map, applied T times, follow. As a key of the next block it hands on
what it has read: z_b. A gene's score on it is p_i . z_b, so that what the regulators do together,
and not one by one, reaches every gene by this path alone. It is a function of the regulators: no
path goes around the regulatory network.

Letters: P members, B cells, N genes, R regulators, Z width of the summary, H heads, E width of a
value.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flashsign import attention_by_scores, rms_norm

HEADS, VALUE = 8, 16  # of the basal gene's own query
EPS = 1e-6  # under roots, far below any norm of a cell


class StaticAttention(nn.Module):
    """Spherical attention with one query for all cells, so that the score of a key is one number a
    head.

    m [B, M], or [P, B, M] of each member -> [P, B, H E].
    """

    def __init__(self, members: int, keys: int, heads: int, width: int, spread: float = 1.0):
        super().__init__()
        self.score = nn.Parameter(torch.randn(members, heads, keys) * spread)
        self.value = nn.Parameter(torch.randn(members, heads, keys, width))

    def forward(self, m: Tensor) -> Tensor:
        read = attention_by_scores(
            self.score[:, :, None], self.value, m if m.ndim == 2 else m[:, None], eps=EPS
        )
        return read[:, :, :, 0].transpose(1, 2).flatten(2)


class FeedForward(nn.Module):
    """h <- h + f(norm(h)), `iterations` times with the same weights; then a last norm. h [P, ..,
    Z].
    """

    def __init__(self, members: int, width: int, hidden: int, iterations: int, dropout: float):
        super().__init__()
        self.up = nn.Parameter(torch.randn(members, width, hidden) * width**-0.5)
        self.up_bias = nn.Parameter(torch.zeros(members, 1, hidden))
        self.down = nn.Parameter(torch.randn(members, hidden, width) * 0.5 * hidden**-0.5)
        self.iterations, self.dropout = iterations, dropout

    def forward(self, h: Tensor) -> Tensor:
        for _ in range(self.iterations):
            change = F.gelu(rms_norm(h, eps=EPS) @ self.up + self.up_bias) @ self.down
            h = h + F.dropout(change, self.dropout, self.training)
        return rms_norm(h, eps=EPS)


class BasalGene(nn.Module):
    """keys: the regulators, the basal gene's own multiplicity (the depth) and a constant.

    gate [P]: how much of what genes read of b a member's predictions have, 0 to 1, found on cells
        that it has not learned from.
    """

    gate: Tensor

    def __init__(
        self,
        members: int,
        genes: int,
        regulators: int,
        states: int,
        width: int,
        hidden: int,
        iterations: int,
        dropout: float,
    ):
        super().__init__()
        self.read = StaticAttention(members, regulators + 2, HEADS, VALUE, spread=0.25)
        self.output = nn.Parameter(
            torch.randn(members, HEADS * VALUE, width) * (HEADS * VALUE) ** -0.5
        )
        self.feed_forward = FeedForward(members, width, hidden, iterations, dropout)
        self.query = nn.Parameter(torch.zeros(members, genes, width))  # p_i
        self.bias = nn.Parameter(torch.zeros(members, genes))
        self.state = nn.Parameter(torch.zeros(members, regulators + 1, states))
        self.state_bias = nn.Parameter(torch.zeros(members, 1, states))
        self.register_buffer("gate", torch.ones(members))
        self.dropout = dropout

    def summary(self, m: Tensor) -> Tensor:
        """z_b of multiplicities without their states' means: [P, B, R + 1] -> [P, B, Z]."""
        return self.feed_forward(self.read(F.pad(m, (0, 1), value=1.0)) @ self.output)

    def forward(self, m: Tensor, pick: Tensor) -> Tensor:
        """[P, B, n] in sds of the genes."""
        key = F.dropout(self.summary(m), self.dropout, self.training)
        return key @ self.query[:, pick].mT + self.bias[:, None, pick]

    def states(self, m: Tensor) -> Tensor:
        """Log probabilities of the states of cells, from multiplicities without the mean over all
        cells [C, R + 1]:
        [P, C, S].
        """
        return (m @ self.state + self.state_bias).log_softmax(-1)
