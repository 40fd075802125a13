"""The Jacobian read-out: how a target's predicted multiplicity moves with a regulator's multiplicity.

w_ij = mean over cells of (d predicted multiplicity of i / d multiplicity of j) * sd_j / sd_i, target masked; then each
row is divided by the square root of its norm (weights.balanced). The derivative is exact (forward mode), in sds of the
target per sd of the regulator, and it is the same for every choice of signs inside the attention.
Sign: positive = raising the regulator raises the target's expected multiplicity.
Letters: B bags, N genes, R regulators.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.func import jvp, vmap

from grn.bags import Bags
from grn.model.transformer import Model
from grn.networks.readouts.sampling import Sample
from grn.networks.readouts.whole_model import mean_effects, with_multiplicity
from grn.networks.weights import Network

TANGENTS = 2**24  # most numbers in one array, which limits how many regulators are computed together


def jacobian_network(
    model: Model,
    multiplicity: sp.csr_matrix,
    samples: Iterable[Sample],
    cells: dict[int, int],
    regulators: np.ndarray,
    basal: np.ndarray | None = None,
) -> Network:
    """The network of mean derivatives. Arguments as for `mean_effects`. A regulator that never varies gets weight 0."""
    sd = model.sd.cpu().numpy()
    unit = np.where(varying(model, multiplicity, regulators), sd[regulators], 0)[None] / sd[:, None]

    def effect(bags: Bags, chosen: Tensor) -> Tensor:
        return regulator_derivatives(model, bags, chosen)

    return mean_effects(
        model, multiplicity, samples, cells, regulators, basal, effect=effect, unit=unit, widest=TANGENTS
    )


def varying(model: Model, multiplicity: sp.csr_matrix, regulators: np.ndarray) -> np.ndarray:
    """bool [R]: the regulators that some training cell has and that differ between the cells of a CSR matrix [C, N].

    The sd of the others is 1 by convention, so that a derivative in that unit would mean nothing.
    """
    measured = multiplicity[:, regulators]
    differs = (measured.max(0) - measured.min(0)).toarray()[0] > 0
    return differs & (model.mean.cpu().numpy()[regulators] > 0)


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
