"""The penalty on slopes: a regulator acts on a gene in some state, or in none
(flashsign.slope_penalty).

The last key is the basal gene, the depth: the slope on it that states share is free, their
deviations are not. The penalty weighs what an edge does, and not queries and keys, whose factors of
one product would otherwise decide what is small.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Penalty:
    """The penalty on slopes (flashsign.slope_penalty).

    lam: lambda, times the number of cells.
    rho: how freely states deviate from the slope that they share.
    t: in sds of the gene for an sd of the regulator.
    """

    lam: float
    rho: float = 1.0
    t: float = 0.0

    def as_tensor(self) -> Tensor:
        return torch.tensor(astuple(self))
