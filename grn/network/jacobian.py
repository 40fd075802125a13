"""The Jacobian read-out: how a target's predicted multiplicity moves with a regulator's multiplicity.

w_ij = mean over cells of (d predicted multiplicity of i / d multiplicity of j) * sd_j / sd_i, target masked. Exact
(forward mode), dimensionless (sds over the expected multiplicities), and the same for every choice of signs inside
the attention. Sign: positive = raising the regulator raises the target's expected multiplicity.
Letters: B bags, N genes, R regulators.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor
from torch.func import jvp, vmap

from grn.bags import Bags
from grn.model import Model
from grn.network.readout import Network, PairMean, average
from grn.network.sampling import Sample

TANGENTS = 2**27  # numbers in the widest array of one call: how many regulators go through it together


def jacobian_network(
    model: Model, multiplicity, samples: Iterable[Sample], cells: dict[int, int], regulators: np.ndarray
) -> Network:
    """multiplicity: CSR [C, N]; cells: number of cells of each type; regulators: vocabulary positions [R]."""
    device = next(model.parameters()).device
    genes = torch.arange(multiplicity.shape[1], device=device)
    chosen = torch.as_tensor(regulators, device=device)
    means: dict[int, PairMean] = {}
    for sample in samples:
        mean = means.setdefault(sample.cell_type, PairMean(len(genes), len(regulators)))
        dense = torch.as_tensor(multiplicity[sample.rows].toarray(), dtype=torch.float32, device=device)
        masked = torch.as_tensor(sample.masked, device=device)
        dense[:, chosen] = dense[:, chosen].masked_fill(masked, 0)
        hidden = np.ones(dense.shape, dtype=bool)
        hidden[:, regulators] = sample.masked
        step = max(1, TANGENTS // (dense.numel() * model.config.hidden))
        for start in range(0, len(regulators), step):
            columns = slice(start, min(start + step, len(regulators)))
            derivative = regulator_derivatives(model, genes, dense, chosen[columns])
            readable = hidden[:, :, None] & ~sample.masked[:, None, columns]
            mean.add(derivative.permute(1, 2, 0).cpu().numpy(), readable, columns)
    sd = model.sd.cpu().numpy()
    unit = sd[None, regulators] / sd[:, None]
    return average(means, cells, unit, np.stack([regulators, np.arange(len(regulators))]))


def regulator_derivatives(model: Model, genes: Tensor, multiplicity: Tensor, regulators: Tensor) -> Tensor:
    """d predicted multiplicity [B, N] / d multiplicity of each regulator [R] -> [R, B, N]."""

    def predict(multiplicity: Tensor) -> Tensor:
        return model(Bags(genes, multiplicity)).multiplicity

    def derivative(direction: Tensor) -> Tensor:
        return jvp(predict, (multiplicity,), (direction.expand_as(multiplicity),))[1]

    directions = torch.eye(len(genes), device=genes.device)[regulators]
    with torch.no_grad():
        return vmap(derivative)(directions)
