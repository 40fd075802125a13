"""Gene parallelism in torch: spherical attention over bags whose genes are split over processes.

The processes exchange the moments of their keys, never the keys.

Letters: C cells, H query heads, K key heads, N queries and M keys of this rank, E head width, V that of values; packed:
T queries and S keys of this rank. B = C K bags of one key head, B' of them in a part.
Equations: kernels/README.md, "Moments" and "Gene parallelism". Source: spherical attention, arXiv 2505.09326.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed

from flashsign.distributed.local_sums import Part, Rows, attend, in_a_unit, key_gradients, key_sums, query_gradients
from flashsign.eager.moments import Moments
from flashsign.eager.packing import groups_of_bags, unpad_in_order
from flashsign.eager.transforms import in_batches, transformed

ONE_DERIVATIVE = (
    "Attention with group= can be differentiated once, in reverse, because any other derivative would need collectives "
    "of its own: for forward mode, torch.func, batched and second derivatives, call it without a group."
)


def check_group(group: distributed.ProcessGroup) -> None:
    """Raises ValueError in a process outside of the group, NotImplementedError under forward mode and torch.func."""
    if distributed.get_rank(group) < 0:
        raise ValueError("This process is not in the group: only ranks of the group may call attention with it.")
    if transformed():
        raise NotImplementedError(ONE_DERIVATIVE)


def sum_over_ranks(sums: Tensor, group: distributed.ProcessGroup) -> None:
    """Adds up sums over all ranks, in place. Without bags there are none, on any rank, and no collective is made."""
    if sums.numel():
        distributed.all_reduce(sums, group=group)


def gene_parallel_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    multiplicity: Tensor,
    offsets: Tensor | None,
    query_offsets: Tensor | None,
    eps: float,
    group: distributed.ProcessGroup,
) -> Tensor:
    """Spherical attention of this rank's queries to the keys of all ranks of `group`.

    Dense: q [C, H, N, E], k [C, K, M, E], v [C, K, M, V], multiplicity [C, M] or [C, K, M] -> [C, H, N, V]. Packed:
    every rank passes all C bags, each with this rank's rows of it: q [T, H, E], k [S, K, E], v [S, K, V], multiplicity
    [S] or [S, K], offsets and query_offsets [C + 1], which cut this rank's rows (else ShapeMismatch) -> [T, H, V]. V is
    at most E. One dtype, float32 or float64. N and M (T and S) are this rank's own. C, H, K, E, V and eps must be the
    same on all ranks; that is not checked, as it would cost a collective. Rules and errors: gene_parallel_moments.
    """
    width = v.shape[-1]
    if offsets is None or query_offsets is None:
        part = Part.of(torch.arange(len(q), device=q.device), q, k, v, multiplicity)
        return gene_parallel_moments([part], len(part.bags), eps, group)[0].reshape(*q.shape[:-1], width)
    similar = list(groups_of_bags(offsets, query_offsets, len(k), len(q)))
    parts = [Part.of(some.bags, *some.dense(q, k, v, multiplicity)) for some in similar]
    # Ranks group the same bags differently, so the collective is made for all bags at once and not part by part.
    found = gene_parallel_moments(parts, (len(offsets) - 1) * k.shape[1], eps, group)
    forms = [(len(some.bags), q.shape[1], some.queries.row.shape[1], width) for some in similar]
    outputs = (output.reshape(form) for output, form in zip(found, forms, strict=True))
    return unpad_in_order(zip(similar, outputs, strict=True), q, width)


def gene_parallel_moments(
    parts: Sequence[Part], bags: int, eps: float, group: distributed.ProcessGroup
) -> tuple[Tensor, ...]:
    """Outputs [B', N, V] of every part's queries, from the moments of the keys of all ranks.

    One all-reduce (sum) of [B, E, V + E] in float64 forward, (A, G), and one backward, (dA, 2 dG): nothing else
    travels. In float64 the moments of float32 keys fit in any unit of multiplicity (a float32's fourth power does), so
    ranks need not agree on a unit beforehand: it is computed from the total trace. Ill-conditioned rows are computed
    from the float64 moments too, as streaming them would need the keys of other ranks.

    Gradients are those of the sum of all ranks' losses with respect to this rank's tensors. Where several ranks use one
    parameter, each gets a part of its gradient, and the caller sums the parts over the group (does not average them).

    Every rank of the group makes the same calls in the same order, and the same backward passes through them:
    `backward()`, or `autograd.grad` with respect to at least one of its q, k, v, multiplicity. That holds for a rank
    without genes and for one whose tensors need no gradient, because the gradients of others need its queries and its
    part in the collective. For this reason the output always requires a gradient where gradients are enabled. If a rank
    makes no call or raises, the others wait until the group's timeout.

    Raises ValueError outside of the group, NotImplementedError for any derivative but the first in reverse.
    """
    check_group(group)
    if not parts:
        return ()
    # Without an input that requires a gradient, this rank would have no backward and be missing in its collective.
    anchor = torch.zeros((), requires_grad=torch.is_grad_enabled())
    tensors = [tensor for part in parts for tensor in part[1:]]
    outputs: tuple[Tensor, ...] = _GeneParallelMoments.apply(  # type: ignore[no-untyped-call]
        anchor, [part.bags for part in parts], bags, eps, group, *tensors
    )
    return outputs


class _GeneParallelMoments(torch.autograd.Function):
    """One node of the graph for all parts and tensors of a call, so that its backward runs once for any of them."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        bags_of_parts: list[Tensor],
        bags: int,
        eps: float,
        group: distributed.ProcessGroup,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        parts = [Part(part_bags, *four) for part_bags, four in zip(bags_of_parts, _fours(tensors), strict=True)]
        width, values = parts[0].q.shape[-1], parts[0].v.shape[-1]
        sums = tensors[0].new_zeros(bags, width, values + width, dtype=torch.float64)
        for part in parts:
            sums[part.bags] = key_sums(part)
        sum_over_ranks(sums, group)
        unit, total = in_a_unit(sums)
        found = [attend(part.q, _pick(total, part.bags), eps) for part in parts]
        outputs, inverses, ctx.ill_conditioned = zip(*found, strict=True)
        ctx.save_for_backward(*tensors, *bags_of_parts, *outputs, *inverses, unit, *total)
        ctx.eps, ctx.group, ctx.count = eps, group, len(parts)
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled() or transformed() or any(map(in_batches, grads)):
            raise NotImplementedError(ONE_DERIVATIVE)
        count, saved = ctx.count, ctx.saved_tensors  # read once: checkpointing allows no more
        tensors, rest = saved[: 4 * count], saved[4 * count :]
        bags_of_parts, outputs, inverses = (rest[i * count : (i + 1) * count] for i in range(3))
        unit, total = rest[-3], Moments(*rest[-2:])
        parts = [Part(part_bags, *four) for part_bags, four in zip(bags_of_parts, _fours(tensors), strict=True)]
        with torch.autocast(unit.device.type, enabled=False):
            sums, d_queries = torch.zeros_like(torch.cat(total, -1)), []
            for part, grad, o, inverse, ill_conditioned in zip(
                parts, grads, outputs, inverses, ctx.ill_conditioned, strict=True
            ):
                rows, own = Rows(grad, part.q, o, inverse), _pick(total, part.bags)
                d_q, sums[part.bags] = query_gradients(rows, ill_conditioned, own, ctx.eps)
                d_queries.append(d_q)
            sum_over_ranks(sums, ctx.group)
            wanted = ctx.needs_input_grad[-4 * count :][3::4]
            d_keys = [
                key_gradients(part, sums[part.bags], unit[part.bags], wants_m)
                for part, wants_m in zip(parts, wanted, strict=True)
            ]
        found = (d for d_q, d_k in zip(d_queries, d_keys, strict=True) for d in (d_q, *d_k))
        return None, None, None, None, None, *found


def _pick(total: Moments, bags: Tensor) -> Moments:
    return Moments(total.a[bags], total.g[bags])


def _fours(tensors: Sequence[Tensor]) -> list[Sequence[Tensor]]:
    """q, k, v and m of every part, from the flat list of all tensors."""
    return [tensors[i : i + 4] for i in range(0, len(tensors), 4)]
