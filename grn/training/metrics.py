"""Metrics of the test cells (losses, cell types, genes), and metrics.csv, which holds all metrics of a run."""

from __future__ import annotations

import csv
import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.loggers.logger import Logger
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MeanMetric, Metric
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)

from grn.bags import Batch
from grn.errors import RunFolderError
from grn.io.atomic import replacing_file
from grn.model.objectives import Judged
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
    """Metrics of test cells in one process: call `update` for each batch and `compute` once."""

    def __init__(self, classes: int, *, genes: bool):
        super().__init__()
        self.has_genes = genes
        kept: dict[str, Any] = {"nan_strategy": math.nan, "sync_on_compute": False}
        names = ["cell_type"] if classes else []
        names += ["masked_multiplicity", "first", "second"] if genes else []
        self.means = MetricDict({name: MeanMetric(**kept) for name in names})
        self.cell_type = MetricDict()
        if classes:
            options: dict[str, Any] = {"num_classes": classes, "sync_on_compute": False}
            self.cell_type = MetricDict(
                {
                    "accuracy": MulticlassAccuracy(**options, average="micro"),
                    "f1_per_class": MulticlassF1Score(**options, average="none"),
                    "auroc": MulticlassAUROC(**options, average="none", thresholds=None),
                    "confusion": MulticlassConfusionMatrix(**options),
                }
            )

    def update(self, prediction: Prediction, batch: Batch, model: Model) -> None:
        known = batch.labels >= 0
        if prediction.logits is not None and known.any():
            logits, labels = prediction.logits[known].float(), batch.labels[known]
            self.means["cell_type"].update(F.cross_entropy(logits, labels, reduction="none"))
            for metric in self.cell_type.values():
                metric.update(logits.softmax(-1), labels)
        if self.has_genes:
            # Genes in sds over all cells, so that 1 is the error of their means.
            mean, sd = model.identity.mean, model.identity.sd
            true = (batch.bags.multiplicity - mean) / sd
            self.means["masked_multiplicity"].update(((prediction.multiplicity - mean) / sd - true).square())
            self.means["first"].update(true)
            self.means["second"].update(true.square())

    def compute(self) -> dict[str, Tensor]:
        """Scalars `<objective>_loss`, `accuracy`, `macro_f1`, `auroc`, `r2`; `f1_per_class`, `confusion`; without those
        that no cell counts for."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torchmetrics warns of what was never updated and of classes without cells
            means = {name: metric.compute() for name, metric in self.means.items() if metric.update_called}
            found = {f"{name}_loss": mean for name, mean in means.items() if name not in ("first", "second")}
            if "masked_multiplicity" in means:
                found["r2"] = 1 - means["masked_multiplicity"] / (means["second"] - means["first"].square())
            return found | self._cell_types()

    def _cell_types(self) -> dict[str, Tensor]:
        """macro_f1: mean over the classes with cells; auroc: over those without all cells. torchmetrics counts 0s."""
        if not len(self.cell_type) or not self.cell_type["confusion"].update_called:
            return {}
        cells = self.cell_type["confusion"].compute().sum(1)
        found = {name: metric.compute() for name, metric in self.cell_type.items()}
        present = cells > 0
        found["macro_f1"] = found["f1_per_class"][present].mean()
        one_against_rest = found.pop("auroc")[present & (cells < cells.sum())]
        return found | ({"auroc": one_against_rest.mean()} if len(one_against_rest) else {})


class SumOfJudged(Metric):
    """The sum of `Judged` cells over batches and processes: `Judged(*metric.compute())`."""

    sums: Tensor

    def __init__(self, members: int):
        super().__init__()
        self.add_state("sums", torch.zeros(len(fields(Judged)), members), dist_reduce_fx="sum")

    def update(self, judged: Judged) -> None:
        self.sums = self.sums + torch.stack(list(vars(judged).values()))

    def compute(self) -> Tensor:
        return self.sums


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
