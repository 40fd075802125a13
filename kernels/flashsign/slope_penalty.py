"""A penalty on what the edges of a table of scores do: a key acts on a query in some state, or in none.

    slope_ij = sum over heads g_i s_ij a_j / n_i,                n_i^2 = b_i^2 + sum_j E[m_j^2] s_ij^2
    lambda t^2 log(1 + size / t^2),       size = shared slope^2 + sum over states of (deviation / rho)^2

The scores are those of attention_by_scores, with a table for each state. The logarithm lets few strong slopes be strong
and shrinks many weak ones; t = 0 is lambda size, the penalty of ridge regression. rho is how freely states deviate from
the slope that they share. The last key has a shared slope that is free; its deviations are not.

Letters: P members, H heads, S states, N queries, K keys.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from flashsign.dispatch import choose_for_tables

LEAST_RHO, LEAST_T = 0.05, 1e-3


def slope_penalty(
    scores: Tensor,
    amount: Tensor,
    gain: Tensor,
    basal: Tensor,
    square: Tensor,
    penalty: Tensor,
    prior: Tensor | None = None,
) -> Tensor:
    """The penalty on the slopes of each member, summed over queries and keys.

    Args:
        scores: [P, H, S, N, K], of every query with every key in every state, for a multiplicity of 1.
        amount: [P, H, K], a_j.
        gain: [P, H, N], g_i.
        basal: [P, H, N], b_i.
        square: [P, S, K], the mean squared multiplicity of a key in each state.
        penalty: [P, 3], or [1, 3] for all: lambda, rho and t of each member.
        prior: [N, K], by which slopes are divided first. None: by 1.

    Returns:
        [P], with first derivatives by scores, amount, gain and basal.

    Source: the logarithmic penalty of E. Candes, M. Wakin and S. Boyd 2008 (equation 2.3), of groups of slopes.

    Examples:
        >>> import torch
        >>> from flashsign import slope_penalty
        >>> scores, one = torch.tensor([3.0, 4.0]).view(1, 1, 1, 1, 2), torch.ones(1, 1, 1)
        >>> both, ridge = torch.ones(1, 1, 2), torch.tensor([[1.0, 1.0, 0.0]])
        >>> slope_penalty(scores, both, one, 0 * one, both, ridge)
        tensor([0.3600])
    """
    found: Tensor = _SlopePenalty.apply(scores, amount, gain, basal, square, penalty, prior)  # type: ignore[no-untyped-call]
    return found


def penalty_of(slopes: Tensor, penalty: Tensor) -> Tensor:
    """slopes [P, S, N, K], penalty [P, 3] (lambda, rho, t) -> the sum over queries and keys, [P]: the definition."""
    lam, rho, t = penalty[:, 0], penalty[:, 1, None, None].clamp(min=LEAST_RHO), penalty[:, 2, None, None]
    shared = slopes.mean(1)
    deviations = (slopes - shared[:, None]).square().sum(1) / rho.square()
    size = shared.square() * (torch.arange(shared.shape[-1], device=shared.device) < shared.shape[-1] - 1) + deviations
    curved = t.square() * torch.log1p(size / t.clamp(min=LEAST_T).square())
    return lam * torch.where(t > 0, curved, size).sum((1, 2))


class _InTorch:
    """What flashsign.triton.slope_penalty does, in torch operations."""

    @staticmethod
    def norms(scores: Tensor, square: Tensor) -> Tensor:
        return ((scores * scores) @ square[:, None, :, :, None])[..., 0]

    @staticmethod
    def value(
        scores: Tensor, amount: Tensor, factor: Tensor, penalty: Tensor, prior: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        heads, states = scores.shape[1:3]
        slope = torch.zeros_like(scores[:, 0])  # [P, S, N, K]
        for h in range(heads):
            slope.addcmul_(scores[:, h] * amount[:, h, None, None], factor[:, h, ..., None])
        if prior is not None:
            slope.div_(prior)
        lam, rho, t = penalty[:, 0], penalty[:, 1, None, None], penalty[:, 2, None, None]
        freedom = states / rho.square()
        shared = slope.mean(1)
        slope.sub_(shared[:, None])
        shared[..., -1] = 0
        size = (slope * slope).sum(1).div_(rho.square()).addcmul_(shared, shared)
        bend = t.square()
        found = lam * torch.where(t > 0, bend * torch.log1p(size / bend), size).sum((1, 2))

        # With shared slope s and deviations d: 2 lambda / (1 + size / t^2) (s + d S / rho^2) / S
        weight = torch.where(t > 0, bend / (bend + size), torch.ones_like(size)).mul_(2 / states * lam[:, None, None])
        slope.mul_(freedom[:, None]).add_(shared[:, None]).mul_(weight[:, None])
        return found, slope if prior is None else slope.div_(prior)

    @staticmethod
    def of_factors(scores: Tensor, amount: Tensor, of_slopes: Tensor) -> Tensor:
        return torch.stack(
            [((of_slopes * scores[:, h]) @ amount[:, h, None, :, None])[..., 0] for h in range(scores.shape[1])], 1
        )

    @staticmethod
    def gradients(
        scores: Tensor, amount: Tensor, square: Tensor, of_slopes: Tensor, scaled: Tensor, of_norm: Tensor
    ) -> tuple[Tensor, Tensor]:
        of_scores, of_amount = torch.empty_like(scores), torch.empty_like(amount)
        for h in range(scores.shape[1]):
            of_amount[:, h] = (scaled[:, h, :, None] @ (of_slopes * scores[:, h])).sum((1, 2))
            torch.mul(of_slopes, scaled[:, h, ..., None], out=of_scores[:, h]).mul_(amount[:, h, None, None])
        return of_scores.addcmul_(scores * square[:, None, :, None], 2 * of_norm[..., None]), of_amount


class _SlopePenalty(torch.autograd.Function):
    """Tables of scores are the largest tensors of a step, and passes over them its time: this makes a third of the
    passes that autograd would make, and the kernels far fewer. The gradient of the slopes is known with the
    value, so forward keeps it."""

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
        ctx.by = _InTorch
        if choose_for_tables((scores, amount, gain, basal, square, penalty)) == "triton":
            ctx.by = importlib.import_module("flashsign.triton.slope_penalty")
            scores, amount, square = (each.contiguous() for each in (scores, amount, square))
            prior = None if prior is None else prior.to(scores.dtype).contiguous()
        lam, rho, t = penalty.expand(len(scores), -1).unbind(1)
        penalty = torch.stack([lam, rho.clamp(min=LEAST_RHO), torch.where(t > 0, t.clamp(min=LEAST_T), 0)], 1)
        with torch.cuda.device_of(scores):  # type: ignore[no-untyped-call]  # on which kernels start
            norm = ctx.by.norms(scores, square) + basal.square()[:, :, None]
            factor = gain[:, :, None] * norm.rsqrt()  # [P, H, S, N]
            value: Tensor
            value, of_slopes = ctx.by.value(scores, amount, factor, penalty, prior)
        ctx.save_for_backward(scores, amount, gain, basal, square, norm, factor, of_slopes)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        scores, amount, gain, basal, square, norm, factor, of_slopes = ctx.saved_tensors
        upstream = upstream[:, None, None, None]
        of_factor = ctx.by.of_factors(scores, amount, of_slopes) * upstream
        of_norm = -0.5 * of_factor * factor / norm  # [P, H, S, N]
        of_scores, of_amount = ctx.by.gradients(scores, amount, square, of_slopes, factor * upstream, of_norm)
        of_gain = (of_factor * factor).sum(2) / gain
        return of_scores, of_amount, of_gain, 2 * basal * of_norm.sum(2), None, None, None
