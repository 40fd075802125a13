"""Metrics of a pass over cells (losses, cell types, masked multiplicities), and metrics.csv, which holds them.

All can be summed over processes.
"""

from __future__ import annotations

import csv
import math
import warnings
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.loggers.logger import Logger
from torch import Tensor, nn
from torchmetrics import MeanMetric, Metric, SumMetric
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)

from grn.bags import Batch
from grn.errors import DataError, RunFolderError
from grn.io.atomic import replacing_file
from grn.model.objectives import Loss, hidden_genes, standardise
from grn.model.transformer import Model, Prediction

METRICS = "metrics.csv"
Rows = list[dict[str, Any]]


class MetricDict(nn.ModuleDict):
    """Metrics by name: a ModuleDict, so that they move with their module, with types for its values."""

    if TYPE_CHECKING:

        def __getitem__(self, key: str) -> Metric: ...
        def values(self) -> Iterable[Metric]: ...  # type: ignore[override]
        def items(self) -> Iterable[tuple[str, Metric]]: ...  # type: ignore[override]


class Evaluation(nn.Module):
    """Call `update` for each batch, `compute` once, `reset` before the next pass.

    alone: this process has all the cells, and the loss decides nothing: it is NaN where no cell counts for it.
    Otherwise the loss decides when training stops.
    """

    def __init__(self, objectives: list[str], weights: dict[str, float], classes: int, *, alone: bool = False):
        super().__init__()
        self.weights, self.classes, self.alone = weights, classes, alone
        # NaN stays NaN and stops the run. "disable" would drop the weights of means, too (torchmetrics 1.9).
        kept: dict[str, Any] = {"nan_strategy": math.nan, "sync_on_compute": not alone}
        total, mean = partial(SumMetric, **kept), partial(MeanMetric, **kept)
        # Sums and counts, as in training: a mean that was never updated is NaN, and so is one that diverged.
        self.sums = MetricDict({name: total() for name in objectives})
        self.counts = MetricDict({name: total() for name in objectives})
        self.cell_type = MetricDict()
        if "cell_type" in objectives:
            options: dict[str, Any] = {"num_classes": classes, "sync_on_compute": not alone}
            self.cell_type = MetricDict(
                {
                    "accuracy": MulticlassAccuracy(**options, average="micro"),
                    "f1_per_class": MulticlassF1Score(**options, average="none"),
                    "auroc": MulticlassAUROC(**options, average="none", thresholds=None),
                    "confusion": MulticlassConfusionMatrix(**options),
                }
            )
        # R2 = 1 - mean squared error / variance, over the genes of the objective and with their weights in it.
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
            weight, target = hidden_genes(batch, model), standardise(batch.multiplicity, batch, model)
            self.moments["first"].update(target, weight=weight)
            self.moments["second"].update(target.square(), weight=weight)

    def compute(self) -> dict[str, Tensor]:
        """Scalars `loss`, `<objective>_loss`, `accuracy`, `macro_f1`, `auroc`, `r2`; `f1_per_class`, `confusion`.

        Losses and metrics that no cell counts for are left out, also of the sum `loss`. Raises DataError where all are,
        unless `alone`.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torchmetrics warns of what was never updated and of classes without cells
            counts = {name: metric.compute() for name, metric in self.counts.items()}
            losses = {name: metric.compute() / counts[name] for name, metric in self.sums.items() if counts[name] > 0}
            if not losses and not self.alone:
                raise DataError(
                    "No validation cell has a label or value that the objectives use, so nothing can decide when "
                    "training stops",
                    field="data.validation_fraction",
                    advice="raise {field}, or set objectives.masked_multiplicity.weight above 0",
                )
            terms = [self.weights[name] * loss for name, loss in losses.items()]
            found = {f"{name}_loss": loss for name, loss in losses.items()}
            found["loss"] = torch.stack(terms).sum() if terms else torch.tensor(math.nan)
            if "masked_multiplicity" in losses:
                first, second = (metric.compute() for metric in self.moments.values())
                found["r2"] = 1 - losses["masked_multiplicity"] / (second - first.square())
            return found | self._cell_types()

    def _cell_types(self) -> dict[str, Tensor]:
        """macro_f1: mean over the classes with cells; auroc: over those without all cells. torchmetrics counts 0s."""
        if not len(self.cell_type):
            return {}
        auroc = self.cell_type["auroc"]
        if not auroc.update_called:  # processes gather tensors that may differ in the number of cells only
            nothing = torch.empty(0, self.classes, device=auroc.device)
            auroc.update(nothing, torch.empty(0, dtype=torch.int64, device=auroc.device))
        # Every process computes the same metrics, whether it had labelled cells or not: each compute() is a collective.
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
    """The metrics that are one number, named `<stage>/<name>`."""
    return {f"{stage}/{name}": float(value) for name, value in found.items() if value.ndim == 0}


class MetricsFile(Logger):
    """Replaces metrics.csv as a whole each time; Lightning's CSVLogger would lose the rows of a resumed run."""

    def __init__(self, path: Path, rows: Rows):
        super().__init__()
        self.path, self.rows = path, list(rows)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        plain = {name: value.item() if isinstance(value, Tensor) else value for name, value in metrics.items()}
        self.rows.append({"step": step} | plain)
        columns = sorted(set().union(*self.rows))
        with replacing_file(self.path) as beside, beside.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows)

    def log_hyperparams(self, *_: Any) -> None:
        """config.yaml has every field."""

    @property
    def name(self) -> str:
        return "metrics"

    @property
    def version(self) -> str:
        return ""


def rows_before(step: int, path: Path) -> Rows:
    """The rows of a metrics.csv for steps before `step`, without those of the test cells. Raises RunFolderError."""
    if not path.exists():
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            list(reader.fieldnames or ()).index("step")  # ValueError: a file without rows would lose what it had
            rows = [{name: value for name, value in row.items() if value} for row in reader]
        return [row for row in rows if int(row["step"]) < step and not any(name.startswith("test/") for name in row)]
    except (ValueError, KeyError, AttributeError, csv.Error) as error:
        raise RunFolderError(f"{path} is damaged", advice="move it away to resume without its rows") from error
