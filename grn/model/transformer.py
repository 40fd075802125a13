"""The transformer of the paper, figure 4, top to bottom: a cell is a bag of genes, and one token
reads what it is.

    tokens       the genes that a cell expresses, the basal gene, and the identity token
    embedding    h_i = e_i, of genes alone: how much of a gene a cell has enters by its multiplicity
    L layers     h <- h + W_o attention(norm h)      grouped-query spherical attention
                 h <- h + f(norm h), T times         one feed-forward map, applied T times
    read-out     norm h of the identity token, the summary of the cell

    s_ij = m_j q_i . k_j      w_ij = s_ij / sqrt(sum_j s_ij^2)      o_i = sum_j w_ij v_j

Keys are scaled by their gene's multiplicity m_j at every layer. It is a standardised one, in sds
from the gene's mean over the training cells: its size scales the key, and its sign turns it. A gene
that a cell does not express is no token. The basal gene is the yardstick of the others, with m = 1.
The identity token has m = 0: it reads, and is never a key.

The tokens of the first layer are the same in every cell, so that their queries, keys and values are
computed once for each gene. Of the last layer, the identity token alone asks.

Letters: P members, C cells, N genes, V = N + 2 tokens that there are, T tokens of all cells of a
batch, D width of a token, H query heads, K key heads, E = D / H width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flashsign import spherical_attention
from grn.bags import Tokens
from grn.config.schema import ModelConfig
from grn.model.reader import HIDDEN, Reader, ReaderShape

EPS = 1e-6  # under the root of a norm
CHUNK = 512  # tokens, see Linear
CELLS_AT_ONCE = 64  # that are read on a processor, where more cells take longer
# the same on a GPU, of all members, if cells expressed every gene: they fill its memory
MOST_TOKENS = 1 << 22
AT_ONCE = 64  # genes that are hidden at the same time, see `without_each`
# Where the vectors of genes start: the sizes of their loadings and of the noise by which members
# differ; how often the means of types count in the table of cells that the loadings are of; how
# many numbers it has; the directions more, and the powers, of their randomised search.
LOADINGS, NOISE, MEANS = 3.0, 0.1, 16.0
AT_START, SPARE, POWERS = 1 << 26, 8, 3
SMALL = 0.5  # of the usual size, with which a layer begins to add to the residual stream


class Layer(nn.Module):
    """One layer of every member. h [P, .., D], queries [P, .., H E], keys and values [P, .., K E].

    head: E. The paper has D = H E.
    """

    def __init__(
        self,
        members: int,
        width: int,
        heads: int,
        key_heads: int,
        hidden: int,
        iterations: int,
        head: int | None = None,
    ):
        super().__init__()
        self.head, self.iterations = head or width // heads, iterations
        queries, keys = heads * self.head, key_heads * self.head

        def random(rows: int, columns: int, size: float = 1.0) -> nn.Parameter:
            return nn.Parameter(torch.randn(members, rows, columns) * size * rows**-0.5)

        self.query = random(width, queries)
        self.key = random(width, keys)
        self.value = random(width, keys)
        self.output = random(queries, width, SMALL)
        self.up, self.down = random(width, hidden), random(hidden, width, SMALL)

    def queries(self, normed: Tensor) -> Tensor:
        return linear(normed, self.query)

    def keys_and_values(self, normed: Tensor) -> tuple[Tensor, Tensor]:
        k, v = linear(normed, torch.cat([self.key, self.value], -1)).chunk(2, -1)
        return k, v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, tokens: Tokens, asking: Tensor) -> Tensor:
        """q of the tokens that ask, whose offsets are `asking`; k and v of all tokens -> what they
        read, [P, .., D].
        """
        signed = k * tokens.sign.view(*k.shape[:2], 1).to(k)
        of_q, of_k, of_v = (
            each.reshape(-1, each.shape[-1] // self.head, self.head) for each in (q, signed, v)
        )
        read = spherical_attention(
            of_q, of_k, of_v, tokens.multiplicity, offsets=tokens.offsets, query_offsets=asking
        )
        return linear(read.reshape(q.shape), self.output)

    def feed_forward(self, h: Tensor) -> Tensor:
        for _ in range(self.iterations):
            h = h + linear(F.gelu(linear(narrow(norm(h)), self.up)), self.down)
        return h


Watch = Callable[[int, Tensor, Tensor], None]


def unwatched(number: int, q: Tensor, k: Tensor) -> None:
    """Take no notice."""


class Layers(nn.ModuleList):
    """A ModuleList, with types for what it holds."""

    if TYPE_CHECKING:

        def __iter__(self) -> Iterator[Layer]: ...


class Transformer(Reader):
    """Multiplicities of cells -> their types and X_grn; see Reader. All members are read in one
    call a layer, as more cells.
    """

    folds = 4
    of_genes = (1.0,)
    rates = (2.0, 1.0)

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

    def most_cells(self, gpu: bool) -> int:
        return max(MOST_TOKENS // (self.shape.members * self.genes), 1) if gpu else CELLS_AT_ONCE

    def multiplications(self, cells: int) -> int:
        shape = self.shape
        of_token = shape.summary * (2 * shape.summary + 2 * shape.hidden * shape.iterations)
        # a cell has a part of the genes
        return cells * self.genes * shape.members * shape.layers * of_token // 4

    @torch.no_grad()
    def start(self, multiplicity: sp.csr_matrix, fold: np.ndarray, labels: np.ndarray) -> None:
        """See Reader. Genes start at their loadings, the leading directions of the strengths of
        cells, so that what tokens read is principal components of the cells from the first step on,
        and types need not be found by chance. The means of types stand among the cells, so that
        directions that tell types apart lead.
        """
        width = self.shape.summary
        for member, held_out in enumerate(self.held_out.tolist()):
            rows = np.flatnonzero(fold != held_out)
            most = max(AT_START // self.genes, width)
            rows = (
                rows
                if len(rows) <= most
                else np.sort(np.random.default_rng(member).permutation(rows)[:most])
            )
            cells = torch.as_tensor(multiplicity[rows].toarray())
            strength = self.strength(cells, self.standardised(cells))
            means = between_types(strength, labels[rows]) * MEANS**0.5
            table = torch.cat([strength, means])
            loadings = torch.svd_lowrank(table, q=min(width + SPARE, *table.shape), niter=POWERS)[2]
            loadings = loadings[:, :width]
            own = self.embedding[member, : self.genes]
            own.mul_(NOISE)
            own[:, : loadings.shape[1]] += loadings * LOADINGS * math.sqrt(self.genes)

    def strength(self, multiplicity: Tensor, standardised: Tensor) -> Tensor:
        """Return the signed multiplicities [C, N] by which keys are scaled: 0 of genes that a cell
        does not express.
        """
        return standardised * ((multiplicity > 0) & (self.sd < HIDDEN))

    def summaries(self, multiplicity: Tensor, standardised: Tensor) -> Tensor:
        cells = self.strength(multiplicity, standardised).split(
            self.most_cells(multiplicity.is_cuda)
        )
        return torch.cat([self.read(Tokens.of(some)) for some in cells], 1)

    def read(self, cells: Tokens, watch: Watch = unwatched) -> Tensor:
        """Summaries of cells, [P, C, D]. watch: is called with the number of each layer, its
        queries and its keys.
        """
        members = self.shape.members
        tokens = cells.repeated(members, self.genes + 2)

        def of_tokens(table: Tensor) -> Tensor:
            """[P, V, x] -> [P, T, x]"""
            return F.embedding(tokens.gene, table.flatten(0, 1)).unflatten(0, (members, -1))

        def of_identity(h: Tensor) -> Tensor:
            """[P, T, x] -> [P, C, x]"""
            return h.flatten(0, 1)[tokens.identity].unflatten(0, (members, -1))

        h: Tensor = self.embedding
        last = len(self.layers) - 1
        for number, layer in enumerate(self.layers):
            normed = narrow(norm(h))
            k, v = layer.keys_and_values(normed)
            if number == last and number > 0:
                h, normed = of_identity(h), of_identity(normed)
            q = layer.queries(normed)
            if number == 0:  # of every gene so far, now of the tokens of cells
                h, q, k, v = (of_tokens(each) for each in (h, q, k, v))
            if number == 0 == last:
                h, q = of_identity(h), of_identity(q)
            watch(number, q, k)
            h = h + layer.attend(
                q, k, v, tokens, tokens.asking if number == last else tokens.offsets
            )
            h = layer.feed_forward(h)
        return norm(h)

    def without_each(self, multiplicity: Tensor, standardised: Tensor) -> Tensor:
        """See Reader. Genes that the cell does not express change nothing."""
        whole = self.logits(self.summaries(multiplicity[None], standardised[None]))
        found = whole.repeat(self.genes, 1)
        for genes in (multiplicity > 0).nonzero()[:, 0].split(AT_ONCE):
            kept = torch.ones(len(genes), self.genes, device=genes.device).to(standardised)
            kept[torch.arange(len(genes)), genes] = 0
            found[genes] = self.logits(self.summaries(kept * multiplicity, kept * standardised))
        return found


def between_types(strength: Tensor, labels: np.ndarray) -> Tensor:
    """Return the deviations of the types' means, [K, N], each times the root of its number of
    cells.

    Their squares add up to the squared deviations between types of the labelled cells. strength [C,
    N].
    labels [C]: -1 where missing.
    """
    if not (labels >= 0).any():
        return strength[:0]
    types, of_cell = np.unique(labels[labels >= 0], return_inverse=True)
    known = strength[torch.as_tensor(labels >= 0)]
    count = torch.as_tensor(np.bincount(of_cell, minlength=len(types)))[:, None]
    sums = torch.zeros(len(types), strength.shape[1]).index_add_(0, torch.as_tensor(of_cell), known)
    return (sums / count - known.mean(0)) * count.sqrt()


class Linear(torch.autograd.Function):
    """x @ weight of every member, [P, T, D] and [P, D, F] -> [P, T, F], in the dtype of x.

    The gradient of the weight sums over all tokens, and has so few rows that one product would keep
    a corner of a GPU busy: it took 72 % of a step. So it is summed there over CHUNK tokens at a
    time, and then over these sums.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        gradient = gradient.to(x.dtype)  # autocast may have made it 16 bit wide
        of_weight = products(x, gradient, CHUNK if x.is_cuda else x.shape[1]).to(weight.dtype)
        return gradient @ weight.to(x.dtype).mT, of_weight


def products(x: Tensor, y: Tensor, chunk: int) -> Tensor:
    """x^T y of every member, [P, T, D] and [P, T, F] -> [P, D, F]: sums over `chunk` tokens, then
    added up.
    """
    tokens = x.shape[1]
    if chunk >= tokens:
        return x.mT @ y
    whole = tokens // chunk * chunk
    parts = [each[:, :whole].unflatten(1, (-1, chunk)) for each in (x, y)]
    return (parts[0].mT @ parts[1]).sum(1, dtype=torch.float32) + x[:, whole:].mT @ y[:, whole:]


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x @ weight, see Linear."""
    found: Tensor = Linear.apply(x, weight)  # type: ignore[no-untyped-call]
    return found


def norm(h: Tensor) -> Tensor:
    """RMSNorm. It has no gain: a linear map follows each norm, and takes a gain in."""
    return F.rms_norm(h, h.shape[-1:], eps=EPS)


def narrow(x: Tensor) -> Tensor:
    """16 bits a number on a GPU, for which its products and kernels are made; their sums are
    float32, and so is h.
    """
    return x.bfloat16() if x.is_cuda and x.dtype == torch.float32 else x
