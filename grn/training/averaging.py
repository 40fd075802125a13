"""The moving average of the weights, with which a model is validated and kept."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from torch import Tensor


class MovingAverage(L.Callback):
    """average <- decay * average + (1 - decay) * weights after every step.

    Validation, checkpoints and the end of training have the average in the place of the weights; a
    checkpoint has the weights, too. Buffers are not averaged.

    Equals Lightning's EMAWeightAveraging up to rounding. That copies all buffers, too, waits for
    the GPU in every step, and cannot be told of a step that a CUDA graph has taken.

    average: by the names of the parameters.
    step: the latest that is in the average.
    """

    def __init__(self, decay: float):
        self.decay = decay
        self.average: dict[str, Tensor] = {}
        self.step = 0

    def on_fit_start(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        """Begin with the average of a checkpoint, if one was loaded, else with the weights."""
        self.average = {
            name: self.average.get(name, weight).detach().to(weight.device, copy=True)
            for name, weight in task.named_parameters()
        }

    def on_train_batch_end(self, trainer: L.Trainer, task: L.LightningModule, *_: Any) -> None:
        if trainer.global_step > self.step:
            self.follow(task, 1 - self.decay if self.step else 1.0)
            self.followed(trainer.global_step)

    @torch.no_grad()
    def follow(self, task: L.LightningModule, share: float | None = None) -> None:
        """Move the average by one step. share: of the weights in it; None: the usual one."""
        # One pass, without a copy of all weights.
        torch._foreach_lerp_(
            list(self.average.values()),
            list(task.parameters()),
            1 - self.decay if share is None else share,
        )

    def followed(self, step: int) -> None:
        """Tell that the average holds this step already: a recorded step moves it, too."""
        self.step = step

    @torch.no_grad()
    def exchange(self, task: L.LightningModule) -> None:
        """Exchange the weights of the task and their average, in place: a graph knows both."""
        for average, weight in zip(self.average.values(), task.parameters(), strict=True):
            before = weight.clone()
            weight.copy_(average)
            average.copy_(before)

    def on_validation_epoch_start(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        self.exchange(task)

    def on_validation_epoch_end(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        self.exchange(task)

    @torch.no_grad()
    def on_train_end(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        torch._foreach_copy_(list(task.parameters()), list(self.average.values()))

    def on_save_checkpoint(
        self, trainer: L.Trainer, task: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        checkpoint["current_model_state"] = checkpoint["state_dict"]
        checkpoint["state_dict"] = checkpoint["state_dict"] | self.average

    def on_load_checkpoint(
        self, trainer: L.Trainer, task: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self.average = checkpoint["state_dict"]
        task.load_state_dict(checkpoint["current_model_state"])

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]
