"""The model as a LightningModule: one step, one optimiser, one schedule."""

from __future__ import annotations

import math

import lightning as L
import torch
from torch import Tensor, nn

from grn.bags import Batch
from grn.config import ObjectivesConfig, TrainerConfig
from grn.errors import TrainingDiverged
from grn.model import Model, Prediction
from grn.objectives import Loss, active_objectives, mean_losses, total_loss
from grn.training.metrics import Evaluation, scalars


class Task(L.LightningModule):
    """Trains a Model on its objectives; logs `train/*` and `validation/*`."""

    def __init__(self, model: Model, objectives: ObjectivesConfig, trainer: TrainerConfig, total_steps: int):
        super().__init__()
        self.model, self.settings, self.total_steps = model, trainer, total_steps
        self.objectives = active_objectives(objectives, model)
        self.weights = {name: weight for name, (weight, _) in self.objectives.items()}
        self.classes = model.cell_type.out_features if model.cell_type is not None else 0
        self.evaluation = Evaluation(list(self.objectives), self.weights, self.classes)

    def losses(self, batch: Batch) -> tuple[Prediction, dict[str, Loss]]:
        prediction = self.model(batch.bags)
        return prediction, {name: loss(prediction, batch, self.model) for name, (_, loss) in self.objectives.items()}

    def training_step(self, batch: Batch, index: int) -> Tensor:
        _, losses = self.losses(batch)
        means = mean_losses(losses, self.mean_over_processes)
        loss = total_loss(means, self.weights)
        if not loss.isfinite():
            raise self.diverged("loss", batch)
        self.batch = batch
        logged = {"train/loss": loss} | {f"train/{name}_loss": mean for name, mean in means.items()}
        # Averaged over processes these are the means of the whole batch.
        self.log_dict(
            {name: value.detach() for name, value in logged.items()}, batch_size=len(batch.cells), sync_dist=True
        )
        return loss

    def mean_over_processes(self, count: Tensor) -> Tensor:
        return self.trainer.strategy.reduce(count, reduce_op="mean") if self.trainer.world_size > 1 else count

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None) -> None:
        norm = nn.utils.clip_grad_norm_(self.parameters(), self.settings.gradient_clip)
        if not norm.isfinite():  # before the optimiser steps: the parameters are still good
            raise self.diverged("gradient norm", self.batch)

    def diverged(self, what: str, batch: Batch) -> TrainingDiverged:
        cells = ", ".join(str(int(cell)) for cell in batch.cells[:5])
        return TrainingDiverged(
            f"The {what} is not finite at step {self.global_step} (batch of the cells in rows {cells}, ...); the last "
            f"good checkpoint is kept: lower trainer.learning_rate ({self.settings.learning_rate:g}) or look at "
            f"these cells."
        )

    def on_validation_epoch_start(self) -> None:
        self.evaluation.reset()

    def validation_step(self, batch: Batch, index: int) -> None:
        prediction, losses = self.losses(batch)
        self.evaluation.update(prediction, batch, self.model, losses)

    def on_validation_epoch_end(self) -> None:
        self.log_dict(scalars(self.evaluation.compute(), "validation"), sync_dist=False)

    def configure_optimizers(self):
        """AdamW with decay on matrices only; linear warm-up, then a cosine to zero over `total_steps`."""
        matrices = {id(module.weight) for module in self.model.modules() if isinstance(module, nn.Linear)}
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        groups = [
            {"params": [p for p in trained if id(p) in matrices], "weight_decay": self.settings.weight_decay},
            {"params": [p for p in trained if id(p) not in matrices], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=self.settings.learning_rate, betas=(0.9, 0.98))
        warmup = max(1, round(self.settings.warmup_fraction * self.total_steps))

        def factor(step: int) -> float:
            done = (step - warmup) / max(1, self.total_steps - warmup)
            return (step + 1) / warmup if step < warmup else 0.5 + 0.5 * math.cos(math.pi * min(done, 1.0))

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
