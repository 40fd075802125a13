"""The transformer of the paper, figure 4, top to bottom: a cell is a bag of genes, and one token reads what it is.

    tokens       the genes that a cell expresses, the basal gene, and the identity token
    embedding    h_i = e_i, of genes alone: how much of a gene a cell has enters by its multiplicity
    L layers     h <- h + W_o attention(norm h)      grouped-query spherical attention
                 h <- h + f(norm h), T times         one feed-forward map, applied T times
    read-out     norm h of the identity token, the summary of the cell

    s_ij = m_j q_i . k_j      w_ij = s_ij / sqrt(sum_j s_ij^2)      o_i = sum_j w_ij v_j

Keys are scaled by their gene's multiplicity m_j at every layer. It is a standardised one, in sds from the gene's mean
over the training cells: its size scales the key, and its sign turns it. A gene that a cell does not express is no
token. The basal gene is the yardstick of the others, with m = 1. The identity token has m = 0: it reads, and is never a
key.

The tokens of the first layer are the same in every cell, so that their queries, keys and values are computed once for
each gene. Of the last layer, the identity token alone asks.

Letters: P members, C cells, N genes, V = N + 2 tokens that there are, T tokens of all cells of a batch, D width of a
token, H query heads, K key heads, E = D / H width of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flashsign import spherical_attention
from grn.config.schema import ModelConfig
from grn.model.reader import HIDDEN, Reader, ReaderShape

EPS = 1e-6  # under the root of a norm
CHUNK = 512  # tokens, see Linear
AT_ONCE = 64  # genes that are hidden at the same time, see `without_each`
SMALL = 0.5  # of the usual size, with which a layer begins to add to the residual stream


@dataclass(frozen=True)
class Tokens:
    """The tokens of some cells, packed: those of a cell follow each other, its basal gene and identity token last.

    gene [T]: 0 to N - 1, N for basal genes and N + 1 for identity tokens.   multiplicity [T], not negative; sign [T].
    offsets [C + 1]: the tokens of cell c are offsets[c] to offsets[c + 1].
    """

    gene: Tensor
    multiplicity: Tensor
    sign: Tensor
    offsets: Tensor

    @classmethod
    def of(cls, strength: Tensor) -> Tokens:
        """Of the genes whose strength [C, N] is not 0: the signed multiplicities."""
        cells, genes = strength.shape
        cell, gene = strength.nonzero(as_tuple=True)
        sizes = torch.bincount(cell, minlength=cells) + 2
        offsets = F.pad(sizes.cumsum(0), (1, 0))
        place = torch.arange(len(cell), device=cell.device) + 2 * cell
        every = gene.new_full((len(cell) + 2 * cells,), genes)
        every[place] = gene
        every[offsets[1:] - 1] = genes + 1
        signed = strength.new_zeros(len(every))
        signed[place] = strength[cell, gene]
        signed[offsets[1:] - 2] = 1.0
        return cls(every, signed.abs(), torch.where(signed < 0, -1.0, 1.0).to(strength), offsets)

    @property
    def identity(self) -> Tensor:
        """Where the identity tokens are, [C]."""
        return self.offsets[1:] - 1

    def repeated(self, times: int, vocabulary: int) -> Tokens:
        """The same cells, one set after the other for each member: genes are rows of tables [P, V]."""
        first = torch.arange(times, device=self.gene.device)[:, None]
        return Tokens(
            gene=(self.gene + first * vocabulary).flatten(),
            multiplicity=self.multiplicity.repeat(times),
            sign=self.sign.repeat(times),
            offsets=F.pad((self.offsets[1:] + first * len(self.gene)).flatten(), (1, 0)),
        )


class Layer(nn.Module):
    """One layer of every member. h [P, .., D], queries [P, .., D], keys and values [P, .., K E]."""

    def __init__(self, members: int, width: int, heads: int, key_heads: int, hidden: int, iterations: int):
        super().__init__()
        self.head, self.iterations = width // heads, iterations
        keys = key_heads * self.head

        def random(rows: int, columns: int, size: float = 1.0) -> nn.Parameter:
            return nn.Parameter(torch.randn(members, rows, columns) * size * rows**-0.5)

        self.attention_gain = nn.Parameter(torch.ones(members, 1, width))
        self.query, self.key, self.value = random(width, width), random(width, keys), random(width, keys)
        self.output = random(width, width, SMALL)
        self.gain = nn.Parameter(torch.ones(members, 1, width))
        self.up, self.down = random(width, hidden), random(hidden, width, SMALL)
        self.up_bias = nn.Parameter(torch.zeros(members, 1, hidden))

    def normed(self, h: Tensor) -> Tensor:
        """What the attention reads."""
        return norm(h) * self.attention_gain

    def attend(self, q: Tensor, k: Tensor, v: Tensor, tokens: Tokens, asking: Tensor) -> Tensor:
        """q of the tokens that ask, whose offsets are `asking`; k and v of all tokens -> what they read, [P, .., D]."""
        signed = k * tokens.sign.view(*k.shape[:2], 1).to(k)
        # The GPU's kernels are for 16-bit numbers; their sums are in float32.
        dtype = torch.bfloat16 if q.is_cuda else q.dtype
        of_q, of_k, of_v = (
            each.reshape(-1, each.shape[-1] // self.head, self.head).to(dtype) for each in (q, signed, v)
        )
        read = spherical_attention(of_q, of_k, of_v, tokens.multiplicity, offsets=tokens.offsets, query_offsets=asking)
        return linear(read.reshape(q.shape).to(q), self.output)

    def feed_forward(self, h: Tensor) -> Tensor:
        for _ in range(self.iterations):
            up = linear(norm(h) * self.gain, self.up) + self.up_bias
            h = h + linear(F.gelu(up), self.down)
        return h


Watch = Callable[[int, Tensor, Tensor], None]


def unwatched(number: int, q: Tensor, k: Tensor) -> None:
    """Takes no notice."""


class Layers(nn.ModuleList):
    """A ModuleList, with types for what it holds."""

    if TYPE_CHECKING:

        def __iter__(self) -> Iterator[Layer]: ...  # type: ignore[override]


class Transformer(Reader):
    """Multiplicities of cells -> their types and X_grn; see Reader. All members are read in one call a layer, as more
    cells."""

    folds = 4
    of_genes = (1.0,)
    rates = (2.0, 1.0)
    static, cells_of_step = False, 64

    @classmethod
    def shape_for(cls, config: ModelConfig, *, classes: int, held_out: int) -> ReaderShape:
        return ReaderShape(
            members=cls.folds,
            classes=classes,
            summary=config.width_of_tokens,
            hidden=max(config.hidden // 4, 1),
            embedding=config.width_of_cells,
            held_out=held_out,
            layers=config.layers,
            query_heads=config.query_heads,
            key_heads=config.key_heads,
            iterations=config.iterations,
        )

    def __init__(self, genes: int, shape: ReaderShape):
        super().__init__(genes, shape)
        sizes = shape.summary, shape.query_heads, shape.key_heads, shape.hidden, shape.iterations
        self.embedding = nn.Parameter(torch.randn(shape.members, genes + 2, shape.summary))
        self.layers = Layers([Layer(shape.members, *sizes) for _ in range(shape.layers)])
        self.gain = nn.Parameter(torch.ones(shape.members, 1, shape.summary))

    def multiplications(self, cells: int) -> int:
        shape = self.shape
        of_token = shape.summary * (2 * shape.summary + 2 * shape.hidden * shape.iterations)
        return cells * self.genes * shape.members * shape.layers * of_token // 4  # a cell has a part of the genes

    def strength(self, multiplicity: Tensor, standardised: Tensor) -> Tensor:
        """The signed multiplicities [C, N] by which keys are scaled: 0 of genes that a cell does not express."""
        return standardised * ((multiplicity > 0) & (self.sd < HIDDEN))

    def summaries(self, multiplicity: Tensor, standardised: Tensor, basal: Tensor) -> Tensor:
        return self.read(Tokens.of(self.strength(multiplicity, standardised)))

    def read(self, cells: Tokens, watch: Watch = unwatched) -> Tensor:
        """Summaries of cells, [P, C, D]. watch: is called with the number of each layer, its queries and its keys."""
        members = self.shape.members
        tokens = cells.repeated(members, self.genes + 2)
        alone = torch.arange(len(tokens.offsets), device=tokens.offsets.device)

        def of_tokens(table: Tensor) -> Tensor:
            """[P, V, x] -> [P, T, x]"""
            return F.embedding(tokens.gene, table.flatten(0, 1)).unflatten(0, (members, -1))

        def of_identity(h: Tensor) -> Tensor:
            """[P, T, x] -> [P, C, x]"""
            return h.flatten(0, 1)[tokens.identity].unflatten(0, (members, -1))

        h: Tensor = self.embedding
        last = len(self.layers) - 1
        for number, layer in enumerate(self.layers):
            read = asks = layer.normed(h)
            if number == last and number > 0:
                asks, h = of_identity(read), of_identity(h)
            q, k, v = linear(asks, layer.query), linear(read, layer.key), linear(read, layer.value)
            if number == 0:  # of every gene so far, now of the tokens of cells
                h, q, k, v = (of_tokens(each) for each in (h, q, k, v))
            if number == 0 == last:
                h, q = of_identity(h), of_identity(q)
            watch(number, q, k)
            h = h + layer.attend(q, k, v, tokens, alone if number == last else tokens.offsets)
            h = layer.feed_forward(h)
        return norm(h) * self.gain

    def without_each(self, multiplicity: Tensor, standardised: Tensor, basal: Tensor) -> Tensor:
        """See Reader. Genes that the cell does not express change nothing."""
        whole = self.logits(self.summaries(multiplicity[None], standardised[None], basal[None]))
        found = whole.repeat(self.genes, 1)
        for genes in (multiplicity > 0).nonzero()[:, 0].split(AT_ONCE):
            kept = torch.ones(len(genes), self.genes, device=genes.device).to(standardised)
            kept[torch.arange(len(genes)), genes] = 0
            hidden = kept * multiplicity, kept * standardised, basal.expand(len(genes))
            found[genes] = self.logits(self.summaries(*hidden))
        return found


class Linear(torch.autograd.Function):
    """x @ weight of every member, [P, T, D] and [P, D, F] -> [P, T, F].

    The gradient of the weight sums over all tokens, and has so few rows that one product would keep a corner of a GPU
    busy: it took 72 % of a step. So it is summed over CHUNK tokens at a time, and then over these sums.
    """

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor]:
        saved, weight = ctx.saved_tensors
        x, gradient = saved.to(weight), gradient.to(weight)  # autocast may have made them 16 bit wide
        whole = x.shape[1] // CHUNK * CHUNK
        parts = [each[:, :whole].unflatten(1, (-1, CHUNK)) for each in (x, gradient)]
        of_weight = (parts[0].mT @ parts[1]).sum(1) + x[:, whole:].mT @ gradient[:, whole:]
        return (gradient @ weight.mT).to(saved), of_weight


linear = Linear.apply


def norm(h: Tensor) -> Tensor:
    """RMSNorm without its gain."""
    return F.rms_norm(h, h.shape[-1:], eps=EPS)
