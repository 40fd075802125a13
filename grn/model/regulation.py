"""The model of a run, top to bottom: blocks over bags of genes, and a reader of cells.

Q K^T of the blocks are signed networks. Tokens are the genes, the basal gene b (the last key; its
multiplicity is the cell's depth) and the identity token c.

    block 1    regulators read the regulators and b, with signs (signed_block.py). The residual
               stream of a regulator is its multiplicity: what the others say of it replaces the
               part of it that counting made,

                   m'_j = m_j + r_j (y_j - m_j)

    block 2    genes read the regulators at m', with signs: direct effects. b reads them, too
               (basal_gene.py): RMSNorm, feed-forward T times
    next       genes read b, learned from what the signed network leaves over:

                   y_i += gate p_i . z_b

    reader     an identity token reads all genes (transformer.py or linear_reader.py): the cell's
               type, X_grn and, in training, every gene. It is never a key, and the only path from
               a cell to its type

An ensemble of members is the first axis of every parameter (the reader has members of its own):
they see the same cells, each without those of its own fold, and the mean of their predictions is
the model's.

Letters: P members, C cells, N genes, n genes that are asked for, R regulators, S states, K cell
types, D width of X_grn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from grn.bags import Bags
from grn.config.schema import ModelConfig
from grn.model.basal_gene import BasalGene
from grn.model.linear_reader import LinearReader
from grn.model.reader import Reader, ReaderShape
from grn.model.signed_block import SignedBlock
from grn.model.transformer import Transformer

# sds from the mean, where multiplicities are cut off: a doublet would decide a slope by itself
LIMIT = 20.0
DEPTH = 4.0  # multiplicity of the basal gene in a cell of average depth, in sds of the log depth
TABLES, WIDE = 2**27, 256  # see width_of_scores
SCORES = 2**26  # most numbers of one table of scores
TRACE = 0.02  # of a state that is inferred: a cell that belongs to it by less does not belong to it
READERS: dict[str, type[Reader]] = {"transformer": Transformer, "linear": LinearReader}
# regulators; of more, each is read as it was counted, as block 1 would be as large as block 2
AMONG = 1024


@dataclass(frozen=True)
class Prediction:
    """The model's predictions for cells.

    multiplicity [C, N]: expected, from the regulators.
    cell [C, D]: X_grn.
    logits [C, K]: or None.
    """

    multiplicity: Tensor
    cell: Tensor
    logits: Tensor | None


class Blocks(nn.ModuleList):
    """The signed blocks: a ModuleList, with types for what it holds."""

    if TYPE_CHECKING:

        def __getitem__(self, number: int) -> SignedBlock: ...  # type: ignore[override]
        def __iter__(self) -> Iterator[SignedBlock]: ...


def width_of_scores(config: ModelConfig, genes: int, keys: int, states: int) -> int:
    """Width of queries and keys: that of the configuration; "auto": one for each key, so that
    scores are free, and WIDE where their tables of all genes would take more than TABLES numbers.
    """
    if config.width != "auto":
        return config.width
    tables = config.members * genes * (1 + (states if states > 1 else 0))
    return keys if tables * keys <= TABLES else WIDE


class Model(nn.Module):
    """Bags of genes -> expected multiplicities, cell types, representation.

    regulators [R], targets: positions of the regulators and of all other genes.
    place [N]: of each gene in the regulators followed by the targets.
    mean, sd [N]: of each gene; sds are those within states, the unit of inputs and targets.
    depth [2]: mean and sd of the basal gene's multiplicity.
    counting [R]: r_j.
    unit [R + 1]: sds of m'.
    share [S]: of the cells in each state.
    held_out [P]: the fold that a member does not learn from.
    penalty [P + 1, 3]: with which block 2 of each member is trained, and last block 1 of all
        (penalty.py).
    prior [N, R]: what slopes are divided by before they are penalised, in training with a prior
        network.
    genes_train: whether genes are predicted; else the reader learns alone.
    infers_states: whether predictions have to infer the states that training knows.
    partial_levels: see SignedBlock.means.
    regulates: whether there are signed blocks and a basal gene; a transformer that learns types
        alone has none.
    """

    is_regulator: Tensor
    regulators: Tensor
    targets: Tensor
    place: Tensor
    mean: Tensor
    sd: Tensor
    depth: Tensor
    counting: Tensor
    unit: Tensor
    share: Tensor
    held_out: Tensor
    penalty: Tensor
    prior: Tensor | None

    def __init__(
        self,
        config: ModelConfig,
        genes: int,
        *,
        regulators: Tensor | None = None,
        states: int = 1,
        identity: ReaderShape,
        genes_train: bool = True,
    ):
        super().__init__()
        regulators = torch.arange(genes) if regulators is None else regulators
        count, members = len(regulators), config.members
        is_regulator = torch.zeros(genes, dtype=torch.bool).index_fill(0, regulators, True)
        self.config, self.genes, self.genes_train = config, genes, genes_train
        self.infers_states = self.partial_levels = False
        self.register_buffer("is_regulator", is_regulator)
        self.register_buffer("mean", torch.zeros(genes))
        self.register_buffer("sd", torch.ones(genes))
        self.register_buffer("depth", torch.tensor([0.0, 1.0]))
        self.register_buffer("counting", torch.zeros(count))
        self.register_buffer("unit", torch.ones(count + 1))
        self.register_buffer("share", torch.full((states,), 1 / states))
        self.register_buffer("held_out", torch.arange(members))
        self.register_buffer("penalty", torch.zeros(members + 1, 3))
        self.register_buffer("prior", None, persistent=False)
        # Positions, which follow from is_regulator.
        others = (~is_regulator).nonzero()[:, 0]
        self.register_buffer("regulators", is_regulator.nonzero()[:, 0], persistent=False)
        self.register_buffer("targets", others, persistent=False)
        self.register_buffer(
            "place", torch.cat([self.regulators, others]).argsort(), persistent=False
        )

        self.regulates = genes_train or config.reader == "linear"
        self.blocks = Blocks()
        if self.regulates:
            sizes = count, 1, 1, width_of_scores(config, genes, count + 1, states), states
            none = torch.full((len(self.targets),), -1)
            self.blocks.extend(
                [SignedBlock(members, own, *sizes) for own in (torch.arange(count), none)]
            )
            shape = 2 * config.width_of_cells, config.hidden, config.iterations, config.dropout
            self.basal = BasalGene(members, len(self.targets), count, states, *shape)
        self.identity: Reader = READERS[config.reader](genes, identity)

    def forward(self, bags: Bags) -> Prediction:
        """Return the members' mean of the expected multiplicities, and what the reader says of the
        cells.
        """
        if not self.regulates:
            return Prediction(self.mean.expand(len(bags), -1), *self.identity(bags.multiplicity))
        m = self.inputs(bags.multiplicity[:, self.regulators], bags.basal)
        cut = None if bags.cut is None else bags.cut[:, self.regulators]
        y = self.expected(m, self.states_of(bags, m), cut).mean(0)
        # Where types alone are learned, the identity token reads the genes after the blocks.
        stream = (
            self.identity.standardised(bags.multiplicity) + y if self.reads_the_blocks else None
        )
        cell, logits = self.identity(bags.multiplicity, stream)
        return Prediction(self.mean + self.sd * y, cell, logits)

    # The genes: what the regulators say of them.

    def inputs(self, regulators: Tensor, basal: Tensor | None) -> Tensor:
        """m: multiplicities of the regulators [C, R] and of the basal gene [C], in units ->
        [C, R + 1].
        """
        mean, sd = self.mean[self.regulators], self.sd[self.regulators]
        depth = self.depth[0].expand(len(regulators)) if basal is None else basal
        depth = DEPTH + (depth - self.depth[0]) / self.depth[1]
        return torch.cat(
            [((regulators - mean) / sd).clamp(max=LIMIT) + mean / sd, depth[:, None]], 1
        )

    def standardised(self, multiplicity: Tensor) -> Tensor:
        """Multiplicities [C, N] in sds of the genes from their means."""
        return ((multiplicity - self.mean) / self.sd).clamp(max=LIMIT)

    def among(self, m: Tensor, states: Tensor, room: Sequence[int] | None = None) -> Tensor:
        """Block 1: what the regulators say of each other, [P, C, R] in sds. room: see Bags."""
        every = torch.arange(len(self.counting), device=m.device)
        return self.blocks[0](m, states, every, room)

    def corrected(
        self, m: Tensor, y: Tensor | None, states: Tensor, cut: Tensor | None = None
    ) -> Tensor:
        """m' [P, C, R + 1] in its units, from m [C, R + 1] and y [P, C, R] (None: as they were
        counted).

        cut [C, R]: bool, regulators that an intervention has set, of which the others say nothing;
            None: none.
        """
        if y is None:
            return (m / self.unit).expand(self.config.members, -1, -1)
        first = self.blocks[0]
        level, centre = first.means(first.level), first.means(first.centre)
        # both without the states' means
        change = (y - states @ level) - (m - states @ centre)[..., :-1]
        if cut is not None:
            change = change.masked_fill(cut, 0.0)
        return (m + F.pad(self.counting * change, (0, 1))) / self.unit

    def context(self, m: Tensor, pick: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Return what genes read of b, from m [C, R + 1]: [P, C, n].

        hidden [.., C, R + 1]: what b does not see of m.

        It reads regulators as they were counted, and no state, so that it is the same function
        where states are inferred.
        """
        return self.basal(self.seen(m, hidden), pick)

    def seen(self, m: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Return what b sees of m: its difference from the mean of all cells, [P, C, R + 1]."""
        seen = (m - (self.share @ self.blocks[0].centre).mean(0)).expand(
            self.config.members, -1, -1
        )
        return seen if hidden is None else seen.masked_fill(hidden, 0.0)

    def expected(self, m: Tensor, states: Tensor, cut: Tensor | None = None) -> Tensor:
        """Every gene from the regulators m [C, R + 1]: [P, C, N] in sds of the genes. cut: see
        `corrected`.
        """
        parts = [
            direct + self.basal.gate[:, None, None] * context
            for _, direct, context in self.parts(m, states, cut)
        ]
        return torch.cat(parts, -1)[..., self.place]

    @torch.no_grad()
    def left_over(
        self, bags: Bags, m: Tensor, pick: Tensor, true: Tensor, cut: Tensor | None
    ) -> Tensor:
        """Return what the signed blocks leave unexplained of targets `pick` [n], true [C, n], in
        the units of predictions: [P, C, n].

        They infer states that training knows, and know the means of states in full.
        """
        training, states, room = self.blocks.training, bags.states, bags.room
        assert states is not None, "training knows the states of its cells"
        self.blocks.eval()
        # of unknown numbers of cells, which a CUDA graph has to have room for
        if self.infers_states:
            states = self.inferred_states(m)
            room = (len(m),) * len(self.share) if m.is_cuda else None
        y = self.among(m, states, room) if self.layered else None
        found = self.blocks[1](self.corrected(m, y, states, cut), states, pick, room) - true
        self.blocks.train(training)
        return found

    @property
    def trains_otherwise(self) -> bool:
        """Whether signed blocks predict something else in training: see left_over."""
        return self.infers_states or self.partial_levels

    def parts(
        self, m: Tensor, states: Tensor, cut: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Genes, positions, with what the signed blocks and the whole context say of them,
        [P, C, n] each: first the regulators, which read no context (0), then the targets, as many
        at once as memory holds scores of.
        """
        y = self.among(m, states)
        yield self.regulators, y, y.new_zeros(1)
        corrected = self.corrected(m, y if self.layered else None, states, cut)
        for pick in torch.arange(len(self.targets), device=m.device).split(self.genes_at_once):
            direct, context = self.blocks[1](corrected, states, pick), self.context(m, pick)
            yield self.targets[pick], direct, context

    @property
    def genes_at_once(self) -> int:
        """Genes whose scores are in memory at once."""
        return max(1, SCORES // self.scores_of_a_gene)

    @property
    def scores_of_a_gene(self) -> int:
        """Of all members, states and regulators."""
        return self.config.members * len(self.share) * (len(self.counting) + 1)

    @property
    def layered(self) -> bool:
        """Whether block 2 reads what block 1 says of the regulators."""
        return self.config.layers > 1 and len(self.counting) <= AMONG

    def state_scores(self, m: Tensor) -> Tensor:
        """Log probabilities of each state, from the regulators alone: [P, C, S]."""
        return self.basal.states(m - (self.share @ self.blocks[0].centre).mean(0))

    def states_of(self, bags: Bags, m: Tensor) -> Tensor:
        """[C, S]: the given states, else what the basal gene has read of them."""
        return bags.states if bags.states is not None else self.inferred_states(m)

    def inferred_states(self, m: Tensor) -> Tensor:
        """[C, S], from the regulators, without traces."""
        inferred = self.state_scores(m).exp().mean(0)
        likely = inferred * (inferred >= TRACE)  # each state of a cell is a bag to read
        return likely / likely.sum(-1, keepdim=True)

    # The cells: what the identity token says of them.

    @property
    def reads_the_blocks(self) -> bool:
        """Whether the linear reader reads the genes after the blocks, so that types shape them."""
        return not self.genes_train and self.config.reader == "linear"

    @property
    def classes(self) -> int:
        """The number of cell types that the model distinguishes; 0 without cell types."""
        return self.identity.shape.classes
