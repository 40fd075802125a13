"""The model, top to bottom: a transformer over bags of genes whose attention weights keep their sign.

Embedding, attention, feed-forward, block, model. Every map works on the last two axes only, so that dense bags (tokens
[C, N + 1, D]) and packed bags (tokens [T + C, D]) run through the same lines; `Layout` (layout.py) holds what differs.
Each bag has one token more than it has genes: its basal gene, the last.

Letters: C cells, N genes of a dense bag, T genes of all packed bags, V genes of the vocabulary, D width, H query heads,
E head width, R regulators.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn import functional as F

from flashsign import normalised_attention, spherical_attention
from grn.bags import Bags
from grn.config.schema import ModelConfig
from grn.model.cell_reader import CellReader
from grn.model.compile import Fusible, fusible
from grn.model.layout import Layout
from grn.model.signed.regulation import Regulation

QKV = tuple[Tensor, Tensor, Tensor]
EPS = 1e-6  # added under the root of the L2 normaliser, relative to its largest value: scores may all be near zero
# Called once a layer with (layer, q, k, v, multiplicity) of the gene queries: this is how read-outs see the attention.
Observer = Callable[[int, Tensor, Tensor, Tensor, Tensor], None]


class GeneEmbedding(nn.Module):
    """A learned vector for each gene and, in the last row, for the basal gene. No positions: a bag has no order.

    rows: vocabulary positions, int64 [..] -> [.., D].
    """

    def __init__(self, genes: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(genes + 1, width))

    def forward(self, rows: Tensor) -> Tensor:
        return self.weight.index_select(0, rows)

    def basal(self, cells: int) -> Tensor:
        """The vector of the basal gene, once for each cell: [C, 1, D]."""
        return self.weight[-1].repeat(cells, 1, 1)


class Attention(nn.Module):
    """Spherical attention: w_ij = m_j q_i.k_j / n_i, an L2 norm where softmax has a sum, so that w keeps its sign.

    Gene queries read the regulators and the basal gene; the summary reads every gene and the basal gene.
    Other normalisers (model.attention) take the same parameters; softmax has its usual scale 1 / sqrt(E).
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.normaliser = config.attention
        self.query_heads, self.key_heads, self.eps = config.query_heads, config.key_heads, EPS
        head = config.width // config.query_heads
        self.query = nn.Linear(config.width, config.query_heads * head, bias=False)
        self.key = nn.Linear(config.width, config.key_heads * head, bias=False)
        self.value = nn.Linear(config.width, config.key_heads * head, bias=False)
        self.output = nn.Linear(config.query_heads * head, config.width, bias=False)

    def project(self, tokens: Tensor, summary: Tensor, keys: Tensor | None) -> tuple[QKV, QKV]:
        """(q, k, v) of the gene queries and of the summary, each [.., heads * E]. keys: see Layout."""
        k, v = self.key(tokens), self.value(tokens)
        of_keys = (k, v) if keys is None else (k.index_select(-2, keys), v.index_select(-2, keys))
        return (self.query(tokens), *of_keys), (self.query(summary), k, v)

    def forward(
        self, genes: QKV, summary: QKV, layout: Layout, observe: Callable[..., None] | None
    ) -> tuple[Tensor, Tensor]:
        """The messages to the genes and to the summaries, [.., H * E]."""
        of_tokens = layout.multiplicity
        of_keys = of_tokens if layout.keys is None else of_tokens.index_select(-1, layout.keys)
        to_genes = self.attend(*genes, of_keys, layout.offsets, layout.key_offsets, layout.group, observe)
        to_summary = self.attend(*summary, of_tokens, layout.summary_offsets, layout.offsets, layout.group)
        return to_genes, to_summary

    def attend(self, q, k, v, multiplicity, query_offsets, key_offsets, group, observe=None) -> Tensor:
        """Queries q [.., H * E], keys k and values v [.., key heads * E] -> [.., H * E]. multiplicity: of each key."""
        packed = key_offsets is not None
        q = _split_heads(q, self.query_heads, packed)
        k, v = (_split_heads(x, self.key_heads, packed) for x in (k, v))
        if self.normaliser == "softmax":
            q = q / math.sqrt(q.shape[-1])
        if observe is not None:
            observe(q, k, v, multiplicity)
        packing = {"offsets": key_offsets, "query_offsets": query_offsets}
        if self.normaliser == "spherical":
            out = spherical_attention(q, k, v, multiplicity, **packing, eps=self.eps, group=group)
        else:
            assert group is None, "Config refuses other normalisers with trainer.gene_parallel"
            out = normalised_attention(q, k, v, multiplicity, **packing, normaliser=self.normaliser)
        return (out if packed else out.transpose(1, 2)).flatten(-2)


class MessageDropout(nn.Module):
    """Drops whole messages: all D numbers that a branch adds to a gene, or none. x [..., D] -> [..., D]."""

    def __init__(self, probability: float):
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.probability:
            return x
        return x * F.dropout(x.new_ones(*x.shape[:-1], 1), self.probability)


class FeedForward(nn.Module):
    """One map h -> h + f(norm(h)), applied `iterations` times with the same weights."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.iterations = config.iterations
        self.norm = nn.RMSNorm(config.width)
        self.up = nn.Linear(config.width, config.hidden)
        self.down = nn.Linear(config.hidden, config.width)
        self.dropout = MessageDropout(config.dropout)

    def forward(self, h: Tensor) -> Tensor:
        for _ in range(self.iterations):
            h = h + self.dropout(self.down(F.gelu(self.up(self.norm(h)))))
        return h


class Block(Fusible):
    """Attention, then feed-forward. Each block reads the output of the one before."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.norm = nn.RMSNorm(config.width)
        self.attention = Attention(config)
        self.feed_forward = FeedForward(config)
        self.dropout = MessageDropout(config.dropout)

    def forward(self, tokens: Tensor, summary: Tensor, layout: Layout, observe=None) -> tuple[Tensor, Tensor]:
        genes, summaries = self.project(tokens, summary, layout.keys)
        to_genes, to_summary = self.attention(genes, summaries, layout, observe)
        return self.combine(tokens, to_genes, summary, to_summary)

    @fusible
    def project(self, tokens: Tensor, summary: Tensor, keys: Tensor | None) -> tuple[QKV, QKV]:
        return self.attention.project(self.norm(tokens), self.norm(summary), keys)

    @fusible
    def combine(self, tokens: Tensor, to_genes: Tensor, summary: Tensor, to_summary: Tensor) -> tuple[Tensor, Tensor]:
        output = self.attention.output
        tokens = self.feed_forward(tokens + self.dropout(output(to_genes)))
        summary = self.feed_forward(summary + self.dropout(output(to_summary)))
        return tokens, summary


@dataclass(frozen=True)
class Prediction:
    """multiplicity: expected, of every gene of the bags, shaped like bags.multiplicity, float32.   cell [C, D]: the
    summary of each cell.   logits [C, classes]: or None.   property [C]: in the unit of its obs column, or None."""

    multiplicity: Tensor
    cell: Tensor
    logits: Tensor | None
    property: Tensor | None


class Model(Fusible):
    """Bags of genes -> expected multiplicities, cell type, property.

    The basal gene has two tasks. As a key, it is the yardstick that lets an L2 norm see absolute levels. As a query
    that reads every gene, it becomes the summary, the only path from a cell to its class logits. The summary is never
    a key: a gene's prediction depends on the regulators alone, so that no path goes around the regulatory network.

    regulation: the trained regulation layers, or None. The blocks learn what the pooled one does not predict.
    reader: the trained cell reader, or None. Outside of training it tells the cell types and represents the cells.
    group: the processes of gene parallelism, each with a part of each bag's genes (Bags.part_of_genes). They exchange
    data in attention alone: each process predicts its own genes and has the whole summary.
    """

    group: ProcessGroup | None = None

    is_regulator: Tensor
    mean: Tensor
    sd: Tensor
    property_scale: Tensor

    def __init__(
        self,
        config: ModelConfig,
        genes: int,
        *,
        regulators: Tensor | None = None,
        classes: int = 0,
        property: bool = False,
        regulation: Regulation | None = None,
        reader: CellReader | None = None,
    ):
        super().__init__()
        self.config = config
        self.regulation = regulation
        self.reader = reader
        self.embedding = GeneEmbedding(genes, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width)
        self.multiplicity = nn.Parameter(torch.empty(genes, config.width))  # one read-out direction a gene
        self.multiplicity_bias = nn.Parameter(torch.empty(genes))
        self.cell_type = nn.Linear(config.width, classes) if classes else None
        self.property = nn.Linear(config.width, 1) if property else None

        is_regulator = torch.ones(genes, dtype=torch.bool)
        if regulators is not None:
            is_regulator = torch.zeros(genes, dtype=torch.bool).index_fill(0, regulators, True)
        self.register_buffer("is_regulator", is_regulator)
        self.register_buffer("mean", torch.zeros(genes))  # of each gene's multiplicity over the training cells
        self.register_buffer("sd", torch.ones(genes))
        self.register_buffer("property_scale", torch.tensor([0.0, 1.0]))  # mean and sd of the property
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=1 / math.sqrt(module.in_features))
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        nn.init.normal_(self.embedding.weight)
        # Predictions start at each gene's mean, logits at equal odds.
        nn.init.zeros_(self.multiplicity)
        nn.init.zeros_(self.multiplicity_bias)
        for head in (self.cell_type, self.property):
            if head is not None:
                nn.init.zeros_(head.weight)

    def forward(self, bags: Bags, observe: Observer | None = None) -> Prediction:
        """observe: is called with the attention's inputs in every layer."""
        layout = Layout.of(bags, self.is_regulator, self.group)
        tokens, summary = self.encode(bags, layout, observe)
        cell = self.norm(summary if bags.packed else summary[:, 0])
        logits = self.cell_type(cell) if self.cell_type else None
        expected_property = self.expected_property(cell)
        if self.reader is not None and not self.training:
            cell, logits = self.read_cells(bags)
        return Prediction(self.expected_multiplicity(tokens, layout, bags), cell, logits, expected_property)

    def encode(self, bags: Bags, layout: Layout, observe: Observer | None = None) -> tuple[Tensor, Tensor]:
        """The vectors of the tokens and of the summaries after the last block, before the last norm."""
        tokens, summary = self.embedding(layout.embedding_rows), self.embedding.basal(bags.cells)
        if bags.packed:
            summary = summary[:, 0]
        else:
            tokens = tokens.expand(bags.cells, -1, -1)
        for layer, block in enumerate(self.blocks):
            observe_layer = None if observe is None else partial(observe, layer)
            tokens, summary = block(tokens, summary, layout, observe_layer)
        return tokens, summary

    @property
    def classes(self) -> int:
        """The number of cell types that the model distinguishes; 0 without cell types."""
        if self.reader is not None:
            return self.reader.classes
        return self.cell_type.out_features if self.cell_type is not None else 0

    def read_cells(self, bags: Bags) -> tuple[Tensor, Tensor]:
        """Embedding [C, D] and logits [C, classes] of the cell reader, from bags that list every present gene."""
        assert self.reader is not None, "the caller has asked whether there is one"
        every = self.multiplicities_of(bags)
        basal = every.new_ones(bags.cells) if bags.basal is None else bags.basal
        with torch.autocast(every.device.type, enabled=False):
            return self.reader(every, basal)

    def expected_multiplicity(self, tokens: Tensor, layout: Layout, bags: Bags) -> Tensor:
        """mean_i + sd_i (regulated_i + <h_i, r_i> + b_i), in float32 at least: small differences make a network."""
        rows = bags.genes
        # The basal genes are left out after the read-out, where a token is one number, not before it, where it is D.
        standardised = self.read_out(tokens, layout.embedding_rows).index_select(-1, layout.genes)
        with torch.autocast(tokens.device.type, enabled=False):
            if self.regulation is not None:
                standardised = standardised + self.regulation.of_bags(bags, self.regulators_of(bags))
            return self.mean[rows] + self.sd[rows] * standardised

    @fusible
    def read_out(self, tokens: Tensor, rows: Tensor) -> Tensor:
        """<h_i, r_i> + b_i of every token; the basal gene, which has no direction, is given that of the last gene."""
        rows = rows.clamp(max=len(self.multiplicity) - 1)
        with torch.autocast(tokens.device.type, enabled=False):
            products = (_widen(self.norm(tokens)) * self.multiplicity.index_select(0, rows)).sum(-1)
            return products + self.multiplicity_bias.index_select(0, rows)

    def regulators_of(self, bags: Bags) -> Tensor:
        """Multiplicities of the regulators, [C, R]: bags.regulators, or those that the bags show where it is None."""
        if bags.regulators is not None:
            return bags.regulators
        return self.multiplicities_of(bags)[:, self.is_regulator]

    def multiplicities_of(self, bags: Bags) -> Tensor:
        """Multiplicities of the whole vocabulary, [C, V]; 0 for genes that a bag does not list."""
        all_genes = bags.multiplicity.new_zeros(bags.cells, len(self.is_regulator))
        return all_genes.index_put((bags.bag_of_gene(), bags.genes), bags.multiplicity)

    def expected_property(self, cell: Tensor) -> Tensor | None:
        if self.property is None:
            return None
        mean, sd = self.property_scale
        return mean + sd * _widen(self.property(cell)[:, 0])


def _widen(x: Tensor) -> Tensor:
    """x in float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _split_heads(x: Tensor, heads: int, packed: bool) -> Tensor:
    """[T, heads * E] -> [T, heads, E] packed; [C, N, heads * E] -> [C, heads, N, E] dense."""
    x = x.unflatten(-1, (heads, -1))
    return x if packed else x.transpose(1, 2)
