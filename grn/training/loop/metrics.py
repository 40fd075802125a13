"""Metrics of a pass over cells: losses, cell types, masked multiplicities. All of them add up over processes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torchmetrics import MeanMetric, Metric, SumMetric
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)

from grn.bags import Batch
from grn.errors import DataError
from grn.model.objectives import Loss, standardise, unread
from grn.model.transformer import Model, Prediction


class MetricDict(nn.ModuleDict):
    """Metrics by name: a ModuleDict (they move with their module) that says what it holds."""

    if TYPE_CHECKING:

        def __getitem__(self, key: str) -> Metric: ...
        def values(self) -> Iterable[Metric]: ...  # type: ignore[override]
        def items(self) -> Iterable[tuple[str, Metric]]: ...  # type: ignore[override]


class Evaluation(nn.Module):
    """Call `update` for each batch, `compute` once, `reset` before the next pass.

    alone: this process has all the cells, and the others (if any) take no part; nothing hangs on the loss, which may
    then be of no cell. Otherwise it says when to stop.
    """

    def __init__(self, objectives: list[str], weights: dict[str, float], classes: int, *, alone: bool = False):
        super().__init__()
        self.weights, self.classes, self.alone = weights, classes, alone
        # NaN is replaced by NaN: a validation loss that is not finite must stop the run. ("disable" would say the same,
        # but in torchmetrics 1.9 it also drops the weights of means.)
        kept: dict[str, Any] = {"nan_strategy": math.nan, "sync_on_compute": not alone}
        total, mean = partial(SumMetric, **kept), partial(MeanMetric, **kept)
        # Apart, as in training: a mean that was never updated is NaN, as is one that diverged.
        self.sums = MetricDict({name: total() for name in objectives})
        self.counts = MetricDict({name: total() for name in objectives})
        self.cell_type = MetricDict()
        if "cell_type" in objectives:
            kind: dict[str, Any] = {"num_classes": classes, "sync_on_compute": not alone}
            self.cell_type = MetricDict(
                {
                    "accuracy": MulticlassAccuracy(**kind, average="micro"),
                    "f1_per_class": MulticlassF1Score(**kind, average="none"),
                    "auroc": MulticlassAUROC(**kind, average="none", thresholds=None),
                    "confusion": MulticlassConfusionMatrix(**kind),
                }
            )
        # R2 = 1 - mean squared error / variance, over the genes that the objective counts and weighted as it does.
        self.moments = MetricDict()
        if "masked_multiplicity" in objectives:
            self.moments = MetricDict({"first": mean(), "second": mean()})

    def update(self, prediction: Prediction, batch: Batch, model: Model, losses: dict[str, Loss]) -> None:
        for name, loss in losses.items():
            self.sums[name].update(loss.sum)
            self.counts[name].update(loss.count)
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

        What no cell has a value for is left out, of the sum `loss` too; of nothing at all that is NaN. Raises DataError
        where it should have said when to stop.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torchmetrics warns of what was never updated and of classes without cells
            losses = self._losses()
            if not losses and not self.alone:
                raise DataError(
                    "No validation cell has a label or value that the objectives read, so nothing says when to stop; "
                    "raise data.validation_fraction or set objectives.masked_multiplicity.weight above 0."
                )
            terms = [self.weights[name] * loss for name, loss in losses.items()]
            found = {f"{name}_loss": loss for name, loss in losses.items()}
            found["loss"] = torch.stack(terms).sum() if terms else torch.tensor(math.nan)
            if "masked_multiplicity" in losses:
                first, second = (metric.compute() for metric in self.moments.values())
                found["r2"] = 1 - losses["masked_multiplicity"] / (second - first.square())
            return found | self._cell_types()

    def _losses(self) -> dict[str, Tensor]:
        """Mean loss of each objective that some cell counts for."""
        counts = {name: metric.compute() for name, metric in self.counts.items()}
        return {name: metric.compute() / counts[name] for name, metric in self.sums.items() if counts[name] > 0}

    def _cell_types(self) -> dict[str, Tensor]:
        """macro_f1 is the mean over the classes with cells; auroc over those that leave some cells to others, too.

        torchmetrics gives every other class a 0 and counts it.
        """
        if not len(self.cell_type):
            return {}
        auroc = self.cell_type["auroc"]
        if not auroc.update_called:  # what processes gather must have the same shape, but for the number of cells
            nothing = torch.empty(0, self.classes, device=auroc.device)
            auroc.update(nothing, torch.empty(0, dtype=torch.int64, device=auroc.device))
        # Every process asks for the same, whether it had labelled cells or not: each answer is a collective.
        cells = self.cell_type["confusion"].compute().sum(1)
        if not cells.any():
            return {}
        found = {name: metric.compute() for name, metric in self.cell_type.items()}
        present = cells > 0
        found["macro_f1"] = found["f1_per_class"][present].mean()
        one_against_rest = found.pop("auroc")[present & (cells < cells.sum())]
        return found | ({"auroc": one_against_rest.mean()} if len(one_against_rest) else {})

    def reset(self) -> None:
        for metrics in (self.sums, self.counts, self.cell_type, self.moments):
            for metric in metrics.values():
                metric.reset()


def scalars(found: dict[str, Tensor], stage: str) -> dict[str, float]:
    return {f"{stage}/{name}": float(value) for name, value in found.items() if value.ndim == 0}
