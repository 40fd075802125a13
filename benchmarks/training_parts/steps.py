"""Training steps as Lightning takes them with grn's Task, without a Trainer.

The model, its losses, gradient clipping, AdamW and its schedule are the Task's own; the loop that calls them is here.
Left out: reading cells, the moving average of the weights, logs and validation.
"""

from __future__ import annotations

import itertools
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from attention_parts.clock import release, synchronise, times
from torch import Tensor

from flashsign.dispatch import Device, plan
from grn.bags import Batch
from grn.model.compile import fuse
from grn.model.objectives import mean_losses, total_loss
from grn.model.signed.regulation import Regulation
from grn.model.signed.regulation_layer import RegulationLayer
from grn.model.transformer import Model
from grn.regulation.members import RegulationSettings
from grn.training.task import Task
from training_parts.cells import CLASSES, DEFAULTS, MODELS, Point, regulators

PRECISIONS = ("bf16-mixed", "32-true")
WARMUPS, LEAST, MOST = 8, 20, 200  # steps; the warm-up takes every batch, so that nothing compiles later
BATCHES = 4


class Training:
    """A model in training on some batches, again and again."""

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
        self.batches = itertools.cycle([batch.to(device) for batch in batches])

    def autocast(self) -> AbstractContextManager:
        if self.precision == "32-true":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def loss(self, batch: Batch) -> Tensor:
        _, losses = self.task.losses(batch)
        return total_loss(mean_losses(losses), self.task.weights)

    def step(self) -> Tensor:
        """Forward, objectives, backward, clipping and AdamW; returns the loss."""
        batch = next(self.batches)
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
    """As grn/training/building.py builds it, with a regulation layer that was not fitted, which costs as much."""
    settings = MODELS[point.model]
    settings = settings if dropout is None else settings.model_copy(update={"dropout": dropout})
    chosen, regulation = regulators(point), None
    if point.members:
        every = torch.arange(point.vocabulary) if chosen is None else chosen
        sizes = RegulationSettings()
        layer = RegulationLayer(point.members, point.vocabulary, every, sizes.heads, sizes.width)
        regulation = Regulation(layer.requires_grad_(False))
    torch.manual_seed(seed)
    model = Model(settings, point.vocabulary, regulators=chosen, classes=CLASSES, regulation=regulation)
    model.mean.fill_(float(batch.multiplicity.mean()))
    model.sd.fill_(float(batch.multiplicity.std()))
    return model


def flashsign_path(point: Point, precision: str, device: torch.device | Device) -> str:
    """The path of gene queries in training at a point: "stream" or "moments" (of Triton), or "torch"."""
    heads, key_heads = MODELS[point.model].query_heads, MODELS[point.model].key_heads
    width = MODELS[point.model].width // heads
    chosen = regulators(point)
    listed = 1.0 if chosen is None else len(chosen) / point.vocabulary
    keys = round(listed * point.genes) + 1  # of a cell, with its basal gene
    dtype = torch.bfloat16 if precision == "bf16-mixed" else torch.float32
    cells, genes = point.cells, point.genes
    if point.bags == "packed":
        q, k, bags = (cells * genes, heads, width), (cells * keys, key_heads, width), cells
    else:
        q, k, bags = (cells, heads, genes, width), (cells, key_heads, keys, width), None
    chosen = plan(q, k, dtype=dtype, bags=bags, gradients=True, device=device)
    return "torch" if chosen.backend == "torch" else chosen.method


class Measured(NamedTuple):
    """Seconds per step (median, quantiles at 20 and 80 %), how many were timed, peak memory in GiB (CPU: nan)."""

    s_per_step: float
    s_20: float
    s_80: float
    steps: int
    memory_gib: float


def measure(training: Training, budget_s: float, least: int = LEAST, warmups: int = WARMUPS) -> Measured:
    """Times at least `least` steps, and more as long as they fit the budget.

    A time is that between two events around a step, the time that the GPU waits for the host included.
    """
    device = training.device
    for _ in range(warmups):
        training.step()
    synchronise(device)
    repeated = itertools.repeat(training.step)
    rough = min(times(repeated, 2, device)) / 1000
    count = int(min(max(budget_s / max(rough, 1e-6), least), max(MOST, least)))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    found = torch.tensor(times(repeated, count, device), dtype=torch.float64) / 1000
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
    """The steps of a new model, with the attention that `attending` sets."""
    release(device, collect=True)
    return measure(Training(point, batches, device, precision, compiled=compiled), budget_s, least, 2 * len(batches))
