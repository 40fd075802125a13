"""Read-outs of the whole model: the mean effect of a regulator on every prediction, over the bags that can show it.

A bag shows the effect of a regulator on a target where the target is hidden from the model and the regulator is not.

Letters: B bags, N genes, R regulators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from grn.bags import Bags
from grn.model.transformer import Model
from grn.networks.readouts.sampling import Sample, masked_bags
from grn.networks.weights import Network, balanced, without_self

Effect = Callable[[Bags, Tensor], Tensor]


def with_multiplicity(bags: Bags, multiplicity: Tensor, regulators: Tensor) -> Bags:
    """Dense bags with other multiplicities [B, N]; what the regulation layer reads changes by as much.

    regulators [R]: positions among the genes.
    """
    if bags.regulators is not None:
        changed = bags.regulators + (multiplicity - bags.multiplicity)[:, regulators]
        return replace(bags, multiplicity=multiplicity, regulators=changed)
    return replace(bags, multiplicity=multiplicity)


def mean_effects(
    model: Model,
    multiplicity: sp.csr_matrix,
    samples: Iterable[Sample],
    cells: dict[int, int],
    regulators: np.ndarray,
    basal: np.ndarray | None,
    *,
    effect: Effect,
    unit: np.ndarray,
    widest: int,
) -> Network:
    """The mean of effect(dense bags, regulators [r]) -> [r, B, N] over the bags that show it.

    multiplicity: CSR [C, N].   samples: the cells of each batch and what is masked in them.   cells: number of cells of
    each cell type.   regulators: vocabulary positions [R].   basal [C]: multiplicity of each cell's basal gene (None:
    1).   unit [N, R]: what the means are multiplied by.   widest: most numbers in one array, which limits how many
    regulators are computed together.
    """
    means: dict[int, PairMean] = {}
    for sample in samples:
        bags = masked_bags(model, multiplicity, basal, sample, regulators)
        mean = means.setdefault(sample.cell_type, PairMean(len(bags.genes), len(regulators)))
        hidden = np.ones(bags.multiplicity.shape, dtype=bool)
        hidden[:, regulators] = sample.masked
        step = max(1, widest // (bags.multiplicity.numel() * model.config.hidden))
        for start in range(0, len(regulators), step):
            columns = slice(start, min(start + step, len(regulators)))
            values = effect(bags, torch.as_tensor(regulators[columns]))
            readable = hidden[:, :, None] & ~sample.masked[:, None, columns]
            mean.add(values.permute(1, 2, 0).cpu().numpy(), readable, columns)
    return average(means, cells, unit, regulators)


class PairMean:
    """Running mean of a value for each pair (target, regulator), over the bags in which the pair can be read."""

    def __init__(self, targets: int, regulators: int):
        self.sum = np.zeros((targets, regulators))
        self.sign = np.zeros((targets, regulators))
        self.count = np.zeros((targets, regulators))

    def add(self, values: np.ndarray, readable: np.ndarray, columns: slice) -> None:
        """values and readable [B, N, r] of the regulators in `columns`; values that are not readable do not count."""
        values = np.where(readable, values, 0)
        self.sum[:, columns] += values.sum(0)
        self.sign[:, columns] += np.sign(values).sum(0)
        self.count[:, columns] += readable.sum(0)

    def mean(self) -> np.ndarray:
        """[N, R]; NaN where the pair was readable in no bag."""
        with np.errstate(invalid="ignore"):
            return self.sum / np.where(self.count > 0, self.count, np.nan)


def average(means: dict[int, PairMean], cells: dict[int, int], unit: np.ndarray, regulators: np.ndarray) -> Network:
    """The network over all cells: the mean of each cell type, weighted by the type's number of cells.

    Weights are multiplied by `unit` [N, R], then `balanced`. A pair that was readable in no bag of a type takes its
    mean over the other types. regulators [R]: the row of each column's gene.
    """
    types = list(means)
    stack = np.stack([means[cell_type].mean() for cell_type in types])
    known = ~np.isnan(stack)
    counted = np.array([cells[cell_type] for cell_type in types], dtype=float)[:, None, None] * known
    total = counted.sum(0)
    overall = np.nan_to_num(np.where(known, stack, 0) * counted).sum(0) / np.where(total > 0, total, 1)
    stack = np.where(known, stack, overall)

    bags = np.maximum(sum(mean.count for mean in means.values()), 1)
    agreement = 0.5 + 0.5 * sum(mean.sign for mean in means.values()) * np.sign(overall) / bags

    def finished(weight: np.ndarray) -> np.ndarray:
        return balanced(torch.as_tensor(without_self(weight * unit, regulators))).numpy()

    by_type = {
        str(cell_type): finished(weight) for cell_type, weight in zip(types, stack, strict=True) if cell_type >= 0
    }
    return Network(finished(overall), by_type, np.clip(agreement, 0, 1).astype(np.float32))
