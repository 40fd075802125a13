"""What a model is trained for. Each objective is a sum of losses over cells; `divisors` says how
many cells count.

The two are kept apart so that several processes can divide by the number of cells of all of them.
The gradient is then that of one process with the whole batch, however unevenly labels are
distributed over processes. Labels and folds alone say the number, so that processes agree on it
before a step. A member's loss leaves out the cells of its own fold.

Letters: P members, C cells, N genes, n of them, R regulators, K cell types.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from grn.bags import Batch, Tokens
from grn.model.regulation import Model
from grn.model.transformer import Transformer

LABEL_SMOOTHING = (
    0.1  # probability spread over the other classes: labels of single cells are never certain
)
# Genes that a step predicts besides the regulators, drawn anew: they do not depend on each other.
# The more, the better edges rank: 128, 512 of 900 on a processor: AUPRC .90, .97; 512, 2048 of 1900
# on a GPU, in the same time: .84, .95. Fewer where their scores would take too much memory.
GENES, GENES_ON_GPU, FEWEST = 512, 4096, 32
SUMMARISED = 256  # genes that a step predicts from the summaries of cells


@dataclass(frozen=True)
class Draw:
    """The genes that a training step draws.

    regulators, targets: positions among their kind, that it predicts.
    hidden [P, C, R + 1]: multiplicities that the basal gene does not see.
    """

    regulators: Tensor
    targets: Tensor
    hidden: Tensor

    @classmethod
    def of(cls, model: Model, cells: int, fraction: float) -> Draw:
        """From torch's generator. fraction: of the multiplicities, which is hidden."""
        device, members = model.mean.device, model.config.members

        def some(count: int, drawn: int) -> Tensor:
            every = torch.arange(count, device=device)
            return (
                every if drawn == count else torch.randperm(count, device=device)[:drawn].sort()[0]
            )

        count, others = genes_of_step(model)
        regulators = some(len(model.regulators), count)
        hidden = torch.rand(members, cells, len(model.regulators) + 1, device=device) < fraction
        return cls(regulators, some(len(model.targets), others), hidden)


def genes_of_step(model: Model) -> tuple[int, int]:
    """Return how many regulators, and how many other genes, a step predicts."""
    most = min(
        GENES if model.mean.device.type == "cpu" else GENES_ON_GPU, max(FEWEST, model.genes_at_once)
    )
    count = len(model.regulators)
    return count if model.layered else min(count, most), min(len(model.targets), most)


def members_cells(batch: Batch, model: Model) -> Tensor:
    """Return 1 where a member learns from a cell, else 0: [P, C]."""
    return _learned(batch, model.held_out)


def readers_cells(batch: Batch, model: Model, opened: bool = False) -> Tensor:
    """Return 1 where a member of the identity token learns from a cell, else 0: [P, C].

    opened: whether members learn from the cells of their folds, too.
    """
    learned = _learned(batch, model.identity.held_out)
    return torch.ones_like(learned) if opened else learned


def _learned(batch: Batch, held_out: Tensor) -> Tensor:
    return (batch.fold != held_out[:, None]).to(batch.bags.multiplicity.dtype)


def labelled(batch: Batch, learned: Tensor) -> Tensor:
    """`learned` [P, C] where the cell type is known, else 0."""
    return learned * (batch.labels >= 0)


def learns_genes(batch: Batch, model: Model) -> bool:
    """Return whether a step learns genes from their regulators; else the identity token learns."""
    return model.genes_train and batch.kept is None


def divisors(batch: Batch, model: Model, opened: bool) -> dict[str, Tensor]:
    """Return the number of cells that the sum of each loss is divided by, by name.

    It is that of an average member [] for the genes that the regulators explain, and that of each
    member [P] for what the identity token is trained for.
    """
    found = {}
    if learns_genes(batch, model):
        found["masked_multiplicity"] = members_cells(batch, model).sum(1).mean()
    if batch.kept is not None:
        learned = readers_cells(batch, model, opened)
        found |= {"cell_type": labelled(batch, learned).sum(1), "genes": learned.sum(1)}
    return found


def masked_multiplicity(batch: Batch, model: Model, draw: Draw) -> tuple[Tensor, Tensor]:
    """Squared error of the genes, each member's mean over genes, and the penalty of the slopes,
    both summed over members.

    Both parts of a gene's prediction learn: the signed network by itself, and the context from what
    it leaves over. Learned together, the context would take what the network explains, and the
    network's signs would suffer.
    """
    bags, states = batch.bags, batch.bags.states
    assert states is not None, "training knows the states of its cells"
    first, second = model.blocks
    m = model.inputs(bags.multiplicity[:, model.regulators], bags.basal)
    # [P, C]: new cells, of which no state is known, ask for it
    inferred = -(states * model.state_scores(m)).sum(-1)
    true = model.standardised(bags.multiplicity)
    own, others = model.regulators[draw.regulators], model.targets[draw.targets]
    own_prior, prior = (
        None if model.prior is None else model.prior[genes] for genes in (own, others)
    )
    y, shrink = first.learned(m, states, draw.regulators, model.penalty[-1:], own_prior, bags.room)
    cut = None if bags.cut is None else bags.cut[:, model.regulators]
    corrected = model.corrected(m, y.detach() if model.layered else None, states, cut)
    direct, shrink_others = second.learned(
        corrected, states, draw.targets, model.penalty[:-1], prior, bags.room
    )
    context = model.context(m, draw.targets, draw.hidden)

    among = (y - true[:, own]).square()
    left = direct - true[:, others]
    rest = left.detach()
    if model.trains_otherwise:
        rest = model.left_over(bags, m, draw.targets, true[:, others], cut)
    errors = left.square() + (rest + context).square()
    # an intervention sets these, so that nothing is to be learned of what regulates them
    if bags.cut is not None:
        among = among.masked_fill(bags.cut[:, own], 0.0)
        errors = errors.masked_fill(bags.cut[:, others], 0.0)
    # A sample of the genes stands for all of them.
    of_regulators = len(model.regulators) / max(len(draw.regulators), 1)
    of_others = len(model.targets) / max(len(draw.targets), 1)
    each = of_regulators * among.sum(-1) + of_others * errors.sum(-1)  # [P, C]
    learned = members_cells(batch, model)
    loss = ((each / model.genes + inferred) * learned).sum()
    shrink = of_regulators * shrink + of_others * shrink_others
    return loss, shrink.sum() / model.genes


@dataclass(frozen=True)
class Judged:
    """Predictions for cells that members have not learned from: sums over these cells of means over
    genes, [P] each.

    cells: their number.
    direct: squared error of the signed blocks alone.
    product, square: of what they leave over with the context, and of the context with itself.
    """

    cells: Tensor
    direct: Tensor
    product: Tensor
    square: Tensor

    def gate(self) -> Tensor:
        """Return the share of the context that predicts best, 0 to 1: [P]."""
        return (self.product / self.square.clamp(min=1e-9)).clamp(0, 1)

    def error(self) -> Tensor:
        """Return the mean squared error of the members with so much of the context, []."""
        gate = self.gate()
        total = self.direct - 2 * gate * self.product + gate.square() * self.square
        return total.sum() / self.cells.sum().clamp(min=1)


def judged_genes(batch: Batch, model: Model) -> Judged:
    """Each cell's genes by the members that have not learned from it, all genes alike."""
    bags, own = batch.bags, 1 - members_cells(batch, model)
    true = model.standardised(bags.multiplicity)
    m = model.inputs(bags.multiplicity[:, model.regulators], bags.basal)
    counts = torch.ones_like(true) if bags.cut is None else (~bags.cut).to(true)
    cut = None if bags.cut is None else bags.cut[:, model.regulators]
    direct, product, square = (own.new_zeros(own.shape) for _ in range(3))
    for genes, said, context in model.parts(m, model.states_of(bags, m), cut):
        left, context = (true[:, genes] - said) * counts[:, genes], context * counts[:, genes]
        direct = direct + left.square().sum(-1)
        product, square = product + (left * context).sum(-1), square + context.square().sum(-1)
    return Judged(
        own.sum(1), *((each * own).sum(1) / model.genes for each in (direct, product, square))
    )


def of_cells(batch: Batch, model: Model, learned: Tensor, *, genes: bool) -> dict[str, Tensor]:
    """Return the identity token's losses by name and member, [P] each: cell_type and, if `genes`,
    the genes of the cell.

    learned [P, C]: which cells count for which member.
    """
    found, summaries = {}, summaries_of(batch, model)
    if model.classes:
        found["cell_type"] = cell_type(summaries, batch, model, learned)
    if genes:
        found["genes"] = genes_of_cells(summaries, batch, model, learned)
    return found


def with_tokens(batch: Batch, model: Model) -> Batch:
    """Return the batch with its tokens, if the identity token learns in this step and reads tokens.

    How many there are depends on the cells, so that a step that a GPU has recorded cannot make them
    itself.
    """
    if batch.kept is None or not isinstance(model.identity, Transformer):
        return batch
    bags = batch.bags if batch.seen is None else batch.seen
    z = model.identity.standardised(bags.multiplicity) * batch.kept
    tokens = Tokens.of(model.identity.strength(bags.multiplicity * batch.kept, z))
    return replace(batch, tokens=tokens.filled_up() if tokens.gene.is_cuda else tokens)


def summaries_of(batch: Batch, model: Model) -> Tensor:
    """Return what the identity token reads of the cells of a batch, [P, C, S]: genes are hidden,
    some cells lack counts.
    """
    if batch.tokens is not None:
        assert isinstance(model.identity, Transformer), "tokens are a transformer's"
        return model.identity.read(batch.tokens)
    bags = batch.bags if batch.seen is None else batch.seen
    z, multiplicity = model.identity.standardised(bags.multiplicity), bags.multiplicity
    if model.reads_the_blocks:
        m = model.inputs(multiplicity[:, model.regulators], bags.basal)
        z = z + model.expected(m, model.states_of(batch.bags, m)).mean(0)
    if batch.kept is not None:
        z, multiplicity = z * batch.kept, multiplicity * batch.kept
    return model.identity.summaries(multiplicity, z)


def cell_type(summaries: Tensor, batch: Batch, model: Model, learned: Tensor) -> Tensor:
    """Cross entropy over the labelled cells."""
    known = labelled(batch, learned)
    logits = summaries @ model.identity.head + model.identity.head_bias
    labels = batch.labels.clamp(min=0).expand(len(known), -1)
    losses = F.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), label_smoothing=LABEL_SMOOTHING, reduction="none"
    ).view_as(known)
    return (losses * known).sum(1)


def genes_of_cells(summaries: Tensor, batch: Batch, model: Model, learned: Tensor) -> Tensor:
    """Squared error of some genes that are predicted from the summaries of cells; cells need no
    label for it.

    Genes are predicted as they were counted, also where the token sees fewer counts.
    """
    some = torch.randperm(model.genes, device=summaries.device)[:SUMMARISED]
    true = model.identity.standardised(batch.bags.multiplicity)[:, some]
    errors = (summaries @ model.identity.predict[:, :, some] - true).square().mean(-1)
    return (errors * learned).sum(1)
