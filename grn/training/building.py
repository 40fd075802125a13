"""What a run is made of: the model before its training, its batches, and the trained model that is kept."""

from __future__ import annotations

import numpy as np
import torch

from grn.config.schema import Config
from grn.data.cells import Cells
from grn.data.loading.module import CellsDataModule
from grn.data.preprocessing.split import Split
from grn.errors import ConfigError, DataError
from grn.model.saved import TrainedModel
from grn.model.transformer import Model
from grn.regulation.fit import Fit


def trained_classes(config: Config, cells: Cells) -> tuple[str, ...]:
    """The cell types that the model learns to tell apart: two or more, or none."""
    return cells.classes if config.objectives.cell_type.weight and len(cells.classes) > 1 else ()


def build_model(
    config: Config, cells: Cells, split: Split, mean: torch.Tensor, sd: torch.Tensor, layer: Fit | None
) -> Model:
    """A model with the heads that the objectives need, the genes' scale and, fitted already, the regulation layer."""
    objectives = config.objectives
    regulators = None if cells.regulators is None else torch.as_tensor(cells.regulators)
    torch.manual_seed(config.trainer.seed)  # the blocks start alike with and without the layer
    model = Model(
        config.model,
        len(cells.vocabulary),
        regulators=regulators,
        classes=len(trained_classes(config, cells)),
        property=bool(objectives.property.weight),
        regulation=None if layer is None else layer.regulation,
    )
    model.mean.copy_(mean)
    model.sd.copy_(sd)
    if objectives.property.weight:
        model.property_scale.copy_(torch.tensor(property_scale(cells.property[split.train], objectives.property.key)))
    if not objectives.masked_multiplicity.weight:
        # DDP refuses parameters that no loss reaches.
        model.multiplicity.requires_grad_(False)
        model.multiplicity_bias.requires_grad_(False)
    return model


def data_module(config: Config, cells: Cells, split: Split, *, with_regulators: bool) -> CellsDataModule:
    return CellsDataModule(
        cells,
        split,
        batch_size=config.trainer.batch_size,
        masked_fraction=config.objectives.masked_multiplicity.fraction,
        seed=config.trainer.seed,
        bags=config.data.bags,
        absent_fraction=config.data.absent_fraction,
        gene_parallel=config.trainer.gene_parallel,
        num_workers=config.trainer.workers,
        with_regulators=with_regulators,
    )


def trained_model(config: Config, cells: Cells, model: Model, layer: Fit | None) -> TrainedModel:
    """What the model folder holds beside the weights: all that new cells have to be read with."""
    return TrainedModel(
        model=model,
        vocabulary=cells.vocabulary,
        classes=trained_classes(config, cells),
        values=config.data.values,
        multiplicity=config.data.multiplicity,
        target_total=cells.target_total,
        depth=cells.depth,
        measures_depth=cells.measures_depth,
        depth_share=cells.depth_share,
        property_key=config.objectives.property.key if model.property is not None else None,
        penalty=None if layer is None else layer.penalty,
    )


def refuse_nothing_to_learn(config: Config, cells: Cells) -> None:
    others = config.objectives.masked_multiplicity.weight or config.objectives.property.weight
    if not others and not trained_classes(config, cells):
        raise ConfigError(
            f"obs column {config.data.label_key!r} holds the one cell type {cells.classes[0]!r} and nothing else is "
            "trained for; set objectives.masked_multiplicity.weight above 0, or data.label_key to another column."
        )


def property_scale(values: np.ndarray, key: str | None) -> tuple[float, float]:
    known = values[~np.isnan(values)]
    if len(known) < 2 or known.std() == 0:
        raise DataError(f"obs column {key!r} has no two different numbers among the training cells; choose another.")
    return float(known.mean()), float(known.std())
