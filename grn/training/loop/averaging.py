"""The moving average of the weights, in a few kernel launches a step and without synchronising with the GPU."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor


class MovingAverage(WeightAveraging):
    """average <- decay * average + (1 - decay) * weights after every step; validation and checkpoints hold the average.

    The result equals that of Lightning's EMAWeightAveraging to the last bit. That callback launches four kernels per
    weight, and it synchronises with the GPU in every step to count the steps.
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
        for average, weight in zip(self._of(self._average_model.module), self._of(pl_module), strict=True):
            if average is not weight:  # the regulation layers: the copies that swapping takes would be large, too
                kept = average.data.clone()
                average.data.copy_(weight.data)
                weight.data.copy_(kept)

    @staticmethod
    def _of(module: torch.nn.Module) -> list[Tensor]:
        return [*module.parameters(), *module.buffers()]
