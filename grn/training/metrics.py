"""Metrics of a pass over cells: losses, cell types, masked multiplicities. All of them add up over processes."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torchmetrics import MeanMetric, R2Score
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)

from grn.bags import Batch
from grn.model import Model, Prediction
from grn.objectives import Loss, standardise, unread


class Evaluation(nn.Module):
    """Call `update` for each batch, `compute` once, `reset` before the next pass."""

    def __init__(self, objectives: list[str], weights: dict[str, float], classes: int):
        super().__init__()
        self.weights = weights
        self.losses = nn.ModuleDict({name: MeanMetric(nan_strategy="ignore") for name in objectives})
        self.cell_type = nn.ModuleDict()
        if "cell_type" in objectives:
            kind = {"num_classes": classes}
            self.cell_type = nn.ModuleDict(
                {
                    "accuracy": MulticlassAccuracy(**kind, average="micro"),
                    "f1_per_class": MulticlassF1Score(**kind, average="none"),
                    "auroc": MulticlassAUROC(**kind, thresholds=None),
                    "confusion": MulticlassConfusionMatrix(**kind),
                }
            )
        self.r2 = R2Score() if "masked_multiplicity" in objectives else None

    def update(self, prediction: Prediction, batch: Batch, model: Model, losses: dict[str, Loss]) -> None:
        for name, loss in losses.items():
            if loss.count > 0:
                self.losses[name].update(loss.sum / loss.count, weight=loss.count)
        known = batch.labels >= 0
        if known.any():
            probabilities = prediction.logits[known].float().softmax(-1) if len(self.cell_type) else None
            for metric in self.cell_type.values():
                metric.update(probabilities, batch.labels[known])
        if self.r2 is not None:
            hidden = unread(batch, model)
            self.r2.update(
                standardise(prediction.multiplicity.float(), batch, model)[hidden],
                standardise(batch.multiplicity, batch, model)[hidden],
            )

    def compute(self) -> dict[str, Tensor]:
        """Scalars `loss`, `<objective>_loss`, `accuracy`, `macro_f1`, `auroc`, `r2`; `f1_per_class`, `confusion`.

        macro_f1 is the mean over the classes that the cells have (a class without a cell has no F1).
        """
        with warnings.catch_warnings():
            # "No positive samples": a small validation set may lack a class; AUROC then averages over the others.
            warnings.simplefilter("ignore")
            found = {f"{name}_loss": metric.compute() for name, metric in self.losses.items()}
            found["loss"] = torch.stack([self.weights[name] * found[f"{name}_loss"] for name in self.losses]).sum()
            found |= {name: metric.compute() for name, metric in self.cell_type.items() if metric.update_called}
            if self.r2 is not None and self.r2.update_called:
                found["r2"] = self.r2.compute()
        if "confusion" in found:
            present = found["confusion"].sum(1) > 0
            found["macro_f1"] = found["f1_per_class"][present].mean()
        return found

    def reset(self) -> None:
        for metric in (*self.losses.values(), *self.cell_type.values(), self.r2):
            if metric is not None:
                metric.reset()


def scalars(found: dict[str, Tensor], stage: str) -> dict[str, float]:
    return {f"{stage}/{name}": float(value) for name, value in found.items() if value.ndim == 0}
