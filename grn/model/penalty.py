"""The penalty on slopes: a regulator acts on a gene in some state, or in none.

    lambda t^2 log(1 + g / t^2),    g = shared slope^2 + sum over states of (deviation / rho)^2

The logarithm lets few strong edges be strong and shrinks many weak ones; t = 0 is lambda g, ridge regression's penalty.
rho is how freely states deviate from the slope that they share. The last key is the basal gene, the depth: the slope on
it that states share is free, their deviations are not. The penalty weighs what an edge does, and not queries and keys,
whose factors of one product would otherwise decide what is small.

Letters: P members, H heads, S states, n genes, K keys: the regulators and, last, the basal gene.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

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
    """slopes [P, S, n, K], penalty [P, 3] (lambda, rho, t) -> the sum over genes and keys, [P]."""
    lam, rho, t = penalty[:, 0], penalty[:, 1, None, None].clamp(min=LEAST_RHO), penalty[:, 2, None, None]
    shared = slopes.mean(1)
    deviations = (slopes - shared[:, None]).square().sum(1) / rho.square()
    size = shared.square() * (torch.arange(shared.shape[-1], device=shared.device) < shared.shape[-1] - 1) + deviations
    curved = t.square() * torch.log1p(size / t.clamp(min=LEAST_T).square())
    return lam * torch.where(t > 0, curved, size).sum((1, 2))


def penalty_of_scores(
    scores: Tensor,
    amount: Tensor,
    gain: Tensor,
    basal: Tensor,
    square: Tensor,
    penalty: Tensor,
    prior: Tensor | None = None,
) -> Tensor:
    """`penalty_of` the slopes of a signed block in an average cell, divided by the prior: [P].

        slope_ij = sum over heads g_i s_ij a_j / n_i,    n_i^2 = b_i^2 + sum_j E[m_j^2] s_ij^2

    scores [P, H, S, n, K], amount [P, H, K], gain and basal [P, H, n], square [P, S, K], penalty [P, 3], prior [n, K].
    """
    return _PenaltyOfScores.apply(scores, amount, gain, basal, square, penalty, prior)


class _PenaltyOfScores(torch.autograd.Function):
    """Tables of scores are the largest tensors of a step, and passes over them its time: this makes a third of the
    passes that autograd would make. The gradient of the slopes is known with the value, so forward keeps it."""

    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        amount: Tensor,
        gain: Tensor,
        basal: Tensor,
        square: Tensor,
        penalty: Tensor,
        prior: Tensor | None,
    ) -> Tensor:
        heads, states = scores.shape[1:3]
        norm = ((scores * scores) @ square[:, None, :, :, None])[..., 0] + basal.square()[:, :, None]
        factor = gain[:, :, None] * norm.rsqrt()  # [P, H, S, n]
        slope = torch.zeros_like(scores[:, 0])  # [P, S, n, K]
        for h in range(heads):
            slope.addcmul_(scores[:, h] * amount[:, h, None, None], factor[:, h, ..., None])
        if prior is not None:
            slope.div_(prior)
        lam, rho, t = penalty[:, 0], penalty[:, 1, None, None].clamp(min=LEAST_RHO), penalty[:, 2, None, None]
        freedom = states / rho.square()  # shared slope s, deviations d: g = s^2 + sum d^2 / rho^2
        shared = slope.mean(1)
        slope.sub_(shared[:, None])
        shared[..., -1] = 0  # the depth's
        size = (slope * slope).sum(1).div_(rho.square()).addcmul_(shared, shared)
        bend = t.clamp(min=LEAST_T).square()
        value = lam * torch.where(t > 0, bend * torch.log1p(size / bend), size).sum((1, 2))

        # d value / d slope, where the deviations were: 2 lambda / (1 + g / t^2) (s + d S / rho^2) / S
        weight = torch.where(t > 0, bend / (bend + size), torch.ones_like(size)).mul_(2 / states * lam[:, None, None])
        slope.mul_(freedom[:, None]).add_(shared[:, None]).mul_(weight[:, None])
        if prior is not None:
            slope.div_(prior)
        ctx.save_for_backward(scores, amount, gain, basal, square, norm, factor, slope)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        scores, amount, gain, basal, square, norm, factor, slope = ctx.saved_tensors
        of_scores, of_amount, of_factor = torch.empty_like(scores), torch.empty_like(amount), torch.empty_like(factor)
        scaled = factor * upstream[:, None, None, None]
        for h in range(scores.shape[1]):
            product = slope * scores[:, h]
            of_factor[:, h] = (product @ amount[:, h, None, :, None])[..., 0]
            of_amount[:, h] = (scaled[:, h, :, None] @ product).sum((1, 2))
            torch.mul(slope, scaled[:, h, ..., None], out=of_scores[:, h]).mul_(amount[:, h, None, None])
        of_factor *= upstream[:, None, None, None]
        of_norm = -0.5 * of_factor * factor / norm  # [P, H, S, n]
        of_scores.addcmul_(scores * square[:, None, :, None], 2 * of_norm[..., None])
        of_gain = (of_factor * factor).sum(2) / gain
        return of_scores, of_amount, of_gain, 2 * basal * of_norm.sum(2), None, None, None
