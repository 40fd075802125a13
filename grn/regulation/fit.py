"""The fit of a model's regulation: penalties by held-out prediction, a linear start, then the ensemble members.

The layers are nearly linear and small, so they are fitted by themselves: before the transformer, on the training cells,
and for the network once more, on all cells. The cells of one donor or batch (data.group_key) are held out together or
not at all.

Letters: P members, C cells, N genes, R regulators, K states.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from grn.cells.cells import Cells
from grn.config.schema import Config, RegulationConfig
from grn.devices import own_device
from grn.errors import ConfigError, TrainingDiverged
from grn.messages import Say, silent
from grn.model.signed.regulation import Regulation
from grn.model.signed.regulation_layer import RegulationLayer
from grn.process_memory import give_back
from grn.regulation.cell_table import BothTargets, CellTable, TrainingCells, both_targets, centred, sampled, set_units
from grn.regulation.folds import held_out_cells, validation_folds
from grn.regulation.levels import level_error
from grn.regulation.linear import FOLDS, Penalties, PriorError, choose_penalties, weigh_by_prior
from grn.regulation.members import RegulationSettings, start, train_members
from grn.regulation.states import States

MOST_SCORES = 2**32  # of all members and states together, 16 GiB; the fit holds about nine tables of this size
# Steps x scores after the linear start: a minute or two of one thread, or of a GPU. Large tables gain little from more.
WORK, WORK_ON_GPU = 2**30, 2**37
FEWEST_STEPS = 20  # fewer do not get beyond the warm-up, and are left out
MEMBER_FOLDS = 10  # a member holds out one of at least this many folds of the cells, or of as many as there are groups
WITH_DEPTH = (2, 3)  # of every five members, those that read the depth: one of each kind


@dataclass(frozen=True)
class FittedLayer:
    """layer: the trained members.   values, ranks: the penalties of members that predict multiplicities, and ranks.
    error [P]: held-out squared error of each member, in variances of the genes (with states: around their means)."""

    layer: RegulationLayer
    values: Penalties
    ranks: Penalties
    error: Tensor


@dataclass(frozen=True)
class ChosenPenalties:
    """Of the pooled layer and that of the states, if any: for multiplicities and for ranks."""

    pooled: tuple[Penalties, Penalties]
    by_state: tuple[Penalties, Penalties] | None


@dataclass(frozen=True)
class FittedRegulation:
    regulation: Regulation
    pooled: FittedLayer
    by_state: FittedLayer | None

    @property
    def within(self) -> FittedLayer:
        return self.by_state or self.pooled

    @property
    def penalties(self) -> ChosenPenalties:
        pooled, by_state = self.pooled, self.by_state
        return ChosenPenalties(
            (pooled.values, pooled.ranks), None if by_state is None else (by_state.values, by_state.ranks)
        )


def fit_ensemble(
    config: RegulationConfig,
    cells: TrainingCells,
    *,
    members: int | None = None,
    penalties: tuple[Penalties, Penalties] | None = None,
    prior: np.ndarray | None = None,
    targets: BothTargets | None = None,
    seed: int,
    device: torch.device | str = "cpu",
    say: Say = silent,
) -> FittedLayer:
    """The ensemble members of a regulation layer, trained on the fitted rows of the cells.

    members: None: config.members.   penalties: of multiplicities and of ranks; None: held-out prediction chooses.
    prior [N, R]: see `fit_regulation`.   targets: of an earlier fit to the same cells on the same device.
    Raises TrainingDiverged.
    """
    settings = RegulationSettings.of(config)
    members = settings.members if members is None else members
    if cells.groups is not None and cells.fitted_groups() is None:
        say("All cells to fit are of one group (data.group_key), so the regulation layer holds out cells at random.")
    torch.manual_seed(seed)
    regulators = torch.as_tensor(cells.regulators)
    states = cells.memberships().shape[1]
    width = min(settings.width, len(regulators) + 1)  # more would be of no use, as no scores need more
    layer = RegulationLayer(members, len(cells.mean), regulators, settings.heads, width, states)
    set_units(layer, cells)
    table = CellTable(layer.to(device), cells, targets)
    values, ranks = choose(config, layer, table, cells, seed, prior) if penalties is None else penalties
    give_back()
    if values.ratio:
        layer.let_states_deviate()
    kinds = torch.arange(members)
    layer.predicts_ranks.copy_(kinds % 2)
    reads_depth = torch.isin(kinds % 5, torch.tensor(WITH_DEPTH)) & bool(table.inputs[:, -1].std() > 0)
    layer.reads_depth.copy_(reads_depth)
    generator = torch.Generator().manual_seed(seed)
    training, held_out = held_out_cells(
        np.arange(len(table)), cells.fitted_groups(), range(members), max(MEMBER_FOLDS, members), generator
    )
    of_members = [ranks if of_ranks else values for of_ranks in layer.predicts_ranks.tolist()]
    layer.penalty.copy_(torch.stack([found.penalty for found in of_members]))
    layer.ratio.fill_(values.ratio)
    for member, found in enumerate(of_members):
        start(layer, member, table, training[member], found)
    give_back()
    scores = layer.centre.numel() * layer.members * layer.heads * layer.genes
    affordable = (WORK_ON_GPU if layer.unit.is_cuda else WORK) // scores
    steps = min(config.steps, affordable) if affordable >= FEWEST_STEPS else 0
    if steps < config.steps:
        say(
            f"Members are trained for {steps} steps after their linear start, not {config.steps} (regulation.steps), "
            "which would take long with so many genes, regulators and states."
        )
    errors = train_members(
        layer,
        table,
        settings.model_copy(update={"steps": steps}),
        training=training,
        held_out=held_out,
        seed=seed,
        factor=None if values.factor is None else values.factor.to(layer.unit),
        say=say,
    )
    if not errors.isfinite().all():
        raise TrainingDiverged(
            "The held-out error of the regulation layer is not finite; look for cells with extreme values."
        )
    layer.requires_grad_(False)
    return FittedLayer(layer, values, ranks, errors)


def choose(
    config: RegulationConfig,
    layer: RegulationLayer,
    table: CellTable,
    cells: TrainingCells,
    seed: int,
    prior: np.ndarray | None,
) -> tuple[Penalties, Penalties]:
    """The penalties of multiplicities and of ranks; multiplicities choose the ratio and what a prior counts."""
    rows = sampled(layer, table, torch.arange(len(table)), seed)
    groups = cells.fitted_groups()
    groups = None if groups is None else groups[rows.numpy()]
    fold = validation_folds(len(rows), groups, FOLDS, torch.Generator().manual_seed(seed))
    x, _, states = centred(layer, table, rows)
    of_values, of_ranks = table.values.columns(rows, like=x), table.ranks.columns(rows, like=x)
    own, fold = layer.regulators, fold.to(x.device)
    found = partial(choose_penalties, x, states=states, own=own, folds=fold, penalties=list(config.penalties))
    values = found(of_values)
    if prior is not None:
        values = weigh_by_prior(x, of_values, states, own, fold, values, torch.as_tensor(prior, device=x.device))
    return values, replace(found(of_ranks, ratios=(values.ratio,)), factor=values.factor, prior=values.prior)


def fit_regulation(
    config: Config,
    cells: Cells,
    states: States,
    rows: np.ndarray,
    *,
    mean: Tensor,
    sd: Tensor,
    say: Say,
    penalties: ChosenPenalties | None = None,
    prior: np.ndarray | None = None,
) -> FittedRegulation:
    """The regulation of a run, fitted on the cells `rows` and moved to the CPU.

    mean, sd [N]: of every gene.   penalties: of an earlier fit; None: held-out prediction chooses.   prior [N, R]:
    strength of the pairs that a prior network lists, from 0 to 1, which are penalised less where that helps.
    Raises ConfigError where the scores would take too much memory, and TrainingDiverged.
    """
    several = len(states) > 1
    with_states = TrainingCells.of(cells, rows, mean, sd, states.membership if several else None)
    settings, device, seed = config.regulation, own_device(config.trainer), config.trainer.seed
    refuse_too_many_scores(config, with_states)
    started = time.monotonic()
    targets = both_targets(with_states, torch.device(device))
    fit = partial(fit_ensemble, settings, prior=prior, targets=targets, seed=seed, device=device, say=say)

    def layer(cells: TrainingCells, penalties: tuple[Penalties, Penalties] | None) -> FittedLayer:
        found = fit(cells, penalties=penalties)
        give_back()
        return replace(found, layer=found.layer.cpu())

    pooled = layer(replace(with_states, states=None), None if penalties is None else penalties.pooled)
    by_state, error_of_levels = None, None
    if several:
        by_state = layer(with_states, None if penalties is None else penalties.by_state)
        error_of_levels = level_error(with_states, pooled.values, device=device)
    found = FittedRegulation(
        Regulation(pooled.layer, None if by_state is None else by_state.layer, error_of_levels), pooled, by_state
    )
    seconds = time.monotonic() - started
    if penalties is not None:  # with the same penalties: what they found was said then
        say(f"Fitted the regulation layers again for the network, on all {len(rows)} cells, in {seconds:.0f} s.")
        return found
    for line in summary(found, len(rows), seconds):
        say(line)
    return found


def summary(found: FittedRegulation, cells: int, seconds: float) -> list[str]:
    members = found.pooled.layer.members
    lines = [
        f"Fitted the regulation layers on {cells} cells in {seconds:.0f} s: {members} "
        f"{'member' if members == 1 else 'members'}, median penalty {float(found.within.values.penalty.median()):.3g}; "
        f"error on the training cells that a member leaves out {float(found.pooled.error.mean()):.4f} (of each gene's "
        "mean: 1)."
    ]
    deciding = found.pooled if found.regulation.levels_follow else found.within  # whose weights the network has
    lines += [] if deciding.values.prior is None else [prior_sentence(deciding.values.prior)]
    if found.by_state is None:
        return lines
    regulation = found.regulation
    lines.append(
        f"Within {found.by_state.layer.states} states of cells: error on left-out training cells "
        f"{float(found.by_state.error.mean()):.4f} (of each state's mean: 1); the states' slopes "
        + ("differ" if found.by_state.layer.deviates else "are the same")
        + f" (ratio {found.by_state.values.ratio:g})."
    )
    follows = "count as regulation" if regulation.levels_follow else "do not count: they may be composition"
    lines.append(
        "Levels of states that were left out are predicted from their regulators with error "
        f"{regulation.level_error:.3f} (of their mean: 1), so differences between states {follows}."
    )
    return lines


def prior_sentence(found: PriorError) -> str:
    errors = f"held-out error {found.with_prior:.4f} with it and {found.without:.4f} without"
    if found.unlisted == 1:
        return f"The prior does not help to predict held-out cells by more than chance ({errors}), so it is not used."
    return (
        f"The prior helps to predict held-out cells ({errors}): pairs that it does not list are penalised "
        f"{found.unlisted**-2:.3g} times as much as those that it lists."
    )


def refuse_too_many_scores(config: Config, cells: TrainingCells) -> None:
    genes, regulators, settings = len(cells.mean), len(cells.regulators), RegulationSettings.of(config.regulation)
    scores = settings.members * cells.memberships().shape[1] * settings.heads * genes * regulators
    if scores > MOST_SCORES:
        raise ConfigError(
            f"{regulators} regulators of {genes} genes in {settings.members} members (regulation.members) give more "
            "scores than the regulation layer can hold in memory; list the regulators (data.regulators), choose fewer "
            "genes (data.genes) or members, or train without the layer: regulation.members: 0 and network.readout: "
            "attention."
        )
