"""Attention over bags whose genes are split over GPUs, by the moments' kernels, for 16-bit numbers.

The passes over keys and over queries are those of one device. Between them the ranks add up the sums of their keys, and
in the backward those of their queries. Ill-conditioned rows would have to be streamed over keys of other ranks: if any
rank has such a row, which random queries never are, the call is made again by the high-precision path, from float64
moments (distributed.moments).
Letters: C' cells, or 1 where bags are packed, H query heads, K key heads, N queries and M keys of this rank, E head
width, V that of values, E' and V' the padded widths; B bags times key heads. Layout: flashsign.call. Equations:
kernels/README.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, distributed

from flashsign.call import AttentionCall, heads_first, rows_first
from flashsign.dispatch import Plan
from flashsign.distributed.local_sums import in_a_unit
from flashsign.distributed.moments import ONE_DERIVATIVE, check_group, gene_parallel_attention
from flashsign.eager.transforms import in_batches
from flashsign.operators.attention import known_problem

if TYPE_CHECKING:
    from flashsign.triton.moments.calls import IllConditionedRows, MatrixPair, Passes


def gene_parallel_kernel_attention(call: AttentionCall, group: distributed.ProcessGroup) -> Tensor:
    """Outputs of this rank's queries, [C', H, N, V].

    Two all-reduces forward, of float64 moments [B, E', V' + E'] and of one number, and one backward, of float32
    [B, E' V' + E'^2 + 1]. There must be at least one bag. Rules and errors: distributed.moments.gene_parallel_moments.
    """
    check_group(group)
    # As in gene_parallel_moments: a rank whose tensors need no gradient takes part in the backward's collective too.
    anchor = torch.zeros((), requires_grad=torch.is_grad_enabled())
    output: Tensor
    tensors = call.q, call.k, call.v, call.m, call.offsets, call.query_offsets
    output, any_ill_conditioned = _GeneParallelKernels.apply(anchor, group, call.eps, *tensors)  # type: ignore[no-untyped-call]
    return high_precision_attention(call, group) if any_ill_conditioned else output


_AGREED: WeakKeyDictionary[distributed.ProcessGroup, dict[tuple[object, ...], bool]] = WeakKeyDictionary()


def kernels_of_all_ranks_are_right(call: AttentionCall, group: distributed.ProcessGroup) -> bool:
    """Whether the kernels may run on every rank: one decision, asked of all ranks until each of them knows.

    An all-reduce of two numbers at the first call of a dtype, a width of heads and one of values, and at the next ones
    while a rank's kernels are being checked (operators.verify).
    """
    check_group(group)
    agreed = _AGREED.setdefault(group, {})
    kind = call.q.dtype, call.q.shape[-1], call.v.shape[-1]
    if kind not in agreed:
        problem = known_problem(Plan("triton_moments"), call)
        votes = torch.tensor([problem is None, bool(problem)], device=call.q.device, dtype=torch.int32)
        distributed.all_reduce(votes, group=group)
        unknown, wrong = votes.tolist()
        if unknown and not wrong:
            return False
        agreed[kind] = not wrong
    return agreed[kind]


def high_precision_attention(call: AttentionCall, group: distributed.ProcessGroup) -> Tensor:
    """The same call in torch, from float64 moments -> [C', H, N, V]."""
    q, k, v, m = call.q, call.k, call.v, call.m.expand(-1, call.k.shape[1], -1)
    if not call.packed:
        return gene_parallel_attention(q.float(), k.float(), v.float(), m, None, None, call.eps, group).to(q.dtype)
    rows = (rows_first(q).float(), rows_first(k).float(), rows_first(v).float(), m[0].mT)
    return heads_first(gene_parallel_attention(*rows, call.offsets, call.query_offsets, call.eps, group)).to(q.dtype)


class _GeneParallelKernels(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, group: distributed.ProcessGroup, eps: float, *tensors: Any
    ) -> tuple[Tensor, bool]:
        from flashsign.triton.common.layout import aligned_call
        from flashsign.triton.moments.calls import Passes

        q, k, v, m, offsets, query_offsets = tensors
        call = AttentionCall(q, k, v, m, offsets, query_offsets, eps)
        passes = Passes(aligned_call(call))
        o, inverse, lists = call.empty_output(), call.empty_rows(), passes.empty_lists()
        moments = all_keys(passes, passes.sum_keys(lists), lists, group)
        passes.attend_moments(moments, o, inverse, lists)
        count = lists.row_count.sum()
        distributed.all_reduce(count, group=group)
        ctx.save_for_backward(*tensors, o, inverse, *moments)
        ctx.eps, ctx.group = eps, group
        return o, bool(count)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: None) -> tuple[Tensor | None, ...]:
        from flashsign.triton.common.layout import aligned, aligned_call
        from flashsign.triton.moments.calls import MatrixPair, Passes

        if torch.is_grad_enabled() or in_batches(grad):
            raise NotImplementedError(ONE_DERIVATIVE)
        check_group(ctx.group)
        q, k, v, m, offsets, query_offsets, o, inverse, sums, totals = ctx.saved_tensors
        call = AttentionCall(q, k, v, m, offsets, query_offsets, ctx.eps)
        passes, grad, moments = Passes(aligned_call(call)), aligned(grad), MatrixPair(sums, totals)
        dq, dk, dv, dm = call.empty_gradients()
        lists, delta = passes.empty_lists(), torch.empty_like(inverse)
        own = passes.sum_queries(grad, o, inverse, moments, delta, lists)
        gradients = all_queries(passes, own, lists, ctx.group)
        passes.key_gradients(gradients, moments, dk, dv, dm)
        passes.query_gradients(grad, inverse, delta, moments, gradients, dq, lists)
        shared = call.m.shape[1] == 1 < dm.shape[1]
        wanted = (dm.sum(1, keepdim=True) if shared else dm) if ctx.needs_input_grad[6] else None
        return None, None, None, dq, dk, dv, wanted, None, None


def all_keys(passes: Passes, own: MatrixPair, lists: IllConditionedRows, group: distributed.ProcessGroup) -> MatrixPair:
    """A and G of all ranks' keys. Each rank's own sums are in a unit of their own, which is taken out first."""
    scale, width, values = own.totals[:, 0, :1, None].double(), passes.call.width, passes.call.value_width
    a, g = own.sums.tensor_split((width * values,), -1)
    sums = torch.cat((a.reshape(-1, width, values) / scale, g.reshape(-1, width, width) / scale**2), -1)
    distributed.all_reduce(sums, group=group)
    unit, total = in_a_unit(sums)
    parts = torch.cat([matrix.flatten(1) for matrix in total], -1)[None].float()
    return passes.add(parts, unit.reshape(1, -1).float(), lists, scaled=True)


def all_queries(
    passes: Passes, own: MatrixPair, lists: IllConditionedRows, group: distributed.ProcessGroup
) -> MatrixPair:
    """dA and 2 dG of all queries, in a unit that all ranks share, and whether any rank needs high precision."""
    sums = torch.cat((own.sums, own.totals[:, 0, :1]), 1)
    distributed.all_reduce(sums, group=group)
    parts, high_precision = sums[None, :, :-1].contiguous(), sums[:, -1:].mT
    return passes.add(parts, high_precision.contiguous(), lists, scaled=False)
