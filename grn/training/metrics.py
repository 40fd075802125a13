"""Metrics of a pass over cells: losses, cell types, masked multiplicities. All of them add up over processes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torchmetrics import MeanMetric, Metric
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)

from grn.bags import Batch
from grn.model import Model, Prediction
from grn.objectives import Loss, standardise, unread


class MetricDict(nn.ModuleDict):
    """Metrics by name: a ModuleDict (they move with their module) that says what it holds."""

    if TYPE_CHECKING:

        def __getitem__(self, key: str) -> Metric: ...
        def values(self) -> Iterable[Metric]: ...  # type: ignore[override]
        def items(self) -> Iterable[tuple[str, Metric]]: ...  # type: ignore[override]


class Evaluation(nn.Module):
    """Call `update` for each batch, `compute` once, `reset` before the next pass.

    alone: this process has all the cells, and the others (if any) take no part.
    """

    def __init__(self, objectives: list[str], weights: dict[str, float], classes: int, *, alone: bool = False):
        super().__init__()
        self.weights = weights
        # NaN is replaced by NaN: a validation loss that is not finite must stop the run. ("disable" would say the same,
        # but in torchmetrics 1.9 it also drops the weights.)
        mean = partial(MeanMetric, nan_strategy=math.nan, sync_on_compute=not alone)
        self.losses = MetricDict({name: mean() for name in objectives})
        self.cell_type = MetricDict()
        if "cell_type" in objectives:
            kind: dict[str, Any] = {"num_classes": classes, "sync_on_compute": not alone}
            self.cell_type = MetricDict(
                {
                    "accuracy": MulticlassAccuracy(**kind, average="micro"),
                    "f1_per_class": MulticlassF1Score(**kind, average="none"),
                    "auroc": MulticlassAUROC(**kind, thresholds=None),
                    "confusion": MulticlassConfusionMatrix(**kind),
                }
            )
        # R2 = 1 - mean squared error / variance, over the genes that the objective counts and weighted as it does.
        self.moments = MetricDict()
        if "masked_multiplicity" in objectives:
            self.moments = MetricDict({"first": mean(), "second": mean()})

    def update(self, prediction: Prediction, batch: Batch, model: Model, losses: dict[str, Loss]) -> None:
        for name, loss in losses.items():
            if loss.count > 0:
                self.losses[name].update(loss.sum / loss.count, weight=loss.count)
        known = batch.labels >= 0
        if prediction.logits is not None and known.any():
            probabilities = prediction.logits[known].float().softmax(-1)
            for metric in self.cell_type.values():
                metric.update(probabilities, batch.labels[known])
        if len(self.moments):
            hidden, target = unread(batch, model), standardise(batch.multiplicity, batch, model)
            self.moments["first"].update(target, weight=hidden)
            self.moments["second"].update(target.square(), weight=hidden)

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
            if len(self.moments):
                first, second = (metric.compute() for metric in self.moments.values())
                found["r2"] = 1 - found["masked_multiplicity_loss"] / (second - first.square())
        if "confusion" in found:
            present = found["confusion"].sum(1) > 0
            found["macro_f1"] = found["f1_per_class"][present].mean()
        return found

    def reset(self) -> None:
        for metric in (*self.losses.values(), *self.cell_type.values(), *self.moments.values()):
            metric.reset()


def scalars(found: dict[str, Tensor], stage: str) -> dict[str, float]:
    return {f"{stage}/{name}": float(value) for name, value in found.items() if value.ndim == 0}
