"""The operators' attention in torch, in their layout: for derivatives that no kernel has, and in a kernel's place."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from flashsign.eager.dense import dense_attention
from flashsign.eager.packing import packed_attention
from flashsign.operators.layout import heads_first, multiplicity_rows_first, rows_first

Method = Literal["stream", "moments"]


def attention(
    method: Method,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    m: Tensor,
    offsets: Tensor | None,
    query_offsets: Tensor | None,
    eps: float,
) -> Tensor:
    """q [C', H, N, E], k and v [C', K, M, E], m [C', 1 or K, M] -> o like q; differentiable in any mode and order."""
    sums = torch.promote_types(q.dtype, torch.float32)

    def dense(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        return dense_attention(q.to(sums), k.to(sums), v.to(sums), m.to(sums), eps, method).to(q.dtype)

    if offsets is None or query_offsets is None:
        return dense(q, k, v, m)
    rows = (rows_first(q), rows_first(k), rows_first(v), multiplicity_rows_first(m))
    return heads_first(packed_attention(dense, *rows, offsets, query_offsets))


def gradients(
    method: Method,
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    m: Tensor,
    offsets: Tensor | None,
    query_offsets: Tensor | None,
    eps: float,
) -> tuple[Tensor, ...]:
    """dq, dk, dv like q, k, v, and dm [C', K, M] of every key head, for grad of o; o is computed again."""
    with torch.enable_grad():
        q, k, v, m = leaves = [x.detach().requires_grad_() for x in (q, k, v, m.expand(k.shape[:3]))]
        return torch.autograd.grad(attention(method, q, k, v, m, offsets, query_offsets, eps), leaves, grad)
