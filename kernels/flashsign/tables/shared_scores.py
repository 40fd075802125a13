"""Spherical attention whose scores are the same for every bag: a table of genes, not a function of
the cell.

    s_ij = q_i . k_j                     given as a table, [N, M], or as one for each group of bags
    n_ci = sqrt(b_i^2 + sum_j (m_cj s_ij)^2 + eps)
    o_ci = sum_j (m_cj - c_j) s_ij v_j / n_ci

Where queries and keys belong to genes alone, bags differ by their multiplicities and by nothing
else. Then both sums over the keys are matrix products of multiplicities with a table, and no tensor
has the axes bags x queries x keys.

Letters: C bags, N queries, M keys, E value width, G groups; leading axes are heads, ensemble
members or both.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from flashsign.attention.dispatch import choose_backend
from flashsign.attention.validation import has_values
from flashsign.eager.transforms import transformed, without_autocast
from flashsign.errors import ShapeMismatch
from flashsign.operators.verify import Place, known_at
from flashsign.tuning.accuracy import error
from flashsign.tuning.block_sizes import room_for_bags
from flashsign.tuning.device import facts_of

KERNEL = "attention_by_scores"
"""The name by which the check of a kernel knows those of this file."""
ALLOWED = 4e-5
"""The largest relative error of a right kernel: products are exact to 20 bits, and sums of a
program have 256 terms.
"""
MOST_BAGS = 64
"""The most bags of a table for which the kernels have tiles; torch takes twice as long."""
CHECKED = ((1, 1), (130, 16), (33, 30), (70, 512), (40, 530))
INTERPRETED = ((1, 1), (5, 30), (33, 70))
"""Queries and keys of the tables with which kernels are checked, around the sizes of tiles; the
latter for Triton's interpreter, which is slow.
"""


def attention_by_scores(
    scores: Tensor,
    values: Tensor,
    multiplicity: Tensor,
    *,
    centre: Tensor | None = None,
    basal: Tensor | None = None,
    eps: float = 0.0,
    groups: Sequence[int] | None = None,
) -> Tensor:
    """Compute spherical attention of many bags over one table of scores, or over one for each group
    of bags.

    Args:
        scores: [..., N, M], of every query with every key, for a multiplicity of 1.
        values: [..., M, E], of every key.
        multiplicity: [C, M], the same for all leading axes, or [..., C, M]; 0: the key is absent.
        centre: [..., M], multiplicities whose message is subtracted, under the same norm. None:
            nothing is.
        basal: [..., N], a score b_i of every query that is part of its norm and has no value. None:
            0.
        eps: added under the root.
        groups: sizes of groups of bags that follow one another, C bags in all. Then `scores` are
            [..., G, N, M] and `centre` [..., G, M], those of each group; the other arguments are
            the same for all.

    Returns:
        [..., C, N, E], in the dtype of `scores`.

    Raises:
        ShapeMismatch: keys, queries or groups of two arguments differ in number.

    Source: spherical attention, arXiv 2505.09326, section 3.

    Examples:
        >>> import torch
        >>> from flashsign import attention_by_scores
        >>> scores = torch.tensor([[3.0, -4.0]])
        >>> attention_by_scores(scores, torch.eye(2), torch.ones(1, 2))
        tensor([[[ 0.6000, -0.8000]]])
    """
    queries, keys = scores.shape[-2:]
    multiplicity = (
        multiplicity if multiplicity.is_floating_point() else multiplicity.to(scores.dtype)
    )
    if groups is None:
        groups, scores = [multiplicity.shape[-2]], scores.unsqueeze(-3)
        centre = None if centre is None else centre.unsqueeze(-2)
    refuse_other_tables(scores, values, multiplicity, centre, basal, groups)
    centre = scores.new_zeros(len(groups), keys) if centre is None else centre
    basal = scores.new_zeros(queries) if basal is None else basal
    least = torch.finfo(scores.dtype).tiny  # a query that meets no key reads 0, and not 0 / 0
    if values.shape[-1] == 1:
        given = scores, values[..., 0], multiplicity, centre, basal
        with without_autocast(scores):
            by = _what_computes(*given, groups)
            output: Tensor = OneNumber.apply(*given, max(eps, least), groups, by)  # type: ignore[no-untyped-call]
        return output.unsqueeze(-1)
    read = []
    for group, bags in _bags(groups):
        m, table = multiplicity[..., bags, :], scores[..., group, :, :]
        message = (table.unsqueeze(-2) * values.mT.unsqueeze(-3)).flatten(-3, -2)  # [..., N E, M]
        sums = _products(m, message) - (message @ centre[..., group, :, None]).mT
        squares = _products(m.square(), table.square()) + basal.square().unsqueeze(-2)
        inverse = (squares + eps).clamp(min=least).rsqrt().unsqueeze(-1)
        read.append(sums.reshape(*sums.shape[:-1], queries, values.shape[-1]) * inverse)
    return torch.cat(read, -3)


def refuse_other_tables(
    scores: Tensor,
    values: Tensor,
    multiplicity: Tensor,
    centre: Tensor | None,
    basal: Tensor | None,
    groups: Sequence[int],
) -> None:
    """Raise ShapeMismatch unless keys, queries and groups are as many in each.

    scores [..., G, N, M], centre [..., G, M], the others as for attention_by_scores.
    """
    tables, queries, keys = scores.shape[-3:]
    if values.shape[-2] != keys or multiplicity.shape[-1] != keys:
        raise ShapeMismatch(
            f"scores have {keys} keys, values {values.shape[-2]} and multiplicity "
            f"{multiplicity.shape[-1]}; give each the same number"
        )
    if basal is not None and basal.shape[-1] != queries:
        raise ShapeMismatch(
            f"scores have {queries} queries and basal {basal.shape[-1]}; give both the same number"
        )
    if tables != len(groups):
        raise ShapeMismatch(
            f"there are {len(groups)} groups and {tables} tables of scores; give one for each"
        )
    if centre is not None and centre.shape[-2:] != (tables, keys):
        raise ShapeMismatch(
            f"centre is {list(centre.shape)}; give the {keys} keys of each of {tables} tables of "
            "scores"
        )
    if sum(groups) != multiplicity.shape[-2]:
        raise ShapeMismatch(
            f"groups have {sum(groups)} bags and multiplicity {multiplicity.shape[-2]}; give both "
            "the same number"
        )


def _bags(groups: Sequence[int]) -> Iterator[tuple[int, slice]]:
    """Yield the number and the bags of each group that has any."""
    end = 0
    for group, size in enumerate(groups):
        end += size
        if size:
            yield group, slice(end - size, end)


def _products(multiplicity: Tensor, table: Tensor) -> Tensor:
    """Return products of multiplicity [C, M] or [..., C, M] with a table [..., F, M]:
    [..., C, F].
    """
    if multiplicity.ndim > 2 or table.ndim == 2:
        return multiplicity @ table.mT
    every = multiplicity @ table.flatten(0, -2).mT  # one product for all leading axes
    return every.reshape(len(multiplicity), *table.shape[:-1]).movedim(0, -2)


def _what_computes(
    scores: Tensor,
    values: Tensor,
    multiplicity: Tensor,
    centre: Tensor,
    basal: Tensor,
    groups: Sequence[int],
) -> Any:
    """Return the kernels where they can take a call and are right for it, or InTorch.

    InTorch also has the gradients of multiplicities and centres. values: [..., M].
    """
    others = values.shape[:-1], multiplicity.shape[:-2], centre.shape[:-2], basal.shape[:-1]
    leading = torch.broadcast_shapes(scores.shape[:-3], *others)
    if leading != scores.shape[:-3] or multiplicity.requires_grad or centre.requires_grad:
        return InTorch
    most = max(groups, default=0)
    if choose_for_tables((scores, values, multiplicity, centre, basal), most) == "torch":
        return InTorch
    room = room_for_bags(most)
    place = Place(KERNEL, scores.dtype, room, room, scores.device)
    return (
        _kernels()
        if known_at(place, partial(kernel_problem, room, scores.device)) == ""
        else InTorch
    )


def choose_for_tables(tensors: Sequence[Tensor], bags: int = 0) -> Literal["triton", "torch"]:
    """Return the backend for a table of scores, the first of the tensors; bags: the most of one
    table.

    Whoever calls it also asks whether the kernels are right here (operators.verify).
    """
    scores, *_ = tensors
    if bags > MOST_BAGS or not scores.numel() or not has_values(scores):
        return "torch"
    if any(each.dtype != torch.float32 for each in tensors):
        return "torch"
    return choose_backend("auto", facts_of(scores), torch.float32, in_transform=transformed())[0]


def _kernels() -> Any:
    return importlib.import_module("flashsign.triton.shared_scores")


class OneNumber(torch.autograd.Function):
    """Values of one number multiply the multiplicities, so that no table of messages is made.
    Tables of scores are the largest tensors here, and the backward pass writes their gradient once.

    With u the sums of a bag, f = 1 / n, and G the gradient of o = u f:

        d s = (G f)^T ((m - c) v) + s (h^T m^2),    h = -G u f^3, twice the gradient of n^2
    """

    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        values: Tensor,
        multiplicity: Tensor,
        centre: Tensor,
        basal: Tensor,
        eps: float,
        groups: Sequence[int],
        by: Any,
    ) -> Tensor:
        out: Tensor
        ctx.groups, ctx.by = groups, by
        with torch.cuda.device_of(scores):  # on which kernels start
            out, inverse, *_ = ctx.by.forward(
                scores, values, multiplicity, centre, basal, eps, groups
            )
        ctx.save_for_backward(scores, values, multiplicity, centre, basal, out, inverse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        scores, values, multiplicity, centre, basal, out, inverse = ctx.saved_tensors
        of_sums = upstream * inverse
        bend = (of_sums * out).mul_(inverse).neg_()
        of_basal = (basal * bend.sum(-2)).sum_to_size(basal.shape)
        given = scores, values, multiplicity, centre, of_sums, bend, ctx.groups
        if ctx.by is InTorch:
            return *InTorch.backward(*given, ctx.needs_input_grad[2]), of_basal, None, None, None
        return *ctx.by.backward(*given), None, None, of_basal, None, None, None


class InTorch:
    """The functions of flashsign.triton.shared_scores in torch operations."""

    @staticmethod
    def forward(
        scores: Tensor,
        values: Tensor,
        multiplicity: Tensor,
        centre: Tensor,
        basal: Tensor,
        eps: float,
        groups: Sequence[int],
    ) -> tuple[Tensor, Tensor]:
        """Return o and 1 / n, [..., C, N]."""
        sums, squares = [], []
        for group, bags in _bags(groups):
            m, table = multiplicity[..., bags, :], scores[..., group, :, :]
            sums.append(((m - centre[..., group, None, :]) * values.unsqueeze(-2)) @ table.mT)
            squares.append(_products(m * m, table * table))
        inverse = torch.cat(squares, -2).add_(basal.square().unsqueeze(-2)).add_(eps).rsqrt_()
        return torch.cat(sums, -2).mul_(inverse), inverse

    @staticmethod
    def backward(
        scores: Tensor,
        values: Tensor,
        multiplicity: Tensor,
        centre: Tensor,
        of_sums: Tensor,
        bend: Tensor,
        groups: Sequence[int],
        of_multiplicity: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """Return gradients of scores, values, multiplicity and centre. of_sums, bend [..., C, N]:
        that of u, and h.
        """
        of_scores = torch.empty_like(scores) if all(groups) else torch.zeros_like(scores)
        of_values, of_centre = torch.zeros_like(values), torch.zeros_like(centre)
        of_m = torch.zeros_like(multiplicity) if of_multiplicity else None
        for group, bags in _bags(groups):
            m, table = multiplicity[..., bags, :], scores[..., group, :, :]
            sums, h = of_sums[..., bags, :], bend[..., bags, :]
            change = m - centre[..., group, None, :]
            own = of_scores[..., group, :, :]
            torch.mul(h.mT @ (m * m), table, out=own).add_(
                sums.mT @ (change * values.unsqueeze(-2))
            )
            read = sums @ table  # [..., C, M]
            of_values += (read * change).sum(-2).sum_to_size(values.shape)
            of_change = read * values.unsqueeze(-2)
            of_centre[..., group, :] -= of_change.sum(-2).sum_to_size(
                of_centre[..., group, :].shape
            )
            if of_m is not None:
                of_m[..., bags, :] = (of_change + m * (h @ (table * table))).sum_to_size(m.shape)
        return of_scores, of_values, of_m, of_centre


def kernel_problem(room: int, device: torch.device) -> str:
    """Return what is wrong with the kernels of groups that fill `room`, the end of a sentence, ""
    where nothing is.

    values and gradients are compared with float64.
    """
    for queries, keys in CHECKED if device.type == "cuda" else INTERPRETED:
        groups = [room, 0, room // 2 + 1]
        given = tables_to_check(queries, keys, groups, 2, device)
        results = []
        for by, dtype in ((_kernels(), torch.float32), (InTorch, torch.float64)):
            scores, values, m, centre, basal, upstream = (each.to(dtype) for each in given)
            scores, values, basal = leaves = [
                each.detach().requires_grad_() for each in (scores, values, basal)
            ]
            out = OneNumber.apply(scores, values, m, centre, basal, 1e-3, groups, by)  # type: ignore[no-untyped-call]
            results.append((out.detach(), *torch.autograd.grad(out, leaves, upstream)))
        names = "output", "gradient of scores", "gradient of values", "gradient of basal scores"
        if problem := largest_error(names, results[0], results[1], ALLOWED):
            return f"{problem} for {queries} queries and {keys} keys"
    return ""


def tables_to_check(
    queries: int, keys: int, groups: Sequence[int], heads: int, device: torch.device
) -> tuple[Tensor, ...]:
    """Return numbers of two members.

    scores [2, H, G, N, M], values [2, H, M], multiplicities [2, 1, C, M], centres [2, 1, G, M],
    basal scores [2, H, N] and a gradient for the output [2, H, C, N]; float64, seeded.
    """
    random = torch.Generator().manual_seed(queries + keys)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random).to(device, torch.float64)

    bags = sum(groups)
    m = normal(2, 1, bags, keys).clamp(min=0) + 0.1
    tables = normal(2, heads, len(groups), queries, keys)
    centre = normal(2, 1, len(groups), keys).abs()
    return (
        tables,
        normal(2, heads, keys),
        m,
        centre,
        normal(2, heads, queries) + 1,
        normal(2, heads, bags, queries),
    )


def largest_error(
    names: Sequence[str], found: Sequence[Tensor], true: Sequence[Tensor], allowed: float
) -> str:
    """Return which of the results is off, "" where none is by more than what is allowed."""
    for name, one, other in zip(names, found, true, strict=True):
        off = error(one, other)
        if not off <= allowed:  # NaN, too
            return f"its {name} is off by {off:.2g}, where {allowed:.2g} is allowed,"
    return ""
