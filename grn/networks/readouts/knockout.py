"""The knock-out read-out: how a target's predicted multiplicity changes when a regulator is absent.

w_ij = mean over cells of (prediction of i - prediction of i without j) / mean_j * sd_j / sd_i, target masked: the slope
from absence to what the cell has, in the Jacobian's unit and balanced like it (weights.balanced), and the same for
every choice of signs inside the attention.
Sign: positive = the regulator raises the target's expected multiplicity.

The L2 norm saturates: where a cell has the regulator, the derivative is small and may have the other sign; where a cell
has no regulator at all, the derivative may be arbitrarily steep. The difference between presence and absence is what
the model learned.
Letters: B bags, N genes, R regulators.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from grn.bags import Bags
from grn.model.transformer import Model
from grn.networks.readouts.sampling import Sample
from grn.networks.readouts.whole_model import mean_effects, with_multiplicity
from grn.networks.weights import Network

NO_LIMIT = 2**62  # one call for all regulators: it predicts the whole bags once, then without each regulator in turn


def knockout_network(
    model: Model,
    multiplicity: sp.csr_matrix,
    samples: Iterable[Sample],
    cells: dict[int, int],
    regulators: np.ndarray,
    basal: np.ndarray | None = None,
) -> Network:
    """The network of mean knock-out effects. Arguments as for `mean_effects`.

    A regulator that no training cell has gets the weight 0.
    """
    mean, sd = model.mean.cpu().numpy(), model.sd.cpu().numpy()
    present = mean[regulators] > 0
    unit = np.where(present, sd[regulators] / np.where(present, mean[regulators], 1), 0)[None] / sd[:, None]

    def effect(bags: Bags, chosen: Tensor) -> Tensor:
        return knockout_effects(model, bags, chosen)

    return mean_effects(
        model, multiplicity, samples, cells, regulators, basal, effect=effect, unit=unit, widest=NO_LIMIT
    )


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
