"""Attention over bags whose genes are split over GPUs, by the moments' kernels, for 16-bit numbers.

The passes over keys and over queries are those of one device. Between them the ranks add up the sums of their keys, and
in the backward those of their queries. Ill-conditioned rows would have to be streamed over keys of other ranks: if any
rank has such a row, which random queries never are, the call is made again by the high-precision path, from float64
moments (distributed.moments).
Letters: C' cells, or 1 where bags are packed, H query heads, K key heads, N queries and M keys of this rank, E head
width, E' the padded width; B bags times key heads. Layout: triton.moments.calls. Equations: kernels/README.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed

from flashsign.distributed.group import ONE_DERIVATIVE, check_member, refuse_transforms
from flashsign.distributed.local_sums import in_a_unit
from flashsign.distributed.moments import gene_parallel_attention
from flashsign.eager.transforms import in_batches
from flashsign.operators.layout import heads_first, multiplicity_rows_first, rows_first

if TYPE_CHECKING:
    from flashsign.triton.moments.calls import Call, IllConditionedRows, MatrixPair


def gene_parallel_kernel_attention(
    q: Tensor, k: Tensor, v: Tensor, m: Tensor,
    offsets: Tensor | None, query_offsets: Tensor | None, eps: float, group: distributed.ProcessGroup,
) -> Tensor:  # fmt: skip
    """Outputs of this rank's queries, like q [C', H, N, E]; k, v [C', K, M, E], m [C', 1 or K, M] float32.

    Two all-reduces forward, of float64 moments [B, E', 2 E'] and of one number, and one backward, of float32
    [B, 2 E'^2 + 1]. There must be at least one bag. Rules and errors: distributed.moments.gene_parallel_moments.
    """
    check_member(group)
    refuse_transforms()
    # As in gene_parallel_moments: a rank whose tensors need no gradient takes part in the backward's collective too.
    anchor = torch.zeros((), requires_grad=torch.is_grad_enabled())
    output: Tensor
    output, any_ill_conditioned = _GeneParallelKernels.apply(  # type: ignore[no-untyped-call]
        anchor, q, k, v, m, offsets, query_offsets, eps, group
    )
    return high_precision_attention(q, k, v, m, offsets, query_offsets, eps, group) if any_ill_conditioned else output


def high_precision_attention(
    q: Tensor, k: Tensor, v: Tensor, m: Tensor,
    offsets: Tensor | None, query_offsets: Tensor | None, eps: float, group: distributed.ProcessGroup,
) -> Tensor:  # fmt: skip
    """The same call in torch, from float64 moments; tensors as above -> like q."""
    if offsets is None:
        wide = (q.float(), k.float(), v.float(), m.expand(-1, k.shape[1], -1))
        return gene_parallel_attention(*wide, None, None, eps, group).to(q.dtype)
    rows = (rows_first(q).float(), rows_first(k).float(), rows_first(v).float())
    m = multiplicity_rows_first(m).expand(-1, k.shape[1])
    return heads_first(gene_parallel_attention(*rows, m, offsets, query_offsets, eps, group)).to(q.dtype)


class _GeneParallelKernels(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, q: Tensor, k: Tensor, v: Tensor, m: Tensor,
        offsets: Tensor | None, query_offsets: Tensor | None, eps: float, group: distributed.ProcessGroup,
    ) -> tuple[Tensor, bool]:  # fmt: skip
        from flashsign.triton.common.layout import aligned
        from flashsign.triton.moments.calls import Call

        call = Call(aligned(q), aligned(k), aligned(v), m, offsets, query_offsets, eps)
        o = torch.empty_like(q)
        inverse = torch.empty(q.shape[:3], device=q.device, dtype=torch.float32)
        lists = call.empty_lists()
        moments = all_keys(call, call.sum_keys(lists), lists, group)
        call.attend_moments(moments, o, inverse, lists)
        count = lists.counts.sum()
        distributed.all_reduce(count, group=group)
        ctx.save_for_backward(q, k, v, m, o, inverse, *moments, offsets, query_offsets)
        ctx.eps, ctx.group = eps, group
        return o, bool(count)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: None) -> tuple[Tensor | None, ...]:
        from flashsign.triton.common.layout import aligned
        from flashsign.triton.moments.calls import Call, MatrixPair

        if torch.is_grad_enabled() or in_batches(grad):
            raise NotImplementedError(ONE_DERIVATIVE)
        refuse_transforms()
        q, k, v, m, o, inverse, sums, totals, offsets, query_offsets = ctx.saved_tensors
        call = Call(aligned(q), aligned(k), aligned(v), m, offsets, query_offsets, ctx.eps)
        grad, moments = aligned(grad), MatrixPair(sums, totals)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        dm = torch.empty(k.shape[:3], device=k.device, dtype=torch.float32)
        lists, delta = call.empty_lists(), torch.empty_like(inverse)
        own = call.sum_queries(grad, o, inverse, moments, delta, lists)
        gradients = all_queries(call, own, lists, ctx.group)
        call.key_gradients(gradients, moments, dk, dv, dm)
        call.query_gradients(grad, inverse, delta, moments, gradients, dq, lists)
        shared = m.shape[1] == 1 < dm.shape[1]
        wanted = (dm.sum(1, keepdim=True) if shared else dm) if ctx.needs_input_grad[4] else None
        return None, dq, dk, dv, wanted, None, None, None, None


def all_keys(call: Call, own: MatrixPair, lists: IllConditionedRows, group: distributed.ProcessGroup) -> MatrixPair:
    """A and G of all ranks' keys. Each rank's own sums are in a unit of their own, which is taken out first."""
    scale = own.totals[:, 0, :1, None].double()
    sums = torch.cat((own.sums[:, 0] / scale, own.sums[:, 1] / scale**2), -1)
    distributed.all_reduce(sums, group=group)
    unit, total = in_a_unit(sums)
    return call.add(torch.stack(total, 1)[None].float(), unit.reshape(1, -1).float(), lists, scaled=True)


def all_queries(call: Call, own: MatrixPair, lists: IllConditionedRows, group: distributed.ProcessGroup) -> MatrixPair:
    """dA and 2 dG of all ranks' queries, in a unit that all ranks share, and whether any rank needs high precision."""
    high_precision = own.totals[:, 0, :1]
    sums = torch.cat((own.sums.flatten(1), high_precision), 1)
    distributed.all_reduce(sums, group=group)
    parts, high_precision = sums[:, :-1].contiguous().reshape(1, *own.sums.shape), sums[:, -1:].mT
    return call.add(parts, high_precision.contiguous(), lists, scaled=False)
