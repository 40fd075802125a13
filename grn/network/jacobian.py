"""The Jacobian read-out: how a target's predicted multiplicity moves with a regulator's multiplicity.

w_ij = mean over cells of (d predicted multiplicity of i / d multiplicity of j) * sd_j / sd_i, target masked. Exact
(forward mode), dimensionless (sds over the expected multiplicities), and the same for every choice of signs inside
the attention. Sign: positive = raising the regulator raises the target's expected multiplicity.
Letters: B bags, N genes, R regulators.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.func import jvp, vmap

from grn.bags import Bags
from grn.model import Model
from grn.network.readout import Network, PairMean, average
from grn.network.sampling import Sample, masked_bags

TANGENTS = 2**24  # numbers in the widest array of one call: how many regulators go through it together


def jacobian_network(
    model: Model,
    multiplicity: sp.csr_matrix,
    samples: Iterable[Sample],
    cells: dict[int, int],
    regulators: np.ndarray,
    basal: np.ndarray | None = None,
) -> Network:
    """multiplicity: CSR [C, N]; cells: number of cells of each type; regulators: vocabulary positions [R].

    basal [C]: multiplicity of each cell's basal gene; None: 1.
    """
    means: dict[int, PairMean] = {}
    for sample in samples:
        bags = masked_bags(model, multiplicity, basal, sample, regulators)
        mean = means.setdefault(sample.cell_type, PairMean(len(bags.genes), len(regulators)))
        hidden = np.ones(bags.multiplicity.shape, dtype=bool)
        hidden[:, regulators] = sample.masked
        step = max(1, TANGENTS // (bags.multiplicity.numel() * model.config.hidden))
        for start in range(0, len(regulators), step):
            columns = slice(start, min(start + step, len(regulators)))
            derivative = regulator_derivatives(model, bags, torch.as_tensor(regulators[columns]))
            readable = hidden[:, :, None] & ~sample.masked[:, None, columns]
            mean.add(derivative.permute(1, 2, 0).cpu().numpy(), readable, columns)
    sd = model.sd.cpu().numpy()
    unit = sd[None, regulators] / sd[:, None]
    return average(means, cells, unit, np.stack([regulators, np.arange(len(regulators))]))


def regulator_derivatives(model: Model, bags: Bags, regulators: Tensor) -> Tensor:
    """d predicted multiplicity [B, N] / d multiplicity of each regulator [R] of dense bags -> [R, B, N]."""

    def predict(multiplicity: Tensor) -> Tensor:
        return model(replace(bags, multiplicity=multiplicity)).multiplicity

    def derivative(direction: Tensor) -> Tensor:
        return jvp(predict, (bags.multiplicity,), (direction.expand_as(bags.multiplicity),))[1]

    directions = torch.eye(len(bags.genes), dtype=bags.multiplicity.dtype, device=bags.genes.device)
    with torch.no_grad():
        return vmap(derivative)(directions[regulators.to(bags.genes.device)])
