"""Read-outs of the whole model, Jacobian and knock-out: the mean effect of a regulator on every prediction.

jacobian   mean over cells of (d predicted multiplicity of i / d multiplicity of j) * sd_j / sd_i, exact (forward mode)
knockout   mean over cells of (prediction of i - prediction of i without j) / mean_j * sd_j / sd_i: the slope from
           absence to what the cell has, in the same unit

The target is masked, and each row is divided by the square root of its norm (weights.balanced). Both are the same for
every choice of signs inside the attention. Sign: positive = the regulator raises the target's expected multiplicity.

The L2 norm saturates: where a cell has the regulator, the derivative is small and may have the other sign; where a cell
has no regulator at all, it may be arbitrarily steep. The difference between presence and absence is what the model
learned. A bag shows an effect where the target is hidden from the model and the regulator is not.

Letters: B bags, N genes, R regulators.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.func import jvp, vmap

from grn.bags import Bags
from grn.model.transformer import Model
from grn.networks.readouts.sampling import Sample, masked_bags
from grn.networks.weights import Network, balanced, without_self

TANGENTS = 2**24  # most numbers in one array of derivatives, which limits how many regulators are computed together
NO_LIMIT = 2**62  # one call for all regulators: it predicts the whole bags once, then without each regulator in turn


def with_multiplicity(bags: Bags, multiplicity: Tensor, regulators: Tensor) -> Bags:
    """Dense bags with other multiplicities [B, N]; what the regulation layer reads changes by as much.

    regulators [R]: positions among the genes.
    """
    if bags.regulators is not None:
        changed = bags.regulators + (multiplicity - bags.multiplicity)[:, regulators]
        return replace(bags, multiplicity=multiplicity, regulators=changed)
    return replace(bags, multiplicity=multiplicity)


def whole_model_network(
    readout: str,
    model: Model,
    multiplicity: sp.csr_matrix,
    samples: Iterable[Sample],
    cells: dict[int, int],
    regulators: np.ndarray,
    basal: np.ndarray | None = None,
) -> Network:
    """The network of mean effects over the bags that show them. readout: jacobian | knockout.

    multiplicity: CSR [C, N].   samples: the cells of each batch and what is masked in them.   cells: number of cells of
    each cell type.   regulators: vocabulary positions [R].   basal [C]: multiplicity of each cell's basal gene (None:
    1). A regulator that no training cell has gets the weight 0, and for the Jacobian one that never varies.
    """
    mean, sd = model.mean.cpu().numpy(), model.sd.cpu().numpy()
    seen = mean[regulators] > 0
    if readout == "jacobian":
        effect, widest = regulator_derivatives, TANGENTS
        unit = np.where(seen & varying(multiplicity[:, regulators]), sd[regulators], 0)[None] / sd[:, None]
    else:
        effect, widest = knockout_effects, NO_LIMIT
        unit = np.where(seen, sd[regulators] / np.where(seen, mean[regulators], 1), 0)[None] / sd[:, None]
    means: dict[int, PairMean] = {}
    for sample in samples:
        bags = masked_bags(model, multiplicity, basal, sample, regulators)
        of_type = means.setdefault(sample.cell_type, PairMean(len(bags.genes), len(regulators)))
        hidden = np.ones(bags.multiplicity.shape, dtype=bool)
        hidden[:, regulators] = sample.masked
        step = max(1, widest // (bags.multiplicity.numel() * model.config.hidden))
        for start in range(0, len(regulators), step):
            columns = slice(start, min(start + step, len(regulators)))
            values = effect(model, bags, torch.as_tensor(regulators[columns]))
            readable = hidden[:, :, None] & ~sample.masked[:, None, columns]
            of_type.add(values.permute(1, 2, 0).cpu().numpy(), readable, columns)
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


def varying(measured: sp.csr_matrix) -> np.ndarray:
    """bool [R]: which columns of a CSR matrix [C, R] differ between cells. The sd of the others is 1 by convention."""
    return (measured.max(0) - measured.min(0)).toarray()[0] > 0


def regulator_derivatives(model: Model, bags: Bags, regulators: Tensor) -> Tensor:
    """d predicted multiplicity [B, N] / d multiplicity of each regulator [R] of dense bags -> [R, B, N]."""
    all_regulators = model.is_regulator.nonzero()[:, 0]

    def predict(multiplicity: Tensor) -> Tensor:
        return model(with_multiplicity(bags, multiplicity, all_regulators)).multiplicity

    def derivative(direction: Tensor) -> Tensor:
        return jvp(predict, (bags.multiplicity,), (direction.expand_as(bags.multiplicity),))[1]

    directions = torch.eye(len(bags.genes), dtype=bags.multiplicity.dtype, device=bags.genes.device)
    with torch.no_grad():
        return vmap(derivative)(directions[regulators.to(bags.genes.device)])


def knockout_effects(model: Model, bags: Bags, regulators: Tensor) -> Tensor:
    """Prediction [B, N] minus the prediction without each regulator [R] of dense bags -> [R, B, N]."""
    with torch.no_grad():
        whole, all_regulators = model(bags).multiplicity, model.is_regulator.nonzero()[:, 0]
        without = []
        for regulator in regulators.tolist():
            multiplicity = bags.multiplicity.clone()
            multiplicity[:, regulator] = 0
            without.append(model(with_multiplicity(bags, multiplicity, all_regulators)).multiplicity)
        return whole - torch.stack(without)


jacobian_network = partial(whole_model_network, "jacobian")
knockout_network = partial(whole_model_network, "knockout")
