"""The penalty on slopes: a regulator acts on a gene in some state, or in none.

    lambda t^2 log(1 + g / t^2),    g = shared slope^2 + sum over states of (deviation / rho)^2

The logarithm lets few strong edges be strong and shrinks many weak ones; t = 0 is lambda g, ridge regression's penalty.
rho is how freely states deviate from the slope that they share. It weighs what an edge does, and not queries and keys,
whose factors of one product would otherwise decide what is small.

Letters: P members, S states, n genes, R regulators.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

import torch
from torch import Tensor

LEAST_RHO, LEAST_T = 0.05, 1e-3


@dataclass(frozen=True)
class Penalty:
    """lam: lambda, times the number of cells.   rho.   t: in sds of the gene for an sd of the regulator."""

    lam: float
    rho: float = 1.0
    t: float = 0.0

    def as_tensor(self) -> Tensor:
        return torch.tensor(astuple(self))


def penalty_of(slopes: Tensor, penalty: Tensor) -> Tensor:
    """slopes [P, S, n, R], penalty [P, 3] (lambda, rho, t) -> the sum over genes and regulators, [P]."""
    lam, rho, t = penalty[:, 0], penalty[:, 1, None, None].clamp(min=LEAST_RHO), penalty[:, 2, None, None]
    size = slopes[:, 0].square()
    if slopes.shape[1] > 1:
        shared = slopes.mean(1)
        size = shared.square() + (slopes - shared[:, None]).square().sum(1) / rho.square()
    curved = t.square() * torch.log1p(size / t.clamp(min=LEAST_T).square())
    return lam * torch.where(t > 0, curved, size).sum((1, 2))
