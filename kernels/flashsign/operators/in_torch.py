"""Attention in torch: of calls that no kernel takes, for derivatives that no kernel has, and in a
kernel's place.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from flashsign.attention.call import AttentionCall, heads_first, rows_first
from flashsign.eager.dense import dense_attention
from flashsign.eager.packing import packed_attention
from flashsign.eager.transforms import transformed
from flashsign.tuning.costs import torch_method

Method = Literal["stream", "moments"]


def chosen_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    multiplicity: Tensor,
    eps: float,
    asked: Literal["auto", "stream", "moments"],
) -> Tensor:
    """Compute a dense call (flashsign.eager.dense) by the method that was asked for, or by the one
    with less work.
    """
    queries = q.shape[1] // k.shape[1] * q.shape[2]
    method = torch_method(asked, queries, k.shape[2], q.shape[3], transformed())
    return dense_attention(q, k, v, multiplicity, eps, method)


def attention(method: Method, call: AttentionCall) -> Tensor:
    """Return o [C', H, N, V] in q's dtype; differentiable in any mode and order."""
    q = call.q
    k = call.k
    v = call.v
    m = call.m
    offsets = call.offsets
    query_offsets = call.query_offsets
    sums = torch.promote_types(q.dtype, torch.float32)

    def dense(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        return dense_attention(q.to(sums), k.to(sums), v.to(sums), m.to(sums), call.eps, method).to(
            q.dtype
        )

    if offsets is None or query_offsets is None:
        return dense(q, k, v, m)
    rows = (rows_first(q), rows_first(k), rows_first(v), m[0].mT)
    return heads_first(packed_attention(dense, *rows, offsets, query_offsets))


def gradients(method: Method, call: AttentionCall, grad: Tensor) -> tuple[Tensor, ...]:
    """Return dq, dk, dv like q, k, v, and dm [C', K, M] of every key head, for grad of o; o is
    computed again.
    """
    with torch.enable_grad():
        given = (call.q, call.k, call.v, call.m.expand(call.k.shape[:3]))
        q, k, v, m = leaves = [x.detach().requires_grad_() for x in given]
        return torch.autograd.grad(attention(method, call.with_(q=q, k=k, v=v, m=m)), leaves, grad)
