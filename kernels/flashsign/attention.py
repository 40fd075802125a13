"""The public door: checks a call, turns its form into the one that the mathematics has, and picks the road.

Letters: C cells (bags), H query heads, K key heads (H a multiple of K), N queries, M keys, E head width;
packed: T queries and S keys of all bags together. B = C K bags of one key head, R = H / K query heads of a group.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
from torch import Tensor, distributed

from flashsign.dispatch import kernel_attention, no_kernel
from flashsign.distributed.moments import split_attention
from flashsign.eager.dense import Method, dense_attention
from flashsign.eager.packing import pad_attention
from flashsign.errors import BackendUnavailable
from flashsign.validation import check_packing, check_tensors

Backend = Literal["auto", "triton", "torch"]


def spherical_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    multiplicity: Tensor | None = None,
    *,
    offsets: Tensor | None = None,
    query_offsets: Tensor | None = None,
    eps: float = 1e-6,
    method: Method = "auto",
    backend: Backend = "auto",
    group: distributed.ProcessGroup | None = None,
) -> Tensor:
    """Attention over bags, normalised by an L2 norm instead of a softmax, so that weights keep their sign.

    s_ij = m_j (q_i . k_j),  o_i = sum_j s_ij v_j / sqrt(sum_j s_ij^2 + eps |q_i|^2 sum_j m_j^2 |k_j|^2 + tiny)

    Dense: q [C, H, N, E], k and v [C, K, M, E], multiplicity [C, M] or [C, K, M] -> [C, H, N, E].
    Packed: q [T, H, E], k and v [S, K, E], multiplicity [S] or [S, K] -> [T, H, E]; bag c owns the keys
    offsets[c]:offsets[c + 1] and the queries query_offsets[c]:query_offsets[c + 1] (by default the same offsets).
    Offsets are int32 or int64, and looked at once: new ones come as a new tensor, or are written by torch's operations.

    q, k, v share one floating dtype, which the output has; sums are float32 at least. multiplicity: not negative,
    by default all ones; 0 is a key that is absent, whatever its k and v hold (NaN too). Its derivative with
    respect to multiplicity is the true one unless its k or v are not finite, then 0.
    Differentiable in q, k, v, multiplicity, in reverse, forward and batched mode and more than once.

    method: "moments" is linear in N and M; "stream" passes over the keys; "auto" takes the faster one.
    backend: "triton" is the GPU kernels (float16, bfloat16, float32; k, v and scores q.k m / max m at most a quarter of
    the dtype's largest number; heads of up to 128 by moments, 256 by the stream; up to 65 535 bags times key heads);
    "torch" runs anywhere; "auto" takes the kernels where they can run. Forward mode and transforms take torch.
    group: ranks that hold each bag's genes between them, each its own q, k, v, multiplicity, any number of genes, also
    none; each gets its own queries' outputs (moments; kernels take 16 bits alone). All its ranks must call and
    differentiate alike, once, in reverse, and the caller sums the gradients of shared parameters
    (flashsign.distributed.moments). None: no other ranks.
    Raises ShapeMismatch (tensors that do not fit), BackendUnavailable, ValueError (an unknown method or backend, or one
    that knows no group), NotImplementedError (with a group: anything but one derivative in reverse), UnusableTiles (the
    file that FLASHSIGN_TILES names: flashsign.autotune).
    Source: spherical attention, arXiv 2505.09326.
    """
    if method not in ("auto", "stream", "moments"):
        raise ValueError(f"method is auto, stream or moments, not {method!r}.")
    if backend not in ("auto", "triton", "torch"):
        raise ValueError(f"backend is auto, triton or torch, not {backend!r}.")
    if group is not None and (method == "stream" or backend == "triton"):
        found = 'method="stream"' if method == "stream" else 'backend="triton"'
        raise ValueError(f"{found} cannot read other ranks' genes: with a group, leave method and backend at auto.")
    packed = offsets is not None
    check_tensors(q, k, v, multiplicity, packed)
    offsets, query_offsets = check_packing(q, k, offsets, query_offsets)
    bags = len(q) if offsets is None else len(offsets) - 1
    if backend == "triton":
        reason = no_kernel(q, method, bags * k.shape[1])
        if reason:
            raise BackendUnavailable(f'{reason}: use backend="auto" or "torch".')
    if multiplicity is None:
        multiplicity = k.new_ones(k.shape[:1] if packed else (k.shape[0], k.shape[2]))
    kernels = backend == "triton" or (backend == "auto" and q.is_cuda and not no_kernel(q, method, bags * k.shape[1]))
    if kernels and group is None and bags and q.numel() and k.numel():
        return kernel_attention(q, k, v, multiplicity, offsets, query_offsets, eps, method)
    # All ranks must take one road: it depends on nothing that they may have in different numbers.
    if kernels and group is not None and q.element_size() == 2 and not no_kernel(q, "moments") and bags:
        return kernel_attention(q, k, v, multiplicity, offsets, query_offsets, eps, "moments", group)
    # Sums of thousands of squares need more than the 8 or 11 bits of half precision, under autocast too.
    with torch.autocast(q.device.type, enabled=False):
        sums = torch.promote_types(q.dtype, torch.float32)
        wide = (q.to(sums), k.to(sums), v.to(sums), multiplicity.to(sums))
        if group is not None:
            return split_attention(*wide, offsets, query_offsets, eps, group).to(q.dtype)
        if offsets is None or query_offsets is None:
            return dense_attention(*wide, eps, method).to(q.dtype)
        dense = partial(dense_attention, eps=eps, method=method)
        return pad_attention(dense, *wide, offsets, query_offsets).to(q.dtype)
