"""Metrics of the test cells (losses, cell types, genes), and metrics.csv, which holds all metrics
of a run.
"""

from __future__ import annotations

import csv
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.loggers.logger import Logger
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import Metric
from torchmetrics.functional.classification import (
    multiclass_accuracy,
    multiclass_auroc,
    multiclass_confusion_matrix,
    multiclass_f1_score,
)

from grn.bags import Batch
from grn.model.objectives import Judged
from grn.model.regulation import Model, Prediction
from grn.runtime.atomic import replacing_file
from grn.runtime.errors import RunFolderError

METRICS = "metrics.csv"
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Scored:
    """The outcomes of a batch of test cells that metrics need, on the host: little, as processes
    send it to each other.

    labels [c], probabilities [c, K]: of the cells with a label; None where no cell types are
        predicted.
    sums [2]: by name, the sum of some numbers and how many these are.
    """

    labels: Tensor | None
    probabilities: Tensor | None
    sums: dict[str, Tensor]

    @classmethod
    def of(cls, prediction: Prediction, batch: Batch, model: Model) -> Scored:
        labels, probabilities, numbers = None, None, {}
        if prediction.logits is not None:
            known = batch.labels >= 0
            logits, labels = prediction.logits[known].float(), batch.labels[known]
            numbers["cell_type"] = F.cross_entropy(logits, labels, reduction="none")
            labels, probabilities = labels.cpu(), logits.softmax(-1).cpu()
        if model.genes_train:
            # Genes in sds over all cells, so that 1 is the error of their means.
            mean, sd = model.identity.mean, model.identity.sd
            true = (batch.bags.multiplicity - mean) / sd
            numbers["masked_multiplicity"] = ((prediction.multiplicity - mean) / sd - true).square()
            numbers |= {"first": true, "second": true.square()}
        sums = {
            name: torch.stack([each.sum(), each.new_tensor(each.numel())])
            for name, each in numbers.items()
        }
        return cls(labels, probabilities, {name: each.cpu() for name, each in sums.items()})


def metrics_of(batches: Sequence[Scored]) -> dict[str, Tensor]:
    """Scalars `<objective>_loss`, `accuracy`, `macro_f1`, `auroc`, `r2`; `f1_per_class`,
    `confusion`; without those that no cell counts for.
    """
    names = batches[0].sums if batches else ()
    sums = {name: sum((each.sums[name] for each in batches), torch.zeros(2)) for name in names}
    means = {name: total / count for name, (total, count) in sums.items() if count}
    found = {
        f"{name}_loss": mean for name, mean in means.items() if name not in ("first", "second")
    }
    if "masked_multiplicity" in means:
        found["r2"] = 1 - means["masked_multiplicity"] / (means["second"] - means["first"].square())
    if "cell_type" in means:
        given = ([getattr(each, name) for each in batches] for name in ("probabilities", "labels"))
        found |= _of_cell_types(*(torch.cat(each) for each in given))
    return found


def _of_cell_types(probabilities: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """macro_f1: mean over the classes with cells; auroc: over those without all cells. torchmetrics
    counts 0s.
    """
    given, classes = (probabilities, labels), probabilities.shape[1]
    confusion = multiclass_confusion_matrix(*given, classes)
    f1_per_class = multiclass_f1_score(*given, classes, average="none")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes without cells
        one_against_rest = multiclass_auroc(*given, classes, average="none")
    cells = confusion.sum(1)
    present = cells > 0
    one_against_rest = one_against_rest[present & (cells < cells.sum())]
    found = {
        "accuracy": multiclass_accuracy(*given, classes, average="micro"),
        "f1_per_class": f1_per_class,
        "confusion": confusion,
        "macro_f1": f1_per_class[present].mean(),
    }
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
    """Return the metrics that are one number, named `<stage>/<name>`."""
    return {f"{stage}/{name}": float(value) for name, value in found.items() if value.ndim == 0}


class MetricsFile(Logger):
    """Replaces metrics.csv as a whole each time; Lightning's CSVLogger would lose the rows of a
    resumed run.
    """

    def __init__(self, path: Path, rows: Rows):
        super().__init__()
        self.path, self.rows = path, list(rows)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        plain = {
            name: value.item() if isinstance(value, Tensor) else value
            for name, value in metrics.items()
        }
        self.rows.append({"step": step} | plain)
        columns = sorted(set().union(*self.rows))
        with (
            replacing_file(self.path) as beside,
            beside.open("w", encoding="utf-8", newline="") as file,
        ):
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
    """Return the rows of a metrics.csv for steps before `step`, without those of the test cells.
    Raises RunFolderError.
    """
    if not path.exists():
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            # ValueError: a file without rows would lose what it had
            list(reader.fieldnames or ()).index("step")
            rows = [{name: value for name, value in row.items() if value} for row in reader]
        return [
            row
            for row in rows
            if int(row["step"]) < step and not any(name.startswith("test/") for name in row)
        ]
    except (ValueError, KeyError, AttributeError, csv.Error) as error:
        raise RunFolderError(
            f"{path} is damaged", advice="move it away to resume without its rows"
        ) from error
