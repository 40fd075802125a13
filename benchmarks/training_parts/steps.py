"""Training steps as Lightning takes them with grn's Task, without a Trainer around them.

The model, its losses, gradient clipping, AdamW and its schedule are the Task's own; the loop between them is here. What
`grn train` has besides and this leaves out: reading cells, the moving average of the weights, logs and validation.
"""

from __future__ import annotations

import itertools
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from attention_parts.clock import release, synchronise, times
from torch import Tensor

from grn.bags import Batch
from grn.model.compile import fuse
from grn.model.objectives import mean_losses, total_loss
from grn.model.regulation_layer import RegulationLayer
from grn.model.transformer import Model
from grn.training.loop.task import Task
from training_parts.cells import CLASSES, DEFAULTS, MODELS, Point, regulators
from training_parts.methods import road

PRECISIONS = ("bf16-mixed", "32-true")
WARMUPS, LEAST, MOST = 8, 20, 200  # steps; every batch is met in the warm-up, so that nothing compiles later
BATCHES = 4


class Training:
    """A model in training on some batches, over and over."""

    def __init__(
        self,
        point: Point,
        batches: list[Batch],
        device: torch.device,
        precision: str,
        *,
        total: int = DEFAULTS.trainer.max_steps,
        dropout: float | None = None,
        seed: int = 0,
        compiled: bool = False,
    ):
        self.device, self.precision = device, precision
        model = build_model(point, batches[0], dropout, seed).to(device)
        fuse(model, compiled)
        self.task = Task(model, DEFAULTS.objectives, DEFAULTS.trainer, total).to(device).train()
        built = self.task.configure_optimizers()
        self.optimizer, self.schedule = built["optimizer"], built["lr_scheduler"]["scheduler"]
        self.turns = itertools.cycle([batch.to(device) for batch in batches])

    def autocast(self) -> AbstractContextManager:
        if self.precision == "32-true":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def loss(self, batch: Batch) -> Tensor:
        _, losses = self.task.losses(batch)
        return total_loss(mean_losses(losses), self.task.weights)

    def step(self) -> Tensor:
        """Forward, objectives, backward, clipping, AdamW; the loss."""
        batch = next(self.turns)
        self.task.on_train_batch_start(batch, 0)
        with self.autocast():
            loss = self.loss(batch)
        self.optimizer.zero_grad()
        loss.backward()
        self.task.batch, self.task.loss = batch, loss
        self.task.configure_gradient_clipping(self.optimizer)
        self.optimizer.step()
        self.schedule.step()
        return loss.detach()


def build_model(point: Point, batch: Batch, dropout: float | None, seed: int) -> Model:
    """As grn/training/building.py builds it, with a regulation layer that was never fitted: it costs the same."""
    settings = MODELS[point.model]
    settings = settings if dropout is None else settings.model_copy(update={"dropout": dropout})
    chosen, layer = regulators(point), None
    if point.members:
        every = torch.arange(point.vocabulary) if chosen is None else chosen
        heads, width = DEFAULTS.regulation.heads, DEFAULTS.regulation.width
        layer = RegulationLayer(point.members, point.vocabulary, every, heads, width).requires_grad_(False)
    torch.manual_seed(seed)
    model = Model(settings, point.vocabulary, regulators=chosen, classes=CLASSES, regulation=layer)
    model.mean.fill_(float(batch.multiplicity.mean()))
    model.sd.fill_(float(batch.multiplicity.std()))
    return model


def road_of(point: Point, precision: str, device: torch.device) -> str:
    """What flashsign's door takes for the gene queries of a point."""
    heads, key_heads = MODELS[point.model].query_heads, MODELS[point.model].key_heads
    width = MODELS[point.model].width // heads
    chosen = regulators(point)
    listed = 1.0 if chosen is None else len(chosen) / point.vocabulary
    keys = round(listed * point.genes) + 1  # of a cell, and its basal gene
    dtype = torch.bfloat16 if precision == "bf16-mixed" else torch.float32
    cells, genes = point.cells, point.genes
    if point.bags == "packed":
        return road((cells * genes, heads, width), (cells * keys, key_heads, width), cells, dtype, device)
    return road((cells, heads, genes, width), (cells, key_heads, keys, width), cells, dtype, device)


class Measured(NamedTuple):
    """Seconds a step (median, quantiles at 20 and 80 %), how many were timed, peak memory in GiB (CPU: nan)."""

    s_per_step: float
    s_20: float
    s_80: float
    steps: int
    memory_gib: float


def measure(training: Training, budget_s: float, least: int = LEAST, warmups: int = WARMUPS) -> Measured:
    """At least `least` steps, more as long as they fit the budget. Times are those between two events around a step,
    the host's share included: what a step of training takes."""
    device = training.device
    for _ in range(warmups):
        training.step()
    synchronise(device)
    turns = itertools.repeat(training.step)
    rough = min(times(turns, 2, device)) / 1000
    count = int(min(max(budget_s / max(rough, 1e-6), least), max(MOST, least)))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    found = torch.tensor(times(turns, count, device), dtype=torch.float64) / 1000
    peak = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else float("nan")
    low, middle, high = torch.quantile(found, torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64)).tolist()
    return Measured(middle, low, high, count, peak)


def measured(
    point: Point,
    batches: list[Batch],
    device: torch.device,
    precision: str,
    budget_s: float,
    least: int = LEAST,
    compiled: bool = False,
) -> Measured:
    """A new model, measured with the attention that is in its place."""
    release(device, collect=True)
    return measure(Training(point, batches, device, precision, compiled=compiled), budget_s, least, 2 * len(batches))
