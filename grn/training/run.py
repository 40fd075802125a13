"""A whole run: cells in, run folder out. Everything that `grn train` does, in order."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import lightning as L
import numpy as np
import pandas as pd
import torch
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.loggers import Logger, TensorBoardLogger

from grn.bags import Batch
from grn.config import Config
from grn.configfile import dump_config
from grn.data.cells import Cells, load_cells
from grn.data.module import CellsDataModule
from grn.data.places import Place
from grn.data.split import Split
from grn.errors import ConfigError, DataError, UserError
from grn.files import refuse_used_folder, replacing_file, write_text
from grn.fusing import fusing
from grn.model import Model
from grn.trained import TrainedModel
from grn.training.averaging import MovingAverage
from grn.training.callbacks import Checkpoints, ProgressLines, Signals, exits_are_interruptions, process_rank
from grn.training.folder import LOG, config_of, held, make_run_folder
from grn.training.layer import held_out_errors, mean_and_sd, regulation_layer
from grn.training.machine import (
    lightning_options,
    processes,
    refuse_impossible_training,
    refuse_more_parts_than_genes,
    uses_gpu,
)
from grn.training.metrics import Evaluation, scalars
from grn.training.metrics_file import MetricsFile
from grn.training.networks import Say, write_network_files
from grn.training.quiet import quiet
from grn.training.regulation import Fit
from grn.training.resume import METRICS, Origin, Start, find_start, remove_leftovers
from grn.training.task import Task


@dataclass(frozen=True)
class TrainResult:
    """What a run found. metrics: test metrics by name.   per_class: class, f1, cells.   edges: see edge_table."""

    folder: Path
    metrics: dict[str, float]
    per_class: pd.DataFrame
    confusion: pd.DataFrame
    edges: pd.DataFrame
    trained: TrainedModel


def train(
    config: Config,
    output: Path | None = None,
    *,
    resume: Path | None = None,
    name: str = "run",
    say: Say = print,
    terminal: bool = False,
) -> TrainResult | None:
    """Train, evaluate, read the network, write the run folder. None in every process but the first.

    resume: the folder of a run with this configuration, which was cut off and goes on there, in the place of `output`.
    terminal: show a live progress bar; otherwise one line a validation goes through `say`.
    Raises UserError (ConfigError, DataError, RunFolderError, TrainingDiverged), and Interrupted after a signal.
    """
    refuse_impossible_training(config.trainer)
    Place.of(0, processes(config.trainer), config.trainer.gene_parallel)  # raises where it cannot be
    first = process_rank() == 0
    with ExitStack() as until_the_end:
        start = None
        if resume is not None:
            config_of(resume)
            if first:
                until_the_end.enter_context(held(resume))
            start = find_start(resume)
            start.refuse_another_configuration(config)
        elif first:
            refuse_used_folder(output)

        started = time.monotonic()
        L.seed_everything(config.trainer.seed, verbose=False)
        cells, split = load_cells(config.data, property_key=config.objectives.property.key, seed=config.trainer.seed)
        refuse_more_parts_than_genes(config.trainer, len(cells.vocabulary))
        refuse_nothing_to_learn(config, cells)
        origin = Origin(config, cells, split)
        if start is not None:
            start.refuse_other_cells(origin)
        # Whatever was refused until here has left nothing behind.
        folder = resume or (make_run_folder(output, name) if first else output or Path("."))
        if not first:
            return train_in(folder, config, cells, split, origin, start, say=_silent, terminal=False, started=started)
        if start is None:
            until_the_end.enter_context(held(folder))
            write_text(folder / "config.yaml", dump_config(config))
        else:
            remove_leftovers(folder)
        say = _tee(say, folder / LOG)
        try:
            return train_in(folder, config, cells, split, origin, start, say=say, terminal=terminal, started=started)
        except UserError:
            raise
        except BaseException:
            say(f"Cut off; grn train --resume {folder} goes on.")
            raise


def train_in(
    folder: Path,
    config: Config,
    cells: Cells,
    split: Split,
    origin: Origin,
    start: Start | None,
    *,
    say: Say,
    terminal: bool,
    started: float,
) -> TrainResult | None:
    """A run from its cells on: see `train`. started: when it began to read them."""
    first = process_rank() == 0
    if start is not None:
        say(f"Going on with the run in {folder} after step {start.step}.")
    for line in describe(cells, split):
        say(line)
    truth = folder / "truth.csv"
    if first and cells.truth is not None and not truth.exists():
        with replacing_file(truth) as beside:
            cells.truth.to_csv(beside, index=False)
    mean, sd = mean_and_sd(cells.multiplicity[split.train])
    fit_layer = partial(regulation_layer, config, cells, mean=mean, sd=sd, say=say)
    layer = fit_layer(split.train) if config.network.members else None
    model = build_model(config, cells, split, mean, sd, layer)
    data = data_module(config, cells, split, with_regulators=layer is not None)
    say(f"Ready after {time.monotonic() - started:.0f} s.")

    started = time.monotonic()
    with quiet():
        trainer, task, checkpoints = fit(config, model, data, folder, origin, start, say=say, terminal=terminal)
    if not first:
        return None
    say(f"Trained {trainer.global_step} steps in {time.monotonic() - started:.0f} s; stopped: {checkpoints.reason}.")
    model.load_state_dict(best_weights(checkpoints.folder / "best.ckpt"))
    found = evaluate(task, data.test_dataloader())
    held_out = held_out_errors(layer, cells, split, mean, sd) if layer is not None and len(split.test) else {}
    found |= {name: torch.tensor(value) for name, value in held_out.items()}
    log_test(trainer, found)
    if held_out:
        say(
            f"Squared error over {len(split.test)} test cells, in variances of the genes: regulation layer "
            f"{held_out['regulation_error']:.4f}, ridge on the same regulators {held_out['ridge_error']:.4f}."
        )
    trained = trained_model(config, cells, model, layer)
    trained.save(folder / "model")
    if layer is not None:
        # The metrics are those of a model that had not seen the test cells; the network is read from all cells.
        model.regulation = fit_layer(np.arange(len(cells)), penalty=layer.penalty).regulation
        trained.save(folder / "model")

    started = time.monotonic()
    edges = write_network_files(config, trained, cells, folder, say)
    say(f"Read the network in {time.monotonic() - started:.0f} s.")
    found_tables = tables(found, cells)
    if len(found_tables["confusion"]):
        write_text(folder / "confusion.csv", found_tables["confusion"].to_csv())
    result = TrainResult(folder=folder, edges=edges, trained=trained, **found_tables)
    say(f"Everything is in {folder}")
    return result


def describe(cells: Cells, split: Split) -> list[str]:
    """What was loaded, in a few sentences."""
    labelled = int((cells.labels >= 0).sum())
    sizes = f"{len(split.train)} to train, {len(split.validation)} to validate, {len(split.test)} to test"
    lines = [f"{len(cells)} cells x {len(cells.vocabulary)} genes ({sizes}).", cells.counts_from, *cells.notes]
    if cells.classes:
        lines.append(f"{len(cells.classes)} cell types; {labelled} of {len(cells)} cells are labelled.")
    if len(cells.classes) == 1:
        lines.append(
            f"{cells.classes[0]!r} is the only cell type, so there are none to tell apart: none are predicted."
        )
    return lines


def trained_classes(config: Config, cells: Cells) -> tuple[str, ...]:
    """The cell types that the model learns to tell apart: two or more, or none."""
    return cells.classes if config.objectives.cell_type.weight and len(cells.classes) > 1 else ()


def build_model(
    config: Config, cells: Cells, split: Split, mean: torch.Tensor, sd: torch.Tensor, layer: Fit | None
) -> Model:
    """A model with the heads that the objectives need, the genes' scale and, fitted already, the regulation layer."""
    objectives = config.objectives
    regulators = None if cells.regulators is None else torch.as_tensor(cells.regulators)
    torch.manual_seed(config.trainer.seed)  # the blocks start alike with and without the layer
    model = Model(
        config.model,
        len(cells.vocabulary),
        regulators=regulators,
        classes=len(trained_classes(config, cells)),
        property=bool(objectives.property.weight),
        regulation=None if layer is None else layer.regulation,
    )
    model.mean.copy_(mean)
    model.sd.copy_(sd)
    if objectives.property.weight:
        model.property_scale.copy_(torch.tensor(property_scale(cells.property[split.train], objectives.property.key)))
    if not objectives.masked_multiplicity.weight:
        # DDP refuses parameters that no loss reaches.
        model.multiplicity.requires_grad_(False)
        model.multiplicity_bias.requires_grad_(False)
    return model


def data_module(config: Config, cells: Cells, split: Split, *, with_regulators: bool) -> CellsDataModule:
    return CellsDataModule(
        cells,
        split,
        batch_size=config.trainer.batch_size,
        masked_fraction=config.objectives.masked_multiplicity.fraction,
        seed=config.trainer.seed,
        bags=config.data.bags,
        absent_fraction=config.data.absent_fraction,
        gene_parallel=config.trainer.gene_parallel,
        num_workers=config.trainer.workers,
        with_regulators=with_regulators,
    )


def trained_model(config: Config, cells: Cells, model: Model, layer: Fit | None) -> TrainedModel:
    """What the model folder holds beside the weights: all that new cells have to be read with."""
    return TrainedModel(
        model=model,
        vocabulary=cells.vocabulary,
        classes=trained_classes(config, cells),
        values=config.data.values,
        multiplicity=config.data.multiplicity,
        target_total=cells.target_total,
        depth=cells.depth,
        measures_depth=cells.measures_depth,
        depth_share=cells.depth_share,
        property_key=config.objectives.property.key if model.property is not None else None,
        penalty=None if layer is None else layer.penalty,
    )


def refuse_nothing_to_learn(config: Config, cells: Cells) -> None:
    others = config.objectives.masked_multiplicity.weight or config.objectives.property.weight
    if not others and not trained_classes(config, cells):
        raise ConfigError(
            f"obs column {config.data.label_key!r} holds the one cell type {cells.classes[0]!r} and nothing else is "
            "trained for; set objectives.masked_multiplicity.weight above 0, or data.label_key to another column."
        )


def property_scale(values: np.ndarray, key: str | None) -> tuple[float, float]:
    known = values[~np.isnan(values)]
    if len(known) < 2 or known.std() == 0:
        raise DataError(f"obs column {key!r} has no two different numbers among the training cells; choose another.")
    return float(known.mean()), float(known.std())


def fit(
    config: Config,
    model: Model,
    data: CellsDataModule,
    folder: Path,
    origin: Origin,
    start: Start | None,
    *,
    say: Say,
    terminal: bool,
) -> tuple[L.Trainer, Task, Checkpoints]:
    settings = config.trainer
    per_epoch = data.steps_per_epoch(processes(settings))
    total = min(settings.max_steps, (settings.max_epochs or settings.max_steps) * per_epoch)
    task = Task(model, config.objectives, settings, total)
    checkpoints = Checkpoints(folder / "checkpoints", settings.patience)
    # First the average: the checkpoints that follow hold it, and validation looks at it.
    averaging = [MovingAverage(settings.averaging)] if settings.averaging else []
    lines = RichProgressBar(leave=False) if terminal else ProgressLines(say, total)
    loggers: list[Logger] = []
    if process_rank() == 0:
        loggers = [MetricsFile(folder / METRICS, start.rows if start else [])]
        if settings.tensorboard:
            loggers.append(TensorBoardLogger(folder, name="", version="tensorboard"))
    trainer = L.Trainer(
        **lightning_options(settings),
        max_steps=total,
        max_epochs=-1,
        check_val_every_n_epoch=None,
        val_check_interval=min(settings.validate_every, total),
        callbacks=[*averaging, checkpoints, Signals(checkpoints.folder), lines, origin],
        logger=loggers or False,
        log_every_n_steps=min(settings.validate_every, total),
        enable_checkpointing=False,
        enable_progress_bar=terminal,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
    )
    with fusing(model, settings.compile and uses_gpu(settings)), exits_are_interruptions():
        trainer.fit(task, datamodule=data, ckpt_path=start.checkpoint if start else None, weights_only=True)
    return trainer, task, checkpoints


def best_weights(path: Path) -> dict[str, torch.Tensor]:
    """The model's tensors in a checkpoint."""
    state = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    return {name.removeprefix("model."): tensor for name, tensor in state.items() if name.startswith("model.")}


def evaluate(task: Task, batches: Iterable[Batch]) -> dict[str, torch.Tensor]:
    """Metrics of the model as it is, on this process alone."""
    task.eval()
    evaluation = Evaluation(list(task.objectives), task.weights, task.classes, alone=True)
    with torch.no_grad():
        for batch in batches:
            prediction, losses = task.losses(batch.to(task.device))
            evaluation.update(prediction, batch, task.model, losses)
    return evaluation.compute()


def log_test(trainer: L.Trainer, found: dict[str, torch.Tensor]) -> None:
    for logger in trainer.loggers:
        logger.log_metrics(scalars(found, "test"), trainer.global_step)
        logger.save()


def tables(found: dict[str, torch.Tensor], cells: Cells) -> dict:
    """Metrics as plain numbers: `metrics`, `per_class` and `confusion` (rows: true, columns: predicted)."""
    metrics = {name: float(value) for name, value in found.items() if value.ndim == 0}
    if "confusion" not in found:
        return {"metrics": metrics, "per_class": pd.DataFrame(), "confusion": pd.DataFrame()}
    confusion = pd.DataFrame(found["confusion"].numpy(), index=cells.classes, columns=cells.classes)
    per_class = pd.DataFrame(
        {"class": cells.classes, "f1": found["f1_per_class"].numpy(), "cells": confusion.sum(axis=1).to_numpy()}
    )
    return {"metrics": metrics, "per_class": per_class, "confusion": confusion}


def _tee(say: Say, path: Path) -> Say:
    def both(line: str) -> None:
        say(line)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {line}\n")

    return both


def _silent(line: str) -> None:
    pass
