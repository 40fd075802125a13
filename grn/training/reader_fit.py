"""The fit of the cell reader: all members as one batch, each without the cells of one fold, which then judge it.

A member learns two tasks. It predicts every gene of the cell from its summary, for which cells need no label, and the
cell types of the cells that have one. Half of the members weigh the genes a hundred times as much as the other half:
their summaries are shaped by the genes, those of the others by the labels. Which of the two is right differs from data
set to data set, so the held-out labels decide how much each half counts.

Letters: P members, B cells of a batch, K cell types.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn
from torch.nn import functional as F

from grn.cells.cells import Cells
from grn.cells.preprocessing.split import Split
from grn.config.schema import CellReaderConfig, Config
from grn.devices import own_device
from grn.errors import TrainingDiverged
from grn.messages import Say
from grn.model.cell_reader import CellReader, ReaderShape
from grn.model.objectives import LABEL_SMOOTHING
from grn.model.schedule import average_into, warmup_cosine
from grn.threads import threads_for
from grn.training.thinning import Thinning, shares

FOLDS = 8  # of the labelled cells; a member does not see those of one of them
WHOLE = 0.25  # share of the cells of a batch that hide no gene, as in `grn predict`
DEEP = 0.5  # share of those that keep all counts; with fewer, cells of the same experiment are told worse
GENES = 256  # that a batch predicts, drawn anew for each: as good as all of 2000, at a fraction of the time
PRIOR = 4.0  # pulls the halves' importances to 1/2 each, as so many held-out cells would
LONGER = 3  # times trainer.max_steps is the most steps: a run that is cut short is short as a whole
CHUNK = 1024  # cells that are read at a time
MOST_AXES, MOST_HELD_OUT = 4096, 10_000  # cells that the embedding's directions and the thresholds are computed from


class ReaderSettings(CellReaderConfig):
    """Sizes of the cell reader and of its fit, which a configuration does not set; tests and benchmarks may.

    heads: of each kind; twice as many of twice the width were no better.   rank: of the linear map beside the heads.
    summary: width of a member's.   gene_weights: of predicting all genes of a cell, for every other member and for the
    rest.   dropped: in each step a cell hides a share of its genes, from 0 to this.   thinned: in each step half of the
    cells keep a share of their counts, from this to 1; smaller shares cost accuracy.
    """

    heads: int = 2
    width: int = 16
    rank: int = 32
    summary: int = 64
    hidden: int = 128
    gene_weights: tuple[float, float] = (10.0, 300.0)
    dropped: float = 0.6
    thinned: float = 0.3
    batch_size: int = 128
    learning_rate: float = 4e-3
    weight_decay: float = 0.05


@dataclass(frozen=True)
class ReaderCells:
    """The cells that a reader is fitted to. multiplicity: CSR [C, N].   labels [C]: -1 where missing.   fold [C]: of
    the labelled cells; -1: always seen.   thinning: None where cells have no counts to lose."""

    multiplicity: sparse.csr_matrix
    basal: Tensor
    labels: Tensor
    fold: Tensor
    thinning: Thinning | None

    def batch(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(self.multiplicity[rows].toarray()), self.basal[rows]


def fit_reader(
    config: Config, cells: Cells, split: Split, mean: Tensor, sd: Tensor, classes: int, say: Say
) -> CellReader:
    """The trained reader of the cells of a split, without those of the test. mean, sd [N]: of the training cells.

    Raises TrainingDiverged.
    """
    settings, started = ReaderSettings.of(config.cell_reader), time.monotonic()
    seed, device = config.trainer.seed, own_device(config.trainer)
    rows = np.sort(np.concatenate([split.train, split.validation]))
    read = ReaderCells(
        cells.multiplicity[rows],
        torch.from_numpy(cells.basal[rows]),
        torch.from_numpy(cells.labels[rows]),
        torch.from_numpy(folds_of(cells.labels[rows], None if cells.groups is None else cells.groups[rows], seed)),
        Thinning.of(cells, rows, config.data.multiplicity) if settings.thinned < 1 else None,
    )
    sizes = settings.model_dump(include={"members", "heads", "width", "rank", "summary", "hidden"})
    shape = ReaderShape(**sizes, embedding=min(config.model.width, settings.members * settings.summary))
    torch.manual_seed(seed)
    reader = CellReader(len(cells.vocabulary), classes, shape)
    reader.mean.copy_(mean)
    reader.sd.copy_(sd)
    squares = float(np.square(read.multiplicity.data, dtype=np.float64).sum())
    reader.scale.fill_(math.sqrt(math.prod(read.multiplicity.shape) / squares) if squares else 1.0)
    steps = min(settings.steps, LONGER * config.trainer.max_steps)
    predict = nn.Parameter(torch.randn(settings.members, settings.summary, reader.genes).mul_(0.01).to(device))
    with threads_for(settings.batch_size * sum(each.numel() for each in (predict, *reader.parameters()))):
        reader, predict = train_members(config, reader.to(device), predict, read, steps, settings.learning_rate)
        judges, accuracy = weigh_members(reader, read, seed)
        # What the held-out cells were kept for is known now, so the members learn from them, too.
        every = replace(read, fold=torch.full_like(read.fold, -1))
        more, rate = max(1, steps // 3), settings.learning_rate / 2
        reader, _ = train_members(config, reader, predict, every, more, rate)
        set_axes(reader, every, seed)
    judged = f", accuracy {accuracy:.3f} on {judges} cells that they had not seen" if judges else ""
    say(f"Cell types: {settings.members} members in {time.monotonic() - started:.0f} s{judged}.")
    return reader.cpu().requires_grad_(False)


def folds_of(labels: np.ndarray, groups: np.ndarray | None, seed: int) -> np.ndarray:
    """The fold of each cell, int64 [C], stratified by type or, with groups [C], whole groups in one fold.

    -1: cells without a label, and the only cell of a type.
    """
    generator = np.random.default_rng(seed)
    folds = np.full(len(labels), -1)
    if groups is not None and len(np.unique(groups)) > 1:
        names, numbers = np.unique(groups, return_inverse=True)
        # With fewer groups than folds, the last folds are empty and their members see everything.
        folds = (generator.permutation(len(names)) % FOLDS)[numbers]
        return np.where(labels >= 0, folds, -1)
    start = 0
    for label in np.unique(labels[labels >= 0]):
        members = generator.permutation(np.flatnonzero(labels == label))
        if len(members) > 1:
            folds[members] = (np.arange(len(members)) + start) % FOLDS
            start += len(members)
    return folds


def member_folds(members: int) -> tuple[Tensor, Tensor]:
    """The kind of each member (0: the labels shape its summary, 1: the genes do) and the fold that it does not see."""
    numbers = torch.arange(members)
    return numbers % 2, numbers // 2 % FOLDS


def train_members(
    config: Config, reader: CellReader, predict: nn.Parameter, read: ReaderCells, steps: int, rate: float
) -> tuple[CellReader, nn.Parameter]:
    """Trains the members in place, and `predict` [P, S, N], with which their summaries predict the genes.

    rate: the highest. Returns the moving average of the reader's weights, and `predict`. Raises TrainingDiverged.
    """
    settings = ReaderSettings.of(config.cell_reader)
    device, genes = reader.mean.device, reader.genes
    generator = torch.Generator().manual_seed(config.trainer.seed + steps)
    kind, held_out = member_folds(settings.members)
    gene_weight = torch.tensor(settings.gene_weights)[kind].to(device)
    trained = [*reader.parameters(), predict]
    optimizer = torch.optim.AdamW(trained, rate, betas=(0.9, 0.98), weight_decay=settings.weight_decay)
    average = copy.deepcopy(reader)
    warmup = max(1, steps // 20)
    order = batch_rows(read.labels, settings.batch_size, generator)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * warmup_cosine(step, steps, warmup)
        rows = next(order)
        multiplicity, basal = read.batch(rows.numpy())
        # Genes are predicted as they were counted, also where the summary sees fewer counts.
        target = reader.standardised(multiplicity.to(device))
        if read.thinning is not None:
            kept_counts = shares(len(rows), settings.thinned, DEEP, generator)
            multiplicity, basal = read.thinning.thinned(multiplicity, basal, rows, kept_counts, generator)
        multiplicity, basal = multiplicity.to(device), basal.to(device)
        standardised = reader.standardised(multiplicity)
        share = settings.dropped * torch.rand(len(rows), 1, generator=generator)
        share = share * (torch.rand(len(rows), 1, generator=generator) >= WHOLE)
        kept = (torch.rand(multiplicity.shape, generator=generator) >= share).to(device)
        summaries = reader.summaries(multiplicity * kept, standardised * kept, basal)

        labels = read.labels[rows]
        # Without its genes, too: a member that had learned them would be surer of the cell than of a new one.
        own = read.fold[rows] != held_out[:, None]  # [P, B]
        seen = own & (labels >= 0)
        logits = summaries @ reader.head + reader.head_bias
        losses = F.cross_entropy(
            logits.flatten(0, 1),
            labels.clamp(min=0).repeat(settings.members).to(device),
            label_smoothing=LABEL_SMOOTHING,
            reduction="none",
        ).view(seen.shape)
        own, seen = own.to(device), seen.to(device)
        of_types = (losses * seen).sum(1) / seen.sum(1).clamp(min=1)
        some = torch.randperm(genes, generator=generator)[:GENES].to(device)
        errors = (summaries @ predict[:, :, some] - target[:, some]).square().mean(2)
        of_genes = (errors * own).sum(1) / own.sum(1).clamp(min=1)
        loss = ((of_types + gene_weight * of_genes) / (1 + gene_weight)).sum()
        if not torch.isfinite(loss):
            raise TrainingDiverged(
                f"The loss of the cell reader is not finite at step {step}; look for extreme values in the cells."
            )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average_into(list(average.parameters()), list(reader.parameters()), step)
    return average, predict


def batch_rows(labels: Tensor, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Rows of the batches: passes over all cells in a random order or, where some have no label, half of a batch with
    labels, however few they are, and half without."""
    size, known = min(size, len(labels)), labels >= 0
    weights = torch.where(known, 0.5 / known.sum().clamp(min=1), 0.5 / (~known).sum())
    while not known.all():
        yield torch.multinomial(weights, size, replacement=True, generator=generator)
    while True:
        order = torch.randperm(len(labels), generator=generator)
        yield from order[: len(order) // size * size].split(size)


@torch.no_grad()
def weigh_members(reader: CellReader, read: ReaderCells, seed: int) -> tuple[int, float]:
    """Sets what the members count and the held-out confidences of a trained reader.

    A cell judges where a member of each kind held it out. Returns how many cells judged and the accuracy on them.
    """
    kind, held_out = member_folds(reader.shape.members)
    generator = np.random.default_rng(seed)
    device = reader.mean.device
    judged, truth = [], []
    for first in range(0, len(read.basal), CHUNK):
        rows = np.arange(first, min(first + CHUNK, len(read.basal)))
        multiplicity, basal = (tensor.to(device) for tensor in read.batch(rows))
        summaries = reader.summaries(multiplicity, reader.standardised(multiplicity), basal)
        folds = read.fold[rows]
        by_fold = held_out[:, None] == folds  # [P, B]
        enough = torch.stack([by_fold[kind == each].any(0) for each in (0, 1) if (kind == each).any()]).all(0)
        log_odds = reader.of_members(summaries).cpu()[:, enough]
        of_kinds = []
        for each in (0, 1):
            if (kind == each).any():
                weight = (by_fold & (kind == each)[:, None])[:, enough].float()
                of_kinds.append((weight[..., None] * log_odds).sum(0) / weight.sum(0)[:, None])
        judged.append(torch.stack(of_kinds))
        truth.append(read.labels[rows][enough])
    found, labels = torch.cat(judged, 1), torch.cat(truth)
    importance = kind_importance(found, labels)
    of_kind = torch.stack([importance[min(each, len(importance) - 1)] / (kind == each).sum() for each in kind.tolist()])
    reader.importance.copy_(of_kind)
    if not len(labels):
        return 0, math.nan
    confidence, predicted = (importance[:, None, None] * found).sum(0).softmax(-1).max(-1)
    right = predicted == labels
    kept = torch.from_numpy(generator.permutation(len(labels))[:MOST_HELD_OUT])
    reader.confidence, reader.right = confidence[kept], right[kept]
    reader.shape = ReaderShape(**(vars(reader.shape) | {"held_out": len(kept)}))
    return len(labels), float(right.float().mean())


def kind_importance(log_odds: Tensor, labels: Tensor) -> Tensor:
    """What each kind's log probabilities count, [kinds]: the least log loss on held-out cells, with a prior.

    log_odds [kinds, C, K], labels [C].
    """
    equal = torch.full((len(log_odds),), 1 / len(log_odds))
    if not len(labels):
        return equal
    log = equal.log().requires_grad_()
    optimizer = torch.optim.LBFGS([log], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        with torch.enable_grad():
            logits = (log.exp()[:, None, None] * log_odds).sum(0)
            total = F.cross_entropy(logits, labels, reduction="sum") + PRIOR * (log.exp() - equal).square().sum()
            total.backward()
        return total

    optimizer.step(loss)
    found = log.detach().exp()
    return found if torch.isfinite(found).all() else equal


@torch.no_grad()
def set_axes(reader: CellReader, read: ReaderCells, seed: int) -> None:
    """Sets the embedding: the projection of the members' summaries to their leading directions in some cells."""
    sampled = np.sort(np.random.default_rng(seed).permutation(len(read.basal))[:MOST_AXES])
    parts = []
    for first in range(0, len(sampled), CHUNK):
        multiplicity, basal = (part.to(reader.mean.device) for part in read.batch(sampled[first : first + CHUNK]))
        summaries = reader.summaries(multiplicity, reader.standardised(multiplicity), basal)
        parts.append(summaries.transpose(0, 1).flatten(1).cpu())
    summaries = torch.cat(parts)
    centre = summaries.mean(0)
    values = (summaries - centre).double()
    _, directions = torch.linalg.eigh(values.T @ values)
    axes = directions.flip(1)[:, : reader.axes.shape[1]].float()
    # A direction and its opposite are as good: the largest entry decides, so that two machines agree.
    axes = axes * axes.gather(0, axes.abs().argmax(0, keepdim=True)).sign()
    reader.centre.copy_(centre)
    reader.axes.copy_(axes)
