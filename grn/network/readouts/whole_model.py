"""Read-outs that ask what a regulator does to every prediction, bag by bag: the mean over the bags that can tell.

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
from grn.network.readouts.sampling import Sample, masked_bags
from grn.network.weights import Network, PairMean, average

Effect = Callable[[Bags, Tensor], Tensor]


def at(bags: Bags, multiplicity: Tensor, regulators: Tensor) -> Bags:
    """Dense bags with other multiplicities; what the regulation layer reads moves along. regulators: positions [R]."""
    if bags.regulators is not None:
        moved = bags.regulators + (multiplicity - bags.multiplicity)[:, regulators]
        return replace(bags, multiplicity=multiplicity, regulators=moved)
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
    """The mean of effect(dense bags, regulators [r]) -> [r, B, N], target hidden and regulator in sight.

    multiplicity: CSR [C, N]; cells: number of cells of each type; regulators: vocabulary positions [R]; basal [C]:
    multiplicity of each cell's basal gene, None: 1; unit [N, R]: what the means are multiplied by; widest: most
    numbers in one array, which sets how many regulators go together.
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
