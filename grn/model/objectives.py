"""What a model is trained for. Each objective is a sum of losses and the number of items in the sum.

The two are kept apart so that several processes can divide by the number of items of all of them. The gradient is then
that of one process with the whole batch, however unevenly labels or masks are distributed over processes.
Letters: C cells, N genes, V genes of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from grn.bags import Batch
from grn.config.schema import ObjectivesConfig
from grn.model.transformer import Model, Prediction

LABEL_SMOOTHING = 0.1  # probability spread over the other classes: labels of single cells are never certain
# Objectives that are validated and tested on cells with nothing hidden, which is what `grn predict` reads.
OF_WHOLE_CELLS = frozenset({"cell_type", "property"})


@dataclass(frozen=True)
class Loss:
    """sum: of the losses of some items.   count: number of items, or the sum of their weights."""

    sum: Tensor
    count: Tensor


def cell_type(prediction: Prediction, batch: Batch, model: Model, label_smoothing: float) -> Loss:
    """Cross entropy over the labelled cells."""
    assert prediction.logits is not None, "active_objectives asks for cell types only where the model has them"
    known = batch.labels >= 0
    losses = F.cross_entropy(
        prediction.logits.float(), batch.labels.clamp(min=0), label_smoothing=label_smoothing, reduction="none"
    )
    return Loss((losses * known).sum(), known.sum())


def masked_multiplicity(prediction: Prediction, batch: Batch, model: Model) -> Loss:
    """Squared error of the standardised multiplicity, over every gene that is hidden from the model.

    These are the masked genes and, as genes read regulators only, every gene that is not a regulator.
    """
    error = standardise(prediction.multiplicity - batch.multiplicity, batch, model, centre=False)
    weight = hidden_genes(batch, model)
    return Loss((error.square() * weight).sum(), weight.sum())


def obs_property(prediction: Prediction, batch: Batch, model: Model) -> Loss:
    """Squared error of the obs property in units of its sd, over the cells that have it."""
    assert prediction.property is not None, "active_objectives asks for the property only where the model has it"
    known = ~batch.property.isnan()
    error = (prediction.property - batch.property.nan_to_num()) / model.property_scale[1]
    return Loss((error.square() * known).sum(), known.sum())


def hidden_genes(batch: Batch, model: Model) -> Tensor:
    """Weight of each gene that the model cannot read where it predicts it, else 0; shaped like batch.multiplicity."""
    hidden = batch.masked | ~model.is_regulator[batch.bags.genes]
    return hidden.to(batch.multiplicity.dtype) if batch.importance is None else hidden * batch.importance


def standardise(values: Tensor, batch: Batch, model: Model, *, centre: bool = True) -> Tensor:
    """Multiplicities in sds of each gene over the training cells; centre: minus its mean."""
    genes = batch.bags.genes
    return (values - model.mean[genes] if centre else values) / model.sd[genes]


def active_objectives(config: ObjectivesConfig, model: Model) -> dict[str, tuple[float, Callable[..., Loss]]]:
    """Name -> (weight, loss) of every objective that has a weight in the configuration and a head in the model."""
    active: dict[str, tuple[float, Callable[..., Loss]]] = {}
    if config.cell_type.weight and model.classes:
        loss = partial(cell_type, label_smoothing=LABEL_SMOOTHING)
        active["cell_type"] = config.cell_type.weight, loss
    if config.masked_multiplicity.weight:
        active["masked_multiplicity"] = config.masked_multiplicity.weight, masked_multiplicity
    if config.property.weight and model.property is not None:
        active["property"] = config.property.weight, obs_property
    return active


def mean_losses(losses: dict[str, Loss], all_reduce_mean=lambda count: count) -> dict[str, Tensor]:
    """The mean of each objective. all_reduce_mean: averages a count over the processes; the result may be below one."""
    counts = {name: all_reduce_mean(loss.count.to(loss.sum.dtype)) for name, loss in losses.items()}
    return {name: loss.sum / torch.where(counts[name] > 0, counts[name], 1) for name, loss in losses.items()}


def total_loss(means: dict[str, Tensor], weights: dict[str, float]) -> Tensor:
    """Weighted sum of the objectives' means."""
    return torch.stack([weights[name] * mean for name, mean in means.items()]).sum()
