"""Builds what a run needs: the model before its training, its batches, and the trained model that is saved."""

from __future__ import annotations

import numpy as np
import torch

from grn.cells.cells import Cells
from grn.cells.loading.module import CellsDataModule
from grn.cells.loading.order import EpochOrder
from grn.cells.preprocessing.moments import varying
from grn.cells.preprocessing.split import Split
from grn.config.schema import Config
from grn.errors import ConfigError, DataError
from grn.model.cell_reader import CellReader
from grn.model.saved import TrainedModel
from grn.model.transformer import Model
from grn.regulation.fit import FittedRegulation
from grn.training.machine import processes


def trained_classes(config: Config, cells: Cells) -> tuple[str, ...]:
    """The cell types that the model is trained to predict: two or more, or none."""
    return cells.classes if config.objectives.cell_type.weight and len(cells.classes) > 1 else ()


def build_model(
    config: Config,
    cells: Cells,
    split: Split,
    mean: torch.Tensor,
    sd: torch.Tensor,
    fitted: FittedRegulation | None,
    reader: CellReader | None = None,
) -> Model:
    """A model with the heads that the objectives need, the genes' mean and sd [N], and the fitted regulation."""
    objectives = config.objectives
    regulators = None if cells.regulators is None else torch.as_tensor(cells.regulators)
    torch.manual_seed(config.trainer.seed)  # the blocks have the same initial values with and without the layer
    model = Model(
        config.model,
        len(cells.vocabulary),
        regulators=regulators,
        classes=0 if reader is not None else len(trained_classes(config, cells)),
        property=bool(objectives.property.weight),
        regulation=None if fitted is None else fitted.regulation,
        reader=reader,
    )
    model.mean.copy_(mean)
    model.sd.copy_(sd)
    if objectives.property.weight:
        model.property_scale.copy_(torch.tensor(property_scale(cells.property[split.train], objectives.property.key)))
    if not objectives.masked_multiplicity.weight:
        # DDP refuses parameters without a gradient.
        model.multiplicity.requires_grad_(False)
        model.multiplicity_bias.requires_grad_(False)
    return model


def has_other_objectives(config: Config) -> bool:
    """Whether anything but cell types is to be learned."""
    objectives = config.objectives
    return bool(objectives.masked_multiplicity.weight or objectives.property.weight)


def wants_reader(config: Config, cells: Cells, split: Split) -> bool:
    """Whether a cell reader tells the cell types, and not the transformer's summary.

    The summary does where cell types are its only task, and where no process has all genes of a cell.
    """
    return bool(
        config.cell_reader.members
        and trained_classes(config, cells)
        and has_other_objectives(config)
        and config.trainer.gene_parallel == 1
        and (cells.labels[split.train] >= 0).any()
    )


def data_module(config: Config, cells: Cells, split: Split, *, with_regulators: bool) -> CellsDataModule:
    """Batches for Lightning; with_regulators: they bring the multiplicities that the regulation layer reads."""
    return CellsDataModule(
        cells,
        split,
        batch_size=config.trainer.batch_size,
        masked_fraction=config.objectives.masked_multiplicity.fraction,
        seed=config.trainer.seed,
        bags=config.data.bags,
        gene_parallel=config.trainer.gene_parallel,
        num_workers=config.trainer.workers,
        with_regulators=with_regulators,
    )


def trained_model(config: Config, cells: Cells, model: Model) -> TrainedModel:
    """The model with everything that the model folder needs for reading new cells."""
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
        cells=cells.digest or None,
    )


def refuse_nothing_to_learn(config: Config, cells: Cells, split: Split) -> None:
    """Raises DataError where the training cells do not differ in what would be learned (genes, regulators, the
    property), and ConfigError where cell types are the only objective and there are fewer than two."""
    settings, objectives = config.trainer, config.objectives
    world = processes(settings) // settings.gene_parallel
    EpochOrder(split.train, settings.batch_size, settings.seed, 0, world)  # DataError: too few cells
    varies = varying(cells.multiplicity[split.train])
    regulators = np.arange(len(varies)) if cells.regulators is None else cells.regulators
    if varies.sum() < 2 or not varies[regulators].any():
        raise DataError(
            f"{varies.sum()} of the {len(varies)} genes and {varies[regulators].sum()} of the {len(regulators)} "
            f"regulators vary between the {len(split.train)} training cells, once their depth is allowed for, and a "
            "network needs a regulator and another gene",
            field="data.regulators",
            advice="give more cells or genes, or other regulators ({field})",
        )
    if objectives.property.weight:
        property_scale(cells.property[split.train], objectives.property.key)
    if not has_other_objectives(config) and not trained_classes(config, cells):
        raise ConfigError(
            f"The obs column {config.data.label_key!r} has one cell type only, {cells.classes[0]!r}, and there is no "
            "other objective",
            field="data.label_key",
            advice="set objectives.masked_multiplicity.weight above 0, or {field} to another column",
        )


def property_scale(values: np.ndarray, key: str | None) -> tuple[float, float]:
    """Mean and sd of the property over cells [C], NaN where missing. Raises DataError where it does not vary."""
    known = values[~np.isnan(values)]
    if len(known) < 2 or known.std() == 0:
        raise DataError(
            f"The obs column {key!r} has {len(np.unique(known))} different finite numbers among the training cells",
            field="objectives.property.key",
            advice="set {field} to another column",
        )
    return float(known.mean()), float(known.std())
