"""A whole run: everything that `grn train` does, in order, from cells to the run folder."""

from __future__ import annotations

import gc
import math
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lightning as L
import numpy as np
import pandas as pd
import torch
from anndata import AnnData

from grn.cells.cells import Cells
from grn.cells.load import load_cells
from grn.cells.loading.module import CellsDataModule
from grn.cells.preprocessing.split import Split
from grn.config.files import dump_config
from grn.config.schema import Config, ObjectivesConfig, TrainerConfig
from grn.evidence.prior import prior_of
from grn.evidence.states import States, states_of
from grn.model.objectives import GENES
from grn.model.regulation import Model
from grn.model.saved import TrainedModel, round_as_saved
from grn.networks.build import first_evidence, help_to_read, write_network_files
from grn.networks.cells_of_run import refuse_lost_cells
from grn.runtime.atomic import refuse_used_folder, remove_leftovers, write_text
from grn.runtime.devices import own_device
from grn.runtime.errors import Interrupted
from grn.runtime.messages import Say, patient, silent
from grn.runtime.process_memory import give_back, keeping_pieces, returning_large_pieces
from grn.runtime.processes import ALONE, Processes
from grn.runtime.run_folder import (
    CHECKPOINTS,
    CONFIG,
    LOG,
    WRITTEN,
    config_of,
    locked,
    make_run_folder,
    remove_run,
)
from grn.runtime.threads import threads_for
from grn.training.averaging import MovingAverage
from grn.training.building import (
    Fit,
    atlas_of,
    data_module,
    prepare,
    refuse_nothing_to_learn,
    trained_model,
)
from grn.training.calibration import (
    Calibration,
    judge,
    judged_by_unseen,
    keep_what_helped,
    set_axes,
)
from grn.training.callbacks import Signals, exits_are_interruptions, process_rank
from grn.training.checkpoints import Checkpoints, StreamedCheckpoints, load_checkpoint
from grn.training.held_out import held_out_errors
from grn.training.machine import (
    lightning_options,
    processes,
    quiet,
    refuse_impossible_training,
    started_together,
)
from grn.training.metrics import METRICS, MetricsFile, Scored, metrics_of, scalars
from grn.training.progress import ProgressBar, ProgressLines
from grn.training.resume import Origin, Start, find_start
from grn.training.task import Task

THREADED = 2.0**30  # multiplications of choosing penalties: worth all threads


@dataclass(frozen=True)
class TrainResult:
    """The folder, scores, edges and model that a training ends with.

    metrics: of the test cells, by name.
    per_class: columns class, f1, cells.
    confusion: cells by true (rows) and predicted (columns) type.
    edges: see edge_table.
    """

    folder: Path
    metrics: dict[str, float]
    per_class: pd.DataFrame
    confusion: pd.DataFrame
    edges: pd.DataFrame
    trained: TrainedModel
    cells: Cells


def train(
    config: Config,
    output: Path | None = None,
    *,
    adata: AnnData | None = None,
    resume: Path | None = None,
    name: str = "run",
    say: Say = print,
    terminal: bool = False,
) -> TrainResult | None:
    """Train, evaluate, read the network and write the run folder.

    Return None in every process but the first.

    adata: cells in memory, which are used instead of those of `data.path`; it is not changed.
    resume: the run folder of an interrupted run with this configuration, which continues there;
        `output` is not used.
    name: of the configuration, for the name of a new folder.
    say: gets every line of progress.
    terminal: shows a live progress bar; otherwise `say` gets a line for each validation.
    Raises UserError (ConfigError, DataError, RunFolderError, TrainingDiverged), and Interrupted
    after a signal.
    """
    refuse_impossible_training(config.trainer)
    first, started = process_rank() == 0, time.monotonic()
    with ExitStack() as until_the_end:
        start, shared = None, config
        if resume is not None:
            config_of(resume)
            if first:
                until_the_end.enter_context(locked(resume))
            start = find_start(resume)
            start.refuse_another_configuration(config)
            shared = start.with_its_steps(config)
            if adata is None:
                refuse_lost_cells(resume, config.data)
        elif first:
            refuse_used_folder(output)

        L.seed_everything(config.trainer.seed, verbose=False)
        until_the_end.enter_context(returning_large_pieces())
        together = started_together(config.trainer)
        checked: list[tuple[Cells, Split]] = []
        # all leave with a refusal
        together.of_all(lambda: checked.append(checked_cells(config, adata, together)))
        cells, split = checked.pop()
        origin = Origin(config, cells)
        # Nothing is written before this line, so that whatever is refused leaves nothing behind.
        if start is not None:
            start.refuse_other_cells(origin)
            config = shared
            if first:
                remove_leftovers(start.folder, WRITTEN)
        else:
            existed = output is not None and output.exists()
            start = Start(make_run_folder(output, name) if first else output or Path("."))
            if first:
                until_the_end.enter_context(locked(start.folder))
                write_text(start.folder / CONFIG, dump_config(config))
        say = _tee(say, start.folder / LOG) if first else silent
        if resume is not None:
            say(f"Resuming the run in {resume} after step {start.step}.")
        try:
            return train_in(
                start,
                config,
                cells,
                split,
                origin,
                together,
                say=say,
                terminal=terminal,
                started=started,
            )
        except BaseException as stopped:
            if isinstance(stopped, Interrupted) or not isinstance(stopped, Exception):
                say(f"The run was interrupted; grn train --resume {start.folder} resumes it.")
            elif (
                first and resume is None and not (start.folder / CHECKPOINTS / "last.ckpt").exists()
            ):
                # There is nothing to resume, and the corrected command may be given with the same
                # --output.
                remove_run(start.folder, keep_folder=existed)
            raise


def checked_cells(
    config: Config, adata: AnnData | None = None, together: Processes = ALONE
) -> tuple[Cells, Split]:
    """Return the cells of a run and their split.

    Raises UserError for what can be known before anything is trained.
    """
    cells, split = load_cells(config.data, config.trainer.seed, adata, together)
    refuse_nothing_to_learn(config, cells, split)
    if config.network.prior is not None:
        prior_of(config.network, cells)
    return cells, split


def train_in(
    start: Start,
    config: Config,
    cells: Cells,
    split: Split,
    origin: Origin,
    together: Processes,
    *,
    say: Say,
    terminal: bool,
    started: float,
) -> TrainResult | None:
    """Train and write the run after its cells are read; arguments as for `train`.

    started: when reading them began.
    """
    first, folder = process_rank() == 0, start.folder
    for line in describe(cells, split):
        say(line)
    if first and cells.truth is not None:
        write_text(folder / "truth.csv", cells.truth.to_csv(index=False))

    states = states_of(
        cells, config.trainer.seed, genes_train=bool(config.objectives.masked_multiplicity.weight)
    )
    say(states.summary())
    evidence = None
    if first and config.regulates:
        with patient(say, "Comparing regulators with knock-offs"):
            evidence = first_evidence(config.network, config.trainer, cells, states, say)
    with (
        threads_for(THREADED),
        patient(say if first else silent, "Looking for penalties and the exact start"),
    ):
        fit = prepare(config, cells, split, states, say)
    atlas = atlas_of(config.data, config.trainer, cells, split, fit, say)
    model, data = fit.model, data_module(config.data, config.trainer, cells, split, fit, atlas)
    give_back()
    say(f"Ready to train after {time.monotonic() - started:.0f} s.")
    started = time.monotonic()
    log = MetricsFile(start.folder / METRICS, start.rows)
    with quiet(), keeping_pieces():
        steps, reason = fit_model(
            config.objectives,
            config.trainer,
            fit,
            data,
            start,
            origin,
            log,
            say=say,
            terminal=terminal,
        )
    if not first and together.world == 1:  # Lightning divides the weights over processes
        return None
    say(f"Trained {steps} steps in {time.monotonic() - started:.0f} s; stopped: {reason}.")
    if atlas is not None:
        atlas.held.clear()  # room for what follows

    # the first one's is there already
    model.requires_grad_(False).to(own_device(config.trainer)).eval()
    if first:
        set_axes(model, data.validation, split.train)
    together.copy_of_first(model.state_dict().values())
    metrics = evaluate(model, data, together)
    held_out = (
        held_out_errors(model, states, cells, split, together)
        if model.genes_train and len(split.test)
        else {}
    )
    if not first:
        if model.regulates:
            help_to_read(config.network, config.trainer, model, cells, states, together)
        return None
    metrics |= {name: torch.tensor(value) for name, value in held_out.items()}
    log.log_metrics(scalars(metrics, "test"), steps)
    if held_out:
        means = (
            "the means of their types"
            if len(states) > 1 and states.origin != "found"
            else "their means"
        )
        say(
            f"Error of the genes in {len(split.test)} test cells, over that of their means: "
            f"{means} {held_out['means_error']:.4f}, ridge on the same regulators within them "
            f"{held_out['ridge_error']:.4f}, the model {held_out['error']:.4f}."
        )
    trained = trained_model(config.data, config.objectives, cells, model)
    trained.save(folder / "model")
    # What nothing reads any more makes room: averaged weights and the optimiser's state.
    fold = fit.fold
    del data, fit
    gc.collect()  # Lightning's objects refer to each other
    give_back()

    # The network, and the tables.
    started = time.monotonic()
    with patient(say, "Reading the network"):
        edges = write_network_files(
            config.network,
            config.trainer,
            trained,
            cells,
            folder,
            say,
            states=states,
            first=evidence,
            processes=together,
            fold=fold,
        )
    say(f"Read the network in {time.monotonic() - started:.0f} s.")
    tables = metric_tables(metrics, cells)
    if len(tables["confusion"]):
        write_text(folder / "confusion.csv", tables["confusion"].to_csv())
    say(f"All results are in {folder}.")
    return TrainResult(folder=folder, edges=edges, trained=trained, cells=cells, **tables)


def fit_cells(config: Config, cells: Cells, states: States, say: Say) -> TrainedModel:
    """Return a model that is trained on all cells: nothing is held out to test it, nothing is
    evaluated, and no file is left.
    """
    refuse_impossible_training(config.trainer)
    split = Split(np.arange(len(cells)), np.zeros(0, int))
    refuse_nothing_to_learn(config, cells, split)
    L.seed_everything(config.trainer.seed, verbose=False)
    with threads_for(THREADED):
        fit = prepare(config, cells, split, states, say)
    atlas = atlas_of(config.data, config.trainer, cells, split, fit, say)
    data = data_module(config.data, config.trainer, cells, split, fit, atlas)
    origin = Origin(config, cells)
    with TemporaryDirectory(prefix="grn-") as folder, quiet(), keeping_pieces():
        fit_model(
            config.objectives,
            config.trainer,
            fit,
            data,
            Start(Path(folder)),
            origin,
            MetricsFile(Path(folder) / METRICS, []),
            say=say,
            terminal=False,
        )
    return trained_model(config.data, config.objectives, cells, fit.model.requires_grad_(False))


def describe(cells: Cells, split: Split) -> list[str]:
    """Return a few sentences about the loaded cells."""
    labelled = int((cells.labels >= 0).sum())
    sizes = f"{len(split.train)} to train, {len(split.test)} to test"
    genes = len(cells.vocabulary) - cells.keys
    of = "" if cells.sample is None else f" of {len(cells.sample.mark)}, a sample,"
    lines = [f"{len(cells)} cells{of} x {genes} genes ({sizes}).", cells.counts_from, *cells.notes]
    if cells.classes:
        lines.append(
            f"{len(cells.classes)} cell types; {labelled} of {len(cells)} cells are labelled."
        )
    if len(cells.classes) == 1:
        lines.append(f"{cells.classes[0]!r} is the only cell type, so no cell types are predicted.")
    return lines


def fit_model(
    objectives: ObjectivesConfig,
    settings: TrainerConfig,
    fit: Fit,
    data: CellsDataModule,
    start: Start,
    origin: Origin,
    log: MetricsFile,
    *,
    say: Say,
    terminal: bool,
) -> tuple[int, str]:
    """Train the model in place, from `start` until its last step or until its patience is over;
    return how many steps it has taken, and why it stopped.

    In the first process, blocks and context then have the weights that predicted held-out genes
    best, and the identity token its last ones.
    """
    model = fit.model
    per_epoch = data.steps_per_epoch(processes(settings))
    total = min(settings.max_steps, (settings.max_epochs or settings.max_steps) * per_epoch)
    began = {name: tensor.clone() for name, tensor in model.blocks.state_dict().items()}
    at_start = math.inf
    if model.genes_train and len(data.judged):
        model.to(own_device(settings))
        at_start = float(judged_by_unseen(model, data.validation, data.judged).error())
        say(f"step 0/{total}  validation loss {at_start:.4f}")
        model.cpu()
    task = Task(model, objectives, settings, total)
    task.at_start = at_start
    record = origin.record(data.batch_size * processes(settings))
    checkpoints = Checkpoints(start.folder / CHECKPOINTS, settings.patience, record)
    # The average comes first: checkpoints, which follow it, save it, and validation uses it.
    averaging = [MovingAverage(settings.averaging)] if settings.averaging else []
    lines = ProgressBar(total) if terminal else ProgressLines(say, total)
    calibration = Calibration(data.validation, fit.judging, task.opened, say)
    signals = Signals(checkpoints.folder)
    options = lightning_options(settings)
    if settings.strategy in (
        "auto",
        "ddp",
    ):  # others divide the weights over processes, with checkpoints of their own
        options["plugins"].append(StreamedCheckpoints())
    trainer = L.Trainer(
        **options,
        max_steps=total,
        max_epochs=-1,
        check_val_every_n_epoch=None,
        val_check_interval=min(settings.validate_every, total),
        callbacks=[*averaging, calibration, checkpoints, signals, lines],
        logger=log if process_rank() == 0 else False,
        log_every_n_steps=task.log_every,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
    )
    # For each cell of a step, a product with every score of its state.
    genes = min(model.genes, len(model.regulators) + GENES)
    multiplications = data.batch_size * genes * model.scores_of_a_gene / len(model.share)
    multiplications = max(multiplications, model.identity.multiplications(data.batch_size))
    with threads_for(multiplications), exits_are_interruptions():
        trainer.fit(task, datamodule=data, ckpt_path=start.checkpoint, weights_only=True)
    if start.checkpoint is not None and trainer.global_step == start.step:
        # Nothing was left to train, so Lightning has not called on_train_end, where the average
        # takes the place of the weights.
        model.load_state_dict(best_weights(start.checkpoint))
    if process_rank() == 0:
        best = best_weights(checkpoints.folder / "best.ckpt")
        # held-out genes have chosen the step, which says nothing of what reads the cells
        if model.genes_train:
            best = {
                name: tensor for name, tensor in best.items() if not name.startswith("identity.")
            }
        model.load_state_dict(best, strict=not model.genes_train)
        round_as_saved(model)
        # Lightning has moved it to the processor, where many cells take minutes
        model.to(own_device(settings)).eval()
        if model.genes_train:
            for line in keep_what_helped(model, began, data.validation, data.judged):
                say(line)
        # training ended before held-out cells had judged
        if trainer.global_step <= task.opened and len(fit.judging):
            judge(model, data.validation, fit.judging)
    return trainer.global_step, checkpoints.reason


def best_weights(path: Path) -> dict[str, torch.Tensor]:
    """Return the model's tensors in a checkpoint. Raises RunFolderError."""
    state = load_checkpoint(path)["state_dict"]
    return {
        name.removeprefix("model."): tensor
        for name, tensor in state.items()
        if name.startswith("model.")
    }


@torch.no_grad()
def evaluate(model: Model, data: CellsDataModule, together: Processes) -> dict[str, torch.Tensor]:
    """Return the metrics of the test cells, in every process.

    together: the processes that call this, with the same model, of which each scores some of the
        batches.
    """
    own = []
    for given in data.test_dataloader(together):
        batch = given.to(model.mean.device)
        own.append(Scored.of(model(batch.bags), batch, model))
    return metrics_of([each for scored in together.of_all(lambda: own) for each in scored])


def metric_tables(found: dict[str, torch.Tensor], cells: Cells) -> dict[str, Any]:
    """Return the `metrics`, `per_class` and `confusion` of a TrainResult, empty tables where no
    cell types are predicted.
    """
    metrics = {name: float(value) for name, value in found.items() if value.ndim == 0}
    if "confusion" not in found:
        return {"metrics": metrics, "per_class": pd.DataFrame(), "confusion": pd.DataFrame()}
    confusion = pd.DataFrame(found["confusion"].numpy(), index=cells.classes, columns=cells.classes)
    per_class = pd.DataFrame(
        {
            "class": cells.classes,
            "f1": found["f1_per_class"].numpy(),
            "cells": confusion.sum(axis=1).to_numpy(),
        }
    )
    return {"metrics": metrics, "per_class": per_class, "confusion": confusion}


def _tee(say: Say, path: Path) -> Say:
    """Return a `say` that also appends every line to the file, with its time."""

    def both(line: str) -> None:
        say(line)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {line}\n")

    return both
