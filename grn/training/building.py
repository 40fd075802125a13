"""What a run needs before its first step: the model in the units of its cells, its folds, and its
penalties.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch

from grn.cells.atlas import Atlas, only_the_sample
from grn.cells.cells import Cells
from grn.cells.loading.module import CellsDataModule
from grn.cells.loading.order import EpochOrder
from grn.cells.notes import listed
from grn.cells.preprocessing.moments import varying
from grn.cells.preprocessing.split import Split
from grn.config.schema import Config, DataConfig, ModelConfig, ObjectivesConfig, TrainerConfig
from grn.evidence.cell_table import CellTable
from grn.evidence.folds import group_folds
from grn.evidence.levels import levels_of
from grn.evidence.penalties import choose_penalties_of_blocks, enough_cells, shares_of_counting
from grn.evidence.prior import prior_of
from grn.evidence.prior_strength import prior_factor
from grn.evidence.start import start_blocks, start_states
from grn.evidence.states import States
from grn.model.penalty import Penalty
from grn.model.reader import HIDDEN
from grn.model.regulation import READERS, Model
from grn.model.saved import TrainedModel
from grn.runtime.devices import own_device, uses_gpu
from grn.runtime.errors import ConfigError, DataError
from grn.runtime.messages import Say
from grn.training.machine import cells_of_step, processes

FEWEST_FOLDS = 5
# times rho: members with more freedom know better which edges a state has, the others rank them
# better
FREER = 2.5
# steps from one in which the identity token learns to the next; in the others, genes are learned
READ_EVERY = 2
# of all members and states together; training holds about five tables of this size
MOST_SCORES = 2**31
MOST_JUDGED = (
    2000  # cells that validate: enough to compare steps, on the same cells, to a thousandth
)
MOST_HELD_OUT = 10_000  # cells that the thresholds of predictions are computed from


@dataclass(frozen=True)
class Fit:
    """A model, and the cells that it is fitted to.

    model: before its training.
    fold [C]: see Batch; -1 for cells that are not trained on.
    judging: labelled cells, rows, that set what the members count and the thresholds of
        predictions.
    states: of all cells.
    """

    model: Model
    fold: np.ndarray
    judging: np.ndarray
    states: States


def trained_classes(objectives: ObjectivesConfig, cells: Cells) -> tuple[str, ...]:
    """Return the cell types that the model is trained to predict: two or more, or none."""
    return cells.classes if objectives.cell_type.weight and len(cells.classes) > 1 else ()


def prepare(config: Config, cells: Cells, split: Split, states: States, say: Say) -> Fit:
    """Return a fit: a model in the units of the training cells, with the penalties that held-out
    cells choose.
    """
    settings, objectives, seed = config.model, config.objectives, config.trainer.seed
    classes = trained_classes(objectives, cells)
    regulators = np.arange(len(cells.vocabulary)) if cells.regulators is None else cells.regulators
    if config.regulates:
        refuse_too_many_scores(settings, len(cells.vocabulary), len(regulators), len(states))
    fold = folds_of_run(cells, split, states, members=settings.members, seed=seed)
    # Each of the first folds judges the members of the reader that have not learned from it.
    reader = READERS[settings.reader]
    judging = (
        np.flatnonzero((cells.labels >= 0) & (fold >= 0) & (fold < reader.folds))
        if classes
        else np.zeros(0, int)
    )
    judging = np.sort(np.random.default_rng(seed).permutation(judging)[:MOST_HELD_OUT])

    torch.manual_seed(seed)
    model = Model(
        settings,
        len(cells.vocabulary),
        regulators=torch.as_tensor(regulators),
        states=len(states),
        identity=reader.shape_for(settings, classes=len(classes), held_out=len(judging)),
        genes_train=bool(objectives.masked_multiplicity.weight),
    )

    device = own_device(config.trainer)
    fold_of_training, few = fold[split.train], enough_cells(len(split.train))
    table = CellTable.of(cells, split.train[few], states.membership, device=device)
    if (levels := levels_of(table, fold_of_training[few])) is not None:
        say(levels.summary())
        table = table.with_levels(levels.part)
    model.infers_states, model.partial_levels = states.origin == "found", table.levels > 0
    if not model.genes_train:
        penalties = [Penalty(settings.penalty or 1.0)] * 2
    elif settings.penalty is not None:
        penalties = [Penalty(settings.penalty)] * 2
    else:
        penalties = choose_penalties_of_blocks(
            table, fold_of_training[few], model.layered, len(fold_of_training)
        )
        say(
            "Held-out cells choose penalties of "
            f"{', '.join(f'{each.lam:.3g}' for each in penalties[:-1])}."
        )
    if len(few) < len(split.train):
        table = CellTable.of(
            cells, split.train, states.membership, levels=table.levels, device=device
        )
    set_units(model, table, fold_of_training)
    model.identity.start(
        cells.multiplicity[split.train], fold_of_training, cells.labels[split.train]
    )
    set_penalties(model, penalties, fold_of_training)
    if config.network.prior is not None and model.genes_train:
        strength = prior_of(config.network, cells).strength
        factor, prior_choice = prior_factor(table, strength, fold_of_training, penalties[0].lam)
        model.prior = None if factor is None else factor.cpu()
        say(prior_choice.sentence())
    if model.genes_train:
        started = time.monotonic()
        left_out = start_blocks(model, table, fold_of_training)
        start_states(model, table, fold_of_training)
        width = model.blocks[1].embedding.query.shape[-1]
        narrow = (
            f"; its heads are {width} wide and leave out {left_out:.1%} of its squared slopes"
            if left_out
            else ""
        )
        took = f"{time.monotonic() - started:.0f} s"
        say(f"Signed blocks start at the exact solution of their linear problem ({took}){narrow}.")
    return Fit(model, fold, judging, states)


@torch.no_grad()
def set_units(model: Model, table: CellTable, fold: np.ndarray) -> None:
    """Set units and means, those of each member from the cells that it learns from.

    fold [C]: of the table's cells.
    """
    model.mean.copy_(table.mean)
    model.sd.copy_(table.sd)
    model.depth.copy_(torch.tensor(table.depth))
    model.share.copy_(torch.as_tensor(table.states.mean(0)))
    identity = model.identity
    identity.mean.copy_(table.mean)
    identity.sd.copy_(table.spread)
    identity.sd[list(table.keys)] = HIDDEN
    if model.regulates and model.layered:
        share, unit = shares_of_counting(table)
        model.counting.copy_(share)
        model.unit.copy_(unit)
    for member, held_out in enumerate(model.held_out.tolist() if model.regulates else ()):
        rows = np.flatnonzero(fold != held_out)
        centre, level = (
            each.cpu() for each in table.means(rows if len(rows) < len(fold) else None)
        )
        for block, genes, unit in zip(
            model.blocks,
            (model.regulators, model.targets),
            (torch.ones(()), model.unit),
            strict=True,
        ):
            block.mixed.copy_(table.mixed)
            block.centre[member] = centre / unit
            block.square[member] = (centre / unit).square() + 1
            block.level[member] = level[:, genes]


def set_penalties(model: Model, penalties: list[Penalty], fold: np.ndarray) -> None:
    """Give members the penalties of block 2 in turn, every second one with more freedom for the
    states; per cell that a member learns from.
    """
    of_members = [
        penalties[member % (len(penalties) - 1)] for member in range(model.config.members)
    ]
    of_blocks = torch.stack([each.as_tensor() for each in (*of_members, penalties[-1])])
    of_blocks[1:-1:2, 1] *= FREER
    learned = [(fold != held_out).sum() for held_out in model.held_out.tolist()]
    of_blocks[:, 0] /= torch.tensor([*learned, np.mean(learned)]).clamp(min=1)
    model.penalty.copy_(of_blocks)


def folds_of(cells: Cells, rows: np.ndarray, states: States, folds: int, seed: int) -> np.ndarray:
    """Return the fold of each of the cells `rows`: stratified by label or state or, with groups,
    whole groups in one fold.
    """
    groups = None if cells.groups is None else cells.groups[rows]
    if groups is not None and (groups != groups[0]).any():
        return group_folds(groups, min(folds, len(np.unique(groups))))
    labels = cells.labels[rows] if len(cells.classes) > 1 else states.membership[rows].argmax(1)
    generator, fold, start = np.random.default_rng(seed), np.empty(len(rows), np.int64), 0
    for label in np.unique(labels):
        of_label = generator.permutation(np.flatnonzero(labels == label))
        fold[of_label] = (np.arange(len(of_label)) + start) % folds
        start += len(of_label)
    return fold


def folds_of_run(
    cells: Cells, split: Split, states: States, *, members: int, seed: int
) -> np.ndarray:
    """Return the fold of every cell that a run's members learn from or not, [C]; -1 for
    test cells.
    """
    fold = np.full(len(cells), -1)
    fold[split.train] = folds_of(cells, split.train, states, max(members, FEWEST_FOLDS), seed)
    return fold


def atlas_of(
    data: DataConfig, trainer: TrainerConfig, cells: Cells, split: Split, fit: Fit, say: Say
) -> Atlas | None:
    """Return the cells of the file that training reads, where the cells in memory are a sample of
    them and it can.
    """
    if cells.sample is None:
        return None
    if reason := only_the_sample(data, cells, fit.states.origin):
        say(f"Training reads the {len(cells)} cells in memory alone, as {reason}.")
        return None
    atlas = Atlas(data, cells, split, fit.states.membership, fit.fold)
    # A penalty is over the cells that are learned from, each of which counts once however often it
    # is seen.
    visited = trainer.max_steps * cells_of_step(trainer, len(atlas.rows)) * processes(trainer)
    read = min(len(atlas.rows), visited)
    fit.model.penalty[:, 0] *= len(split.train) / max(read, len(split.train))
    some = "" if read == len(atlas.rows) else f" of {len(atlas.rows)}"
    say(
        f"Training reads {read}{some} cells of the file; units, penalties, network and scores are "
        "of the sample."
    )
    more = min(len(cells.sample.mark) - len(cells), 100_000)
    say(
        f"More cells in memory show weaker edges: data.sample is {len(cells)}, and {more} more "
        f"would take about {more * bytes_of_cell(cells) / 1e6:.0f} MB."
    )
    if some:
        say(f"More steps read more of them (trainer.max_steps is {trainer.max_steps}).")
    if atlas.absent:
        names = listed([repr(name) for name in atlas.absent], most=5)
        say(f"The sample lacks types of the file ({names}), whose cells count as unlabelled.")
    return atlas


def bytes_of_cell(cells: Cells) -> float:
    """Return the memory of a cell in training, as measured (docs/scale.md): a table of its genes,
    and its counts twice, as they become multiplicities.
    """
    values = cells.multiplicity
    return 4 * values.shape[1] + 16 * values.nnz / values.shape[0]


def data_module(
    data: DataConfig,
    trainer: TrainerConfig,
    cells: Cells,
    split: Split,
    fit: Fit,
    atlas: Atlas | None = None,
) -> CellsDataModule:
    """Return the batches of a fit as Lightning takes them."""
    judges = fit.model.held_out if fit.model.genes_train else fit.model.identity.held_out
    judged = np.flatnonzero(np.isin(fit.fold, np.unique(judges.numpy())))
    return CellsDataModule(
        cells,
        split,
        batch_size=cells_of_step(trainer, len(split.train if atlas is None else atlas.rows)),
        seed=trainer.seed,
        states=fit.states.membership,
        fold=fit.fold,
        judged=np.sort(np.random.default_rng(0).permutation(judged)[:MOST_JUDGED]),
        states_are_known=fit.states.origin != "found",
        multiplicity=data.multiplicity,
        read_every=READ_EVERY if fit.model.genes_train else 1,
        most_read=most_read(trainer, fit.model),
        num_workers=trainer.workers,
        device=own_device(trainer),
        atlas=atlas,
    )


def most_read(trainer: TrainerConfig, model: Model) -> int | None:
    """Return the most cells that a process's step reads for their types; None: all of its batch."""
    cells = model.identity.most_cells(uses_gpu(trainer))
    return None if cells is None else max(cells // processes(trainer), 1)


def trained_model(
    data: DataConfig, objectives: ObjectivesConfig, cells: Cells, model: Model
) -> TrainedModel:
    """Return the model with everything that the model folder needs for reading new cells."""
    return TrainedModel(
        model=model,
        vocabulary=cells.vocabulary,
        classes=trained_classes(objectives, cells),
        values=data.values,
        multiplicity=data.multiplicity,
        target_total=cells.target_total,
        depth=cells.depth,
        measures_depth=cells.measures_depth,
        depth_share=cells.depth_share,
        cells=cells.digest or None,
        keys=cells.keys,
    )


def refuse_too_many_scores(settings: ModelConfig, genes: int, regulators: int, states: int) -> None:
    """Raise ConfigError where the scores would take too much memory."""
    scores = settings.members * states * genes
    scores *= min(regulators, 64 if settings.width == "auto" else settings.width)
    if scores > MOST_SCORES:
        raise ConfigError(
            f"{regulators} regulators of {genes} genes in {states} states and {settings.members} "
            "members (model.members) give more scores than memory holds",
            field="data.regulators",
            advice="list the regulators ({field}), or choose fewer genes (data.genes) or members",
        )


def refuse_nothing_to_learn(config: Config, cells: Cells, split: Split) -> None:
    """Raise DataError where genes or regulators do not differ between the training cells, and
    ConfigError where cell types are the only objective and there are fewer than two.
    """
    settings, objectives = config.trainer, config.objectives
    # DataError: too few cells
    cells_each = cells_of_step(settings, len(split.train))
    EpochOrder(split.train, cells_each, settings.seed, 0, processes(settings))
    varies = varying(cells.multiplicity[split.train])
    regulators = np.arange(len(varies)) if cells.regulators is None else cells.regulators
    if varies.sum() < 2 or not varies[regulators].any():
        raise DataError(
            f"{varies.sum()} of the {len(varies)} genes and {varies[regulators].sum()} of the "
            f"{len(regulators)} regulators vary between the {len(split.train)} training cells, "
            "once their depth is allowed for, and a network needs a regulator and another gene",
            field="data.regulators",
            advice="give more cells or genes, or other regulators ({field})",
        )
    if not objectives.masked_multiplicity.weight and not trained_classes(objectives, cells):
        column = f"The obs column {config.data.label_key!r}"
        problem = (
            f"{column} has one cell type only, {cells.classes[0]!r}"
            if cells.classes
            else "There are no cell types"
        )
        raise ConfigError(
            f"{problem}, and there is no other objective",
            field="data.label_key",
            advice="set objectives.masked_multiplicity.weight above 0, or {field} to another "
            "column",
        )
