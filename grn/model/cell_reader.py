"""The cell reader: the path from a cell to its summary, and from there to the odds of the cell types.

A member is one static layer of spherical attention, whose query is the same for every cell, so that the score of a gene
in a head is one number. Half of the heads read multiplicities, which tell what a cell has, the others standardised
ones, which tell how it differs from the other cells; labels differ in which of the two they follow. A linear map of low
rank is the first value of the summary, beside the heads. Small and without blocks, so that members train as one batch
in seconds, and that a hundred thousand cells are read in a minute.

Letters: P members, C cells, N genes, H heads of one kind, E head width, S summary width, K cell types, D embedding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LARGEST = 8.0  # sds from the mean, where differences are cut off: a rare gene is many sds away where it is seen
EPS = 1e-6  # added under roots, far below any norm of a cell with a gene


@dataclass(frozen=True)
class ReaderShape:
    """The sizes of a reader. heads: of each of the two kinds.   rank: of the linear first value.   embedding: width of
    what is written as a cell's representation.   held_out: number of held-out cells that are kept (see `threshold`).
    """

    members: int
    heads: int
    width: int
    rank: int
    summary: int
    hidden: int
    embedding: int
    held_out: int = 0


class StaticAttention(nn.Module):
    """Spherical attention with one query for all cells: w_cj = x_cj a_j / n_c, out_c = sum_j w_cj v_j, per head.

    n_c is the L2 norm of the scores, that of the basal gene included: the yardstick for absolute levels.
    x [C, N], basal [C] -> [P, C, H * E].
    """

    def __init__(self, members: int, genes: int, heads: int, width: int):
        super().__init__()
        self.score = nn.Parameter(torch.empty(members, heads, genes))
        self.value = nn.Parameter(torch.empty(members, heads, genes, width))
        self.basal_score = nn.Parameter(torch.empty(members, heads))
        self.basal_value = nn.Parameter(torch.empty(members, heads, width))

    def forward(self, x: Tensor, basal: Tensor) -> Tensor:
        return self.normalised(*self.sums(x, basal))

    def sums(self, x: Tensor, basal: Tensor) -> tuple[Tensor, Tensor]:
        """The two sums over genes: of scores times values, [C, P, H, E], and of squared scores, [C, P, H]."""
        members, heads, genes = self.score.shape
        # Scores are static, so they multiply the values once, and all heads of all members are one matrix product.
        scored = (self.score[..., None] * self.value).permute(2, 0, 1, 3).reshape(genes, -1)
        messages = (x @ scored).unflatten(-1, (members, heads, -1))
        messages = messages + basal[:, None, None, None] * (self.basal_score[..., None] * self.basal_value)
        squares = x.square() @ self.score.square().flatten(0, 1).T
        squares = squares.unflatten(-1, (members, heads)) + (basal[:, None, None] * self.basal_score).square()
        return messages, squares

    def without_each(self, x: Tensor, basal: Tensor) -> Tensor:
        """A cell's output with each of its genes hidden in turn. x [N], basal [] -> [P, N, H * E]."""
        messages, squares = self.sums(x[None], basal[None])
        scores = (x * self.score).permute(2, 0, 1)  # [N, P, H]
        messages = messages - scores[..., None] * self.value.permute(2, 0, 1, 3)
        return self.normalised(messages, (squares - scores.square()).clamp(min=0))

    @staticmethod
    def normalised(messages: Tensor, squares: Tensor) -> Tensor:
        return (messages * (squares + EPS).rsqrt()[..., None]).flatten(2).transpose(0, 1)


class CellReader(nn.Module):
    """Multiplicities [C, N] -> (embedding [C, D], logits [C, K]) of an ensemble.

    importance [P]: what each member's log probabilities count, chosen on held-out cells; their sum sharpens or softens
    the probabilities, so that a confidence of .9 is right nine times of ten.   axes [P * S, D]: the leading directions
    of the members' summaries over the training cells.   confidence, right: of held-out cells, which no judging member
    had seen.
    """

    mean: Tensor
    sd: Tensor
    scale: Tensor
    importance: Tensor
    centre: Tensor
    axes: Tensor
    confidence: Tensor
    right: Tensor

    def __init__(self, genes: int, classes: int, shape: ReaderShape):
        super().__init__()
        self.shape, self.genes, self.classes = shape, genes, classes
        members, summary = shape.members, shape.summary
        self.present = StaticAttention(members, genes, shape.heads, shape.width)
        self.different = StaticAttention(members, genes, shape.heads, shape.width)
        self.output = nn.Parameter(torch.empty(members, 2 * shape.heads * shape.width, summary))
        self.first = nn.Parameter(torch.empty(members, genes, shape.rank))
        self.first_output = nn.Parameter(torch.empty(members, shape.rank, summary))
        self.up = nn.Parameter(torch.empty(members, summary, shape.hidden))
        self.up_bias = nn.Parameter(torch.empty(members, 1, shape.hidden))
        self.down = nn.Parameter(torch.empty(members, shape.hidden, summary))
        self.head = nn.Parameter(torch.empty(members, summary, classes))
        self.head_bias = nn.Parameter(torch.empty(members, 1, classes))
        self.register_buffer("mean", torch.zeros(genes))
        self.register_buffer("sd", torch.ones(genes))
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("importance", torch.full((members,), 1 / members))
        self.register_buffer("centre", torch.zeros(members * summary))
        self.register_buffer("axes", torch.zeros(members * summary, shape.embedding))
        self.register_buffer("confidence", torch.zeros(shape.held_out))
        self.register_buffer("right", torch.zeros(shape.held_out, dtype=torch.bool))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for attention in (self.present, self.different):
            for parameter in attention.parameters():
                nn.init.normal_(parameter)
        nn.init.normal_(self.first, std=1 / math.sqrt(self.genes))
        for matrix in (self.output, self.first_output, self.up):
            nn.init.normal_(matrix, std=1 / math.sqrt(matrix.shape[1]))
        nn.init.normal_(self.down, std=0.5 / math.sqrt(self.shape.hidden))
        for zero in (self.up_bias, self.head, self.head_bias):
            nn.init.zeros_(zero)

    def standardised(self, multiplicity: Tensor) -> Tensor:
        """Multiplicities [C, N] in sds from the mean of the training cells, not beyond LARGEST."""
        return ((multiplicity - self.mean) / self.sd).clamp(-LARGEST, LARGEST)

    def summaries(self, multiplicity: Tensor, standardised: Tensor, basal: Tensor) -> Tensor:
        """Each member's summary of every cell, [P, C, S]. A gene is hidden where both inputs [C, N] are 0."""
        read = (self.present(multiplicity * self.scale, basal), self.different(standardised, basal))
        first = (standardised @ self.first.permute(1, 0, 2).flatten(1)).unflatten(-1, (self.shape.members, -1))
        return self.summarised(torch.cat(read, -1), first.transpose(0, 1))

    def summarised(self, read: Tensor, first: Tensor) -> Tensor:
        """Summaries [P, C, S] of what both kinds of heads read, [P, C, 2 H E], and the linear map, [P, C, rank]."""
        h = _rms_norm(read @ self.output + first @ self.first_output)
        return _rms_norm(h + F.gelu(h @ self.up + self.up_bias) @ self.down)

    def of_members(self, summaries: Tensor) -> Tensor:
        """Each member's log probabilities, [P, C, K]."""
        return (summaries @ self.head + self.head_bias).log_softmax(-1)

    def forward(self, multiplicity: Tensor, basal: Tensor) -> tuple[Tensor, Tensor]:
        summaries = self.summaries(multiplicity, self.standardised(multiplicity), basal)
        logits = (self.importance[:, None, None] * self.of_members(summaries)).sum(0)
        return (summaries.transpose(0, 1).flatten(1) - self.centre) @ self.axes, logits

    def without_each(self, multiplicity: Tensor, basal: Tensor) -> Tensor:
        """The logits of one cell with each of its genes hidden in turn. multiplicity [N], basal [] -> [N, K].

        A hidden gene is neither there nor different from its mean, as genes that are hidden in training.
        """
        z = self.standardised(multiplicity)
        read = (self.present.without_each(multiplicity * self.scale, basal), self.different.without_each(z, basal))
        parts = z[:, None] * self.first  # [P, N, rank]
        summaries = self.summarised(torch.cat(read, -1), parts.sum(1, keepdim=True) - parts)
        return (self.importance[:, None, None] * self.of_members(summaries)).sum(0)

    def threshold(self, error: float) -> float:
        """The least confidence at which at most `error` of the held-out cells were labelled wrongly.

        Cells below it are left unassigned. Infinite where no threshold keeps the promise: nothing is assigned then.
        """
        confidence, order = self.confidence.sort(descending=True)
        wrong = (~self.right[order]).cumsum(0)
        # One error more than was seen: of a few cells, none may be wrong by luck.
        allowed = (wrong + 1) <= error * torch.arange(1, len(wrong) + 1, device=wrong.device)
        return float(confidence[allowed.nonzero()[-1]]) if allowed.any() else math.inf


def _rms_norm(x: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt()
