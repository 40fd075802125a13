"""A penalty on what the edges of a table of scores do.

    slope_ij = sum over heads g_i s_ij a_j / n_i
    n_i^2    = b_i^2 + sum_j E[m_j^2] s_ij^2
    size     = shared slope^2 + sum over states of (deviation / rho)^2
    penalty  = lambda t^2 log(1 + size / t^2)

A key acts on a query in some state, or in none. The scores are those of attention_by_scores, with a
table for each state. The logarithm lets few strong slopes be strong and shrinks many weak ones;
t = 0 is lambda size, the penalty of ridge regression. rho is how freely states deviate from the
slope that they share. The last key has a shared slope that is free; its deviations are not.

Letters: P members, H heads, S states, N queries, K keys.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from flashsign.eager.transforms import without_autocast
from flashsign.errors import ShapeMismatch
from flashsign.operators.verify import Place, known_at
from flashsign.tables.shared_scores import (
    CHECKED,
    INTERPRETED,
    InTorch,
    OneNumber,
    attention_by_scores,
    choose_for_tables,
    largest_error,
    refuse_other_tables,
    tables_to_check,
)
from flashsign.tuning.block_sizes import room_for_bags

LEAST_RHO, LEAST_T = 0.05, 1e-3
KERNEL = "slope_penalty"
"""The name by which the check of a kernel knows those of this file."""
ALLOWED = 4e-4
"""The largest relative error of a right kernel: deviations are differences of slopes."""


def slope_penalty(
    scores: Tensor,
    amount: Tensor,
    gain: Tensor,
    basal: Tensor,
    square: Tensor,
    penalty: Tensor,
    prior: Tensor | None = None,
) -> Tensor:
    """Return the penalty on the slopes of each member, summed over queries and keys.

    Args:
        scores: [P, H, S, N, K], of every query with every key in every state, for a multiplicity of
            1.
        amount: [P, H, K], a_j.
        gain: [P, H, N], g_i.
        basal: [P, H, N], b_i.
        square: [P, S, K], the mean squared multiplicity of a key in each state.
        penalty: [P, 3], or [1, 3] for all: lambda, rho and t of each member.
        prior: [N, K], by which slopes are divided first. None: by 1.

    Returns:
        [P], with first derivatives by scores, amount, gain and basal.

    Raises:
        ShapeMismatch: an argument does not fit the scores.

    Source: the logarithmic penalty of E. Candes, M. Wakin and S. Boyd 2008 (equation 2.3), of
        groups of slopes.

    Examples:
        >>> import torch
        >>> from flashsign import slope_penalty
        >>> scores, one = torch.tensor([3.0, 4.0]).view(1, 1, 1, 1, 2), torch.ones(1, 1, 1)
        >>> both, ridge = torch.ones(1, 1, 2), torch.tensor([[1.0, 1.0, 0.0]])
        >>> slope_penalty(scores, both, one, 0 * one, both, ridge)
        tensor([0.3600])
    """
    _refuse_other_slopes(scores, amount=amount, gain=gain, basal=basal, square=square, prior=prior)
    if _by_kernels((scores, amount, gain, basal, square, penalty), 0):
        states, _, keys = scores.shape[2:]
        nothing = scores.new_zeros(1, keys)
        centre = scores.new_zeros(states, keys)
        groups = [1] + [0] * (states - 1)
        both = scores, amount, nothing, centre, gain, basal, square, penalty, prior, groups
        with without_autocast(scores):
            value: Tensor = _Together.apply(*both)[1]  # type: ignore[no-untyped-call]
        return value
    with without_autocast(scores):
        value = _SlopePenalty.apply(scores, amount, gain, basal, square, penalty, prior)  # type: ignore[no-untyped-call]
    return value


def attention_and_penalty(
    scores: Tensor,
    amount: Tensor,
    multiplicity: Tensor,
    *,
    centre: Tensor,
    gain: Tensor,
    basal: Tensor,
    square: Tensor,
    penalty: Tensor,
    prior: Tensor | None = None,
    groups: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """Read a table for each state, and compute the penalty on its slopes.

    A GPU's kernels read the scores for both at once and write one gradient, where states have at
    most 63 bags. Tables of a training step are larger than caches, and passes over them are its
    time.

    Args:
        scores, amount, gain, basal, square, penalty, prior: as for slope_penalty.
        multiplicity, centre, groups: as for attention_by_scores: [C, K] or [P or 1, H or 1, C, K],
            [P or 1, H or 1, S, K], and the bags of each state. A key's value is its amount.

    Returns:
        [P, H, C, N], what attention_by_scores returns, and [P], what slope_penalty returns.

    Raises:
        ShapeMismatch: an argument does not fit the scores.

    Source: those of the two functions.

    Examples:
        >>> import torch
        >>> from flashsign import attention_and_penalty
        >>> scores, one = torch.tensor([3.0, 4.0]).view(1, 1, 1, 1, 2), torch.ones(1, 1, 1)
        >>> amount, multiplicity = torch.ones(1, 1, 2), torch.ones(1, 2)
        >>> given = {"centre": torch.zeros(1, 1, 1, 2), "square": amount, "groups": [1]}
        >>> given |= {"gain": one, "basal": 0 * one, "penalty": torch.tensor([[1.0, 1.0, 0.0]])}
        >>> attention_and_penalty(scores, amount, multiplicity, **given)
        (tensor([[[[1.4000]]]]), tensor([0.3600]))
    """
    tensors = scores, amount, multiplicity, centre, gain, basal, square, penalty
    others = multiplicity.requires_grad or centre.requires_grad  # of which torch has the gradients
    if not others and _by_kernels(tensors, max(groups, default=0)):
        refuse_other_tables(scores, amount[..., None], multiplicity, centre, basal, groups)
        _refuse_other_slopes(
            scores, amount=amount, gain=gain, basal=basal, square=square, prior=prior
        )
        with without_autocast(scores):
            read, value = _Together.apply(*tensors, prior, groups)  # type: ignore[no-untyped-call]
        return read, value
    read = attention_by_scores(
        scores, amount[..., None], multiplicity, centre=centre, basal=basal, groups=groups
    )
    return read[..., 0], slope_penalty(scores, amount, gain, basal, square, penalty, prior)


def _by_kernels(tensors: Sequence[Tensor], bags: int) -> bool:
    """Return whether kernels can take a call and are known to be right for it.

    tensors: scores first; bags: of the largest state.
    """
    most = max(1, bags) + 1  # that of the slopes
    if choose_for_tables(tensors, most) == "torch":
        return False
    scores, room = tensors[0], room_for_bags(most)
    place = Place(KERNEL, scores.dtype, room, scores.shape[1], scores.device)
    return known_at(place, partial(kernel_problem, room, scores.shape[1], scores.device)) == ""


def _refuse_other_slopes(scores: Tensor, **given: Tensor | None) -> None:
    """Raise ShapeMismatch unless these arguments of slope_penalty fit the scores: kernels would
    read beside them.
    """
    members, heads, states, queries, keys = scores.shape
    of_keys, of_queries = (members, heads, keys), (members, heads, queries)
    expected: dict[str, tuple[int, ...]] = {
        "amount": of_keys,
        "gain": of_queries,
        "basal": of_queries,
    }
    expected |= {"square": (members, states, keys), "prior": (queries, keys)}
    for name, tensor in given.items():
        if tensor is not None and tensor.shape != expected[name]:
            raise ShapeMismatch(
                f"{name} is {list(tensor.shape)}; give {list(expected[name])}, as scores are "
                f"{list(scores.shape)}"
            )


def penalty_of(slopes: Tensor, penalty: Tensor) -> Tensor:
    """Return the penalty by its definition: slopes [P, S, N, K], penalty [P, 3] (lambda, rho, t) ->
    [P].
    """
    lam, rho, t = _in_range(penalty, len(slopes))[..., None, None].unbind(1)
    shared = slopes.mean(1)
    deviations = (slopes - shared[:, None]).square().sum(1) / rho.square()
    size = (
        shared.square()
        * (torch.arange(shared.shape[-1], device=shared.device) < shared.shape[-1] - 1)
        + deviations
    )
    curved = t.square() * torch.log1p(size / t.clamp(min=LEAST_T).square())
    return (lam * torch.where(t > 0, curved, size)).sum((1, 2))


class _SlopePenalty(torch.autograd.Function):
    """In torch operations, a third of those that autograd would make. The gradient of the slopes is
    known with the value, so forward keeps it.
    """

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
        norm = ((scores * scores) @ square[:, None, :, :, None])[..., 0] + basal.square()[
            :, :, None
        ]
        # a query that meets no key has slopes of 0, and not 0 / 0
        norm.clamp_(min=torch.finfo(norm.dtype).tiny)
        factor = gain[:, :, None] * norm.rsqrt()  # [P, H, S, N]
        slope = torch.zeros_like(scores[:, 0])  # [P, S, N, K]
        for h in range(heads):
            slope.addcmul_(scores[:, h] * amount[:, h, None, None], factor[:, h, ..., None])
        if prior is not None:
            slope.div_(prior)
        lam, rho, t = _in_range(penalty, len(scores))[..., None, None].unbind(1)
        freedom = states / rho.square()
        shared = slope.mean(1)
        slope.sub_(shared[:, None])
        shared[..., -1] = 0
        size = (slope * slope).sum(1).div_(rho.square()).addcmul_(shared, shared)
        bend = t.square()
        value: Tensor = (lam * torch.where(t > 0, bend * torch.log1p(size / bend), size)).sum(
            (1, 2)
        )

        # With shared slope s and deviations d: 2 lambda / (1 + size / t^2) (s + d S / rho^2) / S
        weight = torch.where(t > 0, bend / (bend + size), torch.ones_like(size)).mul_(
            2 / states * lam
        )
        of_slopes = slope.mul_(freedom[:, None]).add_(shared[:, None]).mul_(weight[:, None])
        if prior is not None:
            of_slopes.div_(prior)
        ctx.save_for_backward(scores, amount, gain, basal, square, norm, factor, of_slopes)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        scores, amount, gain, basal, square, norm, factor, of_slopes = ctx.saved_tensors
        of_scores = torch.empty_like(scores)
        of_amount = torch.empty_like(amount)
        of_factor = torch.empty_like(factor)
        scaled = factor * upstream[:, None, None, None]
        for h in range(scores.shape[1]):
            both = of_slopes * scores[:, h]
            of_factor[:, h] = (both @ amount[:, h, None, :, None])[..., 0]
            of_amount[:, h] = (scaled[:, h, :, None] @ both).sum((1, 2))
            torch.mul(of_slopes, scaled[:, h, ..., None], out=of_scores[:, h]).mul_(
                amount[:, h, None, None]
            )
        of_gain, of_basal, of_norm = _of_factors(of_factor, upstream, gain, basal, norm, factor)
        of_scores.addcmul_(scores * square[:, None, :, None], 2 * of_norm[..., None])
        return of_scores, of_amount, of_gain, of_basal, None, None, None


class _Together(torch.autograd.Function):
    """Attention (tables.shared_scores.OneNumber) and the penalty by kernels, with one gradient of
    the scores.
    """

    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        amount: Tensor,
        multiplicity: Tensor,
        centre: Tensor,
        gain: Tensor,
        basal: Tensor,
        square: Tensor,
        penalty: Tensor,
        prior: Tensor | None,
        groups: Sequence[int],
    ) -> tuple[Tensor, Tensor]:
        tables, slopes = _kernels()
        scores, amount, square = (each.contiguous() for each in (scores, amount, square))
        prior = None if prior is None else prior.to(scores.dtype).contiguous()
        least = torch.finfo(scores.dtype).tiny
        with torch.cuda.device_of(scores):  # on which kernels start
            out, inverse, norm = tables.forward(
                scores, amount, multiplicity, centre, basal, least, groups, square
            )
            norm = norm.add_(basal.square()[:, :, None]).clamp_(min=least)
            factor = gain[:, :, None] * norm.rsqrt()  # [P, H, S, N]
            penalty = _in_range(penalty, len(scores))
            value, of_slopes, of_factor = slopes.value(scores, amount, factor, penalty, prior)
        ctx.groups = groups
        ctx.save_for_backward(
            *(scores, amount, multiplicity, centre, gain, basal, square),
            *(out, inverse, norm, factor, of_slopes, of_factor),
        )
        return out, value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor, of_value: Tensor) -> tuple[Tensor | None, ...]:
        scores, amount, multiplicity, centre, gain, basal, square, *kept = ctx.saved_tensors
        out, inverse, norm, factor, of_slopes, of_factor = kept
        of_sums = upstream * inverse
        bend = (of_sums * out).mul_(inverse).neg_()
        of_gain, of_basal, of_norm = _of_factors(of_factor, of_value, gain, basal, norm, factor)
        of_basal += basal * bend.sum(-2)
        slopes = square, of_slopes, factor * of_value[:, None, None, None], of_norm
        of_tables = _kernels()[0].backward(
            scores, amount, multiplicity, centre, of_sums, bend, ctx.groups, slopes
        )
        return *of_tables, None, None, of_gain, of_basal, None, None, None, None


def _kernels() -> list[Any]:
    """Return the kernels of attention and the kernel of the penalty."""
    return [
        importlib.import_module(f"flashsign.triton.{name}")
        for name in ("shared_scores", "slope_penalty")
    ]


def _in_range(penalty: Tensor, members: int) -> Tensor:
    """Return lambda, rho and t of each member, [P, 3]; a t of 0, the penalty of ridge regression,
    stays 0.
    """
    lam, rho, t = penalty.expand(members, -1).unbind(1)
    return torch.stack(
        [lam, rho.clamp(min=LEAST_RHO), torch.where(t > 0, t.clamp(min=LEAST_T), 0)], 1
    )


def _of_factors(
    of_factor: Tensor, upstream: Tensor, gain: Tensor, basal: Tensor, norm: Tensor, factor: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return gradients of gain, basal and n^2, from that of the factors g / n for an `upstream` of
    1.
    """
    change = of_factor * upstream[:, None, None, None] * factor
    of_norm = -0.5 * change / norm  # [P, H, S, N]
    return change.sum(2) / gain, 2 * basal * of_norm.sum(2), of_norm


def kernel_problem(room: int, heads: int, device: torch.device) -> str:
    """Return what is wrong with the kernels of states that fill `room`, "" where nothing is.

    Values and gradients are compared with float64, with a prior and without; what is wrong is the
    end of a sentence.
    """
    for number, (queries, keys) in enumerate(CHECKED if device.type == "cuda" else INTERPRETED):
        # Backward, where the slopes are no bag, a tile has room for half as many where so many are
        # enough.
        groups = [room // 2, 1, 0] if number % 2 and room > 16 else [room - 1, 1, 0]
        given = tables_to_check(queries, keys, groups, heads, device)
        results = [
            _checked_results(number % 2 == 0, by, groups, given) for by in (_Together, OneNumber)
        ]
        of = "scores", "amounts", "gains", "basal scores"
        names = "output", "penalty", *(f"gradient of {name}" for name in of)
        if problem := largest_error(names, results[0], results[1], ALLOWED):
            return f"{problem} for {queries} queries and {keys} keys"
    return ""


def _checked_results(
    prior: bool, by: Any, groups: Sequence[int], given: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Return attention, penalty and gradients of tables_to_check.

    by _Together, the kernels, in float32, or by torch in float64.
    """
    dtype = torch.float32 if by is _Together else torch.float64
    scores, amount, m, centre, basal, upstream = (each.to(dtype) for each in given)
    amount, gain, square = amount.abs() + 0.1, basal.abs() + 0.1, centre[:, 0].square() + 0.1
    divided = scores[0, 0, 0].abs() + 0.2 if prior else None
    penalty = torch.tensor([[0.3, 0.5, 0.4], [0.7, 2.0, 0.0]], dtype=dtype, device=scores.device)
    scores, amount, gain, basal = leaves = [
        each.detach().requires_grad_() for each in (scores, amount, gain, basal)
    ]
    if by is _Together:
        known = scores, amount, m, centre, gain, basal, square, penalty, divided, groups
        out, value = _Together.apply(*known)  # type: ignore[no-untyped-call]
    else:
        least = torch.finfo(dtype).tiny
        out = OneNumber.apply(scores, amount, m, centre, basal, least, groups, InTorch)  # type: ignore[no-untyped-call]
        value = _SlopePenalty.apply(scores, amount, gain, basal, square, penalty, divided)  # type: ignore[no-untyped-call]
    gradients = torch.autograd.grad((out, value), leaves, (upstream, torch.ones_like(value)))
    return out.detach(), value.detach(), *gradients
