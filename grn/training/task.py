"""The model as a LightningModule: one step, one optimiser, one schedule, one moving average."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor, distributed, nn
from torch.optim import Optimizer

from grn.bags import Batch
from grn.cells.loading.batches import DROPOUT, cell_states
from grn.cells.loading.order import ParallelRank
from grn.config.schema import ObjectivesConfig, TrainerConfig
from grn.errors import TrainingDiverged
from grn.model.objectives import OF_WHOLE_CELLS, Loss, active_objectives, mean_losses, total_loss
from grn.model.schedule import warmup_cosine
from grn.model.transformer import Model, Prediction
from grn.training.finite import FiniteCheck, Step
from grn.training.metrics import Evaluation, scalars

WARMUP = 0.05  # share of the steps over which the learning rate rises
GRADIENT_CLIP = 1.0  # largest norm of the gradient; larger ones are scaled down to it


class Task(L.LightningModule):
    """Trains a Model on its objectives; logs `train/*` and `validation/*`."""

    def __init__(self, model: Model, objectives: ObjectivesConfig, trainer: TrainerConfig, total_steps: int):
        super().__init__()
        self.model, self.settings, self.total_steps = model, trainer, total_steps
        self.objectives = active_objectives(objectives, model)
        self.weights = {name: weight for name, (weight, _) in self.objectives.items()}
        self.classes = model.classes
        # A cell reader has been trained, on the validation cells too: its cell types are tested only.
        self.trained = [name for name in self.objectives if name != "cell_type" or model.reader is None]
        self.evaluation = Evaluation(self.trained, self.weights, self.classes)
        self.finite_check = FiniteCheck()

    def setup(self, stage: str) -> None:
        """Sets the group of gene parallelism: not earlier, as the moving average copies the model before this.

        Losses are sums and counts over all processes; each process of a group counts a cell's losses as often as it
        sums them. DDP's mean of the gradients is then the gradient of one process that has every gene.
        """
        parts = self.settings.gene_parallel
        if parts > 1:
            rank = ParallelRank.of(self.global_rank, self.trainer.world_size, parts)
            # All processes make all groups, in the same order. A separate group even where it contains all processes:
            # DDP's collectives run at the same time as those of attention's backward, and two kinds in one queue would
            # have to be started in the same order everywhere.
            groups = [distributed.new_group(ranks) for ranks in rank.ranks()]
            self.model.group = groups[rank.replica]

    def teardown(self, stage: str) -> None:
        """After training, one process computes metrics and networks, from bags with all genes."""
        self.model.group = None

    def losses(self, batch: Batch, names: Collection[str] | None = None) -> tuple[Prediction, dict[str, Loss]]:
        """The prediction for a batch as it is masked, and its losses. names: of the objectives (None: all)."""
        prediction = self.model(batch.bags)
        wanted = {name: loss for name, (_, loss) in self.objectives.items() if names is None or name in names}
        return prediction, {name: loss(prediction, batch, self.model) for name, loss in wanted.items()}

    def evaluated(self, batch: Batch, names: Collection[str] | None = None) -> tuple[Prediction, dict[str, Loss]]:
        """The same, OF_WHOLE_CELLS with nothing hidden, other objectives with the masks: up to two passes."""
        wanted = set(self.objectives if names is None else names)
        whole = wanted & OF_WHOLE_CELLS
        masked = wanted - whole
        if not whole:
            return self.losses(batch, masked)
        prediction, losses = self.losses(batch.unmasked(), whole)
        if masked:
            losses |= self.losses(batch, masked)[1]
        return prediction, losses

    def on_train_batch_start(self, batch: Batch, index: int) -> None:
        """Seeds dropout by step and process: a resumed run draws what it would have drawn without the interruption."""
        draws = cell_states(self.settings.seed, DROPOUT, self.global_rank, np.array([self.global_step]))
        torch.manual_seed(int(draws[0]))

    def training_step(self, batch: Batch, index: int) -> Tensor:
        read = batch.bags.multiplicity
        if read.device.type == "cpu" and not read.isfinite().all():
            # The kernels refuse such values on a CPU, in a sentence that names no cells.
            self.refuse(Step(self.global_step, batch.cells, torch.tensor([False, True])))
        _, losses = self.losses(batch, self.trained)
        means = mean_losses(losses, self.mean_over_processes)
        loss = total_loss(means, self.weights)
        self.batch, self.loss = batch, loss.detach()
        logged = {"train/loss": loss} | {f"train/{name}_loss": mean for name, mean in means.items()}
        # Averaged over processes these are the means of the whole batch.
        self.log_dict(
            {name: value.detach() for name, value in logged.items()}, batch_size=len(batch.cells), sync_dist=True
        )
        return loss

    def mean_over_processes(self, count: Tensor) -> Tensor:
        return self.trainer.strategy.reduce(count, reduce_op="mean") if self.trainer.world_size > 1 else count

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None) -> None:
        norm = nn.utils.clip_grad_norm_(self.parameters(), GRADIENT_CLIP)
        # Before the optimiser steps: the parameters are still good.
        self.refuse(self.finite_check.next(self.global_step, self.batch.cells, self.loss, norm, optimizer))

    def refuse(self, step: Step | None) -> None:
        """Raises TrainingDiverged where the loss or the gradient of this step is not finite."""
        problem = None if step is None else step.problem()
        if step is None or problem is None:
            return
        cells = ", ".join(str(int(cell)) for cell in step.cells[:5])
        raise TrainingDiverged(
            f"The {problem} is not finite at step {step.number} (batch of the cells in rows {cells}, ...); "
            "checkpoints of earlier steps are kept",
            field="trainer.learning_rate",
            advice=f"lower {{field}} ({self.settings.learning_rate:g}), or look for extreme values in these cells",
        )

    def on_train_end(self) -> None:
        self.refuse(self.finite_check.last())

    def on_validation_epoch_start(self) -> None:
        self.refuse(self.finite_check.last())
        self.evaluation.reset()

    def validation_step(self, batch: Batch, index: int) -> None:
        prediction, losses = self.evaluated(batch, self.trained)
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
        # Fused: one launch for all parameters. Not in 16-mixed, where a fused optimiser would unscale gradients itself.
        fused = all(p.is_cuda for p in trained) and self.settings.precision != "16-mixed"
        optimizer = torch.optim.AdamW(groups, lr=self.settings.learning_rate, betas=(0.9, 0.98), fused=fused or None)
        optimizer.register_load_state_dict_pre_hook(as_fused_here)
        warmup = max(1, round(WARMUP * self.total_steps))

        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: warmup_cosine(step, self.total_steps, warmup)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def as_fused_here(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """The state of a checkpoint with this optimiser's own choice of `fused`: another machine may have written it."""
    fused = optimizer.defaults["fused"]
    return state | {"param_groups": [group | {"fused": fused} for group in state["param_groups"]]}


class MovingAverage(WeightAveraging):
    """average <- decay * average + (1 - decay) * weights after every step; validation and checkpoints hold the average.

    Equals Lightning's EMAWeightAveraging, which synchronises with the GPU in every step, to the last bit.
    """

    def __init__(self, decay: float):
        super().__init__(use_buffers=False)
        self.decay = decay

    @torch.no_grad()
    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        if trainer.global_step <= self._latest_update_step or self._average_model is None:
            return
        # What is not trained (the regulation layers, which may be large) is its own average.
        pairs = zip(self._average_model.module.parameters(), pl_module.parameters(), strict=True)
        trained = [pair for pair in pairs if pair[1].requires_grad]
        averages: list[Tensor] = [average for average, _ in trained]
        weights: list[Tensor] = [weight for _, weight in trained]
        if self._latest_update_step == 0:
            torch._foreach_copy_(averages, weights)
        else:
            torch._foreach_mul_(averages, self.decay)
            torch._foreach_add_(averages, list(torch._foreach_mul(weights, 1 - self.decay)))
        self._average_model.n_averaged += 1
        self._latest_update_step = trainer.global_step

    @torch.no_grad()
    def _swap_models(self, pl_module: L.LightningModule) -> None:
        assert self._average_model is not None
        ours, theirs = ([*each.parameters(), *each.buffers()] for each in (self._average_model.module, pl_module))
        for average, weight in zip(ours, theirs, strict=True):
            if average is not weight:  # the regulation layers: the copies that swapping takes would be large, too
                kept = average.data.clone()
                average.data.copy_(weight.data)
                weight.data.copy_(kept)
