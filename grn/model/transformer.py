"""The model, top to bottom: a transformer over bags of genes whose attention keeps its sign.

Letters: C cells, N genes, V genes of the vocabulary, D width, H query heads, K key heads, E head width, M keys.
Every map below works on the last two axes only, so that dense bags (tokens [C, N, D]) and packed bags
(tokens [T, D]) run through the same lines; `Layout` holds what differs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn import functional as F

from flashsign import spherical_attention
from flashsign.tensor_cache import remembered
from grn.bags import Bags
from grn.config.schema import ModelConfig
from grn.model.compile import Fusible, fusible
from grn.model.regulation_layer import Regulation

Projected = tuple[Tensor, Tensor, Tensor]
# Called once a layer with (layer, q, k, multiplicity) of the gene queries: how read-outs see the attention.
Observer = Callable[[int, Tensor, Tensor, Tensor], None]


@dataclass(frozen=True)
class Layout:
    """Where the tokens of a batch of bags are. Tokens are the genes of a bag, then its basal gene.

    embedding rows: vocabulary position of each token (V: the basal gene).   genes: rows of the gene tokens.
    keys: rows that gene queries read (regulators and the basal gene; None: all).   multiplicity: of each token.
    offsets, key_offsets, summary_offsets: None for dense bags; else where each bag starts among its tokens, its
    keys and the summaries.   group: processes that hold a part of each bag's genes each; None: this one holds all.
    """

    embedding_rows: Tensor
    genes: Tensor
    keys: Tensor | None
    multiplicity: Tensor
    offsets: Tensor | None
    key_offsets: Tensor | None
    summary_offsets: Tensor | None
    group: ProcessGroup | None

    @staticmethod
    def of(bags: Bags, is_regulator: Tensor, group: ProcessGroup | None = None) -> Layout:
        basal = len(is_regulator)
        basal_multiplicity = bags.multiplicity.new_ones(bags.cells) if bags.basal is None else bags.basal
        basal_multiplicity = basal_multiplicity.to(bags.multiplicity.dtype)
        if group is not None and group.rank() > 0:
            # One basal gene a bag: every process asks with it, the first alone brings it as a key.
            basal_multiplicity = torch.zeros_like(basal_multiplicity)
        readable = F.pad(is_regulator, (0, 1), value=True)
        # Known without a look at the device in every step.
        everything = remembered(is_regulator, "all", lambda: bool(is_regulator.all()))
        if bags.offsets is None:
            rows = F.pad(bags.genes, (0, 1), value=basal)
            genes = torch.arange(len(bags.genes), device=rows.device)
            multiplicity = torch.cat([bags.multiplicity, basal_multiplicity[:, None]], 1)
            keys = None if everything else readable[rows].nonzero()[:, 0]
            return Layout(rows, genes, keys, multiplicity, None, None, None, group)

        bag = torch.arange(bags.cells + 1, device=bags.genes.device)
        offsets = bags.offsets + bag  # every bag grows by its basal gene
        genes = torch.arange(len(bags.genes), device=bags.genes.device)
        genes = genes + torch.repeat_interleave(bag[:-1], bags.offsets.diff(), output_size=len(genes))
        rows = torch.full((len(genes) + bags.cells,), basal, device=genes.device)
        rows[genes] = bags.genes
        multiplicity = bags.multiplicity.new_empty(len(rows)).index_copy(0, genes, bags.multiplicity)
        multiplicity = multiplicity.index_copy(0, offsets[1:] - 1, basal_multiplicity)
        if everything:
            return Layout(rows, genes, None, multiplicity, offsets, offsets, bag, group)
        is_key = readable[rows]
        key_offsets = F.pad(is_key.cumsum(0), (1, 0))[offsets]
        return Layout(rows, genes, is_key.nonzero()[:, 0], multiplicity, offsets, key_offsets, bag, group)


@dataclass(frozen=True)
class Prediction:
    """What the model says of each cell.

    multiplicity: expected multiplicity of every gene of the bag, shaped like bags.multiplicity, float32.
    cell [C, D]: the summary.   logits [C, classes] or None.   property [C] or None, in its own unit.
    """

    multiplicity: Tensor
    cell: Tensor
    logits: Tensor | None
    property: Tensor | None


class GeneEmbedding(nn.Module):
    """One learned vector a gene, and one for the basal gene: the last row. No positions: a bag has no order."""

    def __init__(self, genes: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(genes + 1, width))

    def forward(self, rows: Tensor) -> Tensor:
        return self.weight.index_select(0, rows)

    def basal(self, cells: int) -> Tensor:
        return self.weight[-1].repeat(cells, 1, 1)


class Attention(nn.Module):
    """Spherical attention: w_ij = m_j q_i.k_j / n_i, an L2 norm where softmax has a sum, so that w keeps its sign.

    Gene queries read the regulators and the basal gene; the summary reads every gene and the basal gene.
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.query_heads, self.key_heads, self.eps = config.query_heads, config.key_heads, config.eps
        head = config.width // config.query_heads
        self.query = nn.Linear(config.width, config.query_heads * head, bias=False)
        self.key = nn.Linear(config.width, config.key_heads * head, bias=False)
        self.value = nn.Linear(config.width, config.key_heads * head, bias=False)
        self.output = nn.Linear(config.query_heads * head, config.width, bias=False)

    def project(self, tokens: Tensor, summary: Tensor, keys: Tensor | None) -> tuple[Projected, Projected]:
        """(q, k, v) of the gene queries and of the summary's, each [.., heads * E]."""
        k, v = self.key(tokens), self.value(tokens)
        read = (k, v) if keys is None else (k.index_select(-2, keys), v.index_select(-2, keys))
        return (self.query(tokens), *read), (self.query(summary), k, v)

    def forward(
        self, genes: Projected, summary: Projected, layout: Layout, observe: Callable[..., None] | None
    ) -> tuple[Tensor, Tensor]:
        """What each gene and each summary is told, [.., H * E]."""
        everyone = layout.multiplicity
        multiplicity = everyone if layout.keys is None else everyone.index_select(-1, layout.keys)
        told = self.attend(*genes, multiplicity, layout.offsets, layout.key_offsets, layout.group, observe)
        cells = self.attend(*summary, everyone, layout.summary_offsets, layout.offsets, layout.group)
        return told, cells

    def attend(self, q, k, v, multiplicity, query_offsets, key_offsets, group, observe=None) -> Tensor:
        packed = key_offsets is not None
        q = _split_heads(q, self.query_heads, packed)
        k, v = (_split_heads(x, self.key_heads, packed) for x in (k, v))
        if observe is not None:
            observe(q, k, multiplicity)
        packing = {"offsets": key_offsets, "query_offsets": query_offsets}
        out = spherical_attention(q, k, v, multiplicity, **packing, eps=self.eps, group=group)
        return (out if packed else out.transpose(1, 2)).flatten(-2)


class MessageDropout(nn.Module):
    """Drops whole messages: every number that a branch sends to a gene, or none. x [..., D] -> [..., D]."""

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
    """Attention, then feed-forward: one successive regulatory network."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.norm = nn.RMSNorm(config.width)
        self.attention = Attention(config)
        self.feed_forward = FeedForward(config)
        self.dropout = MessageDropout(config.dropout)

    def forward(self, tokens: Tensor, summary: Tensor, layout: Layout, observe=None) -> tuple[Tensor, Tensor]:
        genes, cells = self.attention(*self.ask(tokens, summary, layout.keys), layout, observe)
        return self.hear(tokens, genes, summary, cells)

    @fusible
    def ask(self, tokens: Tensor, summary: Tensor, keys: Tensor | None) -> tuple[Projected, Projected]:
        return self.attention.project(self.norm(tokens), self.norm(summary), keys)

    @fusible
    def hear(self, tokens: Tensor, genes: Tensor, summary: Tensor, cells: Tensor) -> tuple[Tensor, Tensor]:
        output = self.attention.output
        tokens = self.feed_forward(tokens + self.dropout(output(genes)))
        summary = self.feed_forward(summary + self.dropout(output(cells)))
        return tokens, summary


class Model(Fusible):
    """Bags of genes -> expected multiplicities, cell type, property.

    The basal gene plays two parts. As a key it is the yardstick that lets an L2 norm see absolute levels; as a
    query that reads every gene it becomes the summary, the only path from a cell to its class logits. The
    summary is never a key: what a gene's prediction depends on is the regulators alone, so that a regulation
    network has nothing to hide behind.

    The regulation layer, where there is one, comes trained: it says what the regulators do on average, and the blocks
    learn what it leaves over.

    group: processes that hold a part of each bag's genes each (Bags.share) and make the same calls. Attention alone
    lets them hear of each other: each predicts its own genes, and every one has the whole summary.
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
    ):
        super().__init__()
        self.config = config
        self.regulation = regulation
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
        """Every initial value in one place."""
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
        layout = Layout.of(bags, self.is_regulator, self.group)
        tokens, summary = self.embedding(layout.embedding_rows), self.embedding.basal(bags.cells)
        if bags.packed:
            summary = summary[:, 0]
        else:
            tokens = tokens.expand(bags.cells, -1, -1)
        for layer, block in enumerate(self.blocks):
            see = None if observe is None else _bind_layer(observe, layer)
            tokens, summary = block(tokens, summary, layout, see)
        cell = self.norm(summary if bags.packed else summary[:, 0])
        return Prediction(
            multiplicity=self.expected_multiplicity(tokens, layout, bags),
            cell=cell,
            logits=self.cell_type(cell) if self.cell_type else None,
            property=self.expected_property(cell),
        )

    def expected_multiplicity(self, tokens: Tensor, layout: Layout, bags: Bags) -> Tensor:
        """mean_i + sd_i (regulated_i + <h_i, r_i> + b_i), in float32 at least: small differences make a network."""
        rows = bags.genes
        # Numbers are picked, not vectors: the basal genes are read like the rest, and left out afterwards.
        standardised = self.read(tokens, layout.embedding_rows).index_select(-1, layout.genes)
        with torch.autocast(tokens.device.type, enabled=False):
            if self.regulation is not None:
                regulated = self.regulation(self.regulators_of(bags), bags.basal)
                standardised = standardised + regulated[_bag_of_each(bags), rows]
            return self.mean[rows] + self.sd[rows] * standardised

    @fusible
    def read(self, tokens: Tensor, rows: Tensor) -> Tensor:
        """<h_i, r_i> + b_i of every token; the basal gene has no direction of its own and borrows the last gene's."""
        rows = rows.clamp(max=len(self.multiplicity) - 1)
        with torch.autocast(tokens.device.type, enabled=False):
            said = (_widen(self.norm(tokens)) * self.multiplicity.index_select(0, rows)).sum(-1)
            return said + self.multiplicity_bias.index_select(0, rows)

    def regulators_of(self, bags: Bags) -> Tensor:
        """Multiplicities of the regulators, [C, R]: those that the bags bring along, else those in sight."""
        if bags.regulators is not None:
            return bags.regulators
        everything = bags.multiplicity.new_zeros(bags.cells, len(self.is_regulator))
        return everything.index_put((_bag_of_each(bags), bags.genes), bags.multiplicity)[:, self.is_regulator]

    def expected_property(self, cell: Tensor) -> Tensor | None:
        if self.property is None:
            return None
        mean, sd = self.property_scale
        return mean + sd * _widen(self.property(cell)[:, 0])


def _bag_of_each(bags: Bags) -> Tensor:
    """Which bag each gene belongs to: [T], or [C, 1] where all bags list the same genes."""
    each = torch.arange(bags.cells, device=bags.genes.device)
    if bags.offsets is None:
        return each[:, None]
    return torch.repeat_interleave(each, bags.offsets.diff(), output_size=len(bags.genes))


def _widen(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _split_heads(x: Tensor, heads: int, packed: bool) -> Tensor:
    """[T, heads * E] -> [T, heads, E] packed; [C, N, heads * E] -> [C, heads, N, E] dense."""
    x = x.unflatten(-1, (heads, -1))
    return x if packed else x.transpose(1, 2)


def _bind_layer(observe: Observer, layer: int):
    return lambda q, k, multiplicity: observe(layer, q, k, multiplicity)
