"""The public door: checks a call, turns its form into the one that the mathematics has, and picks the road.

Letters: C cells (bags), H query heads, K key heads (H a multiple of K), N queries, M keys, E head width;
packed: T queries and S keys of all bags together. B = C K bags of one key head, R = H / K query heads of a group.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
from torch import Tensor, distributed

from flashsign.dense import Method, dense_attention
from flashsign.errors import BackendUnavailable, ShapeMismatch
from flashsign.kernel_attention import kernel_attention, no_kernel
from flashsign.packing import pad_attention
from flashsign.split_moments import split_attention

Backend = Literal["auto", "triton", "torch"]
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


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
    (flashsign.split_moments). None: no other ranks.
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


def check_tensors(q: Tensor, k: Tensor, v: Tensor, multiplicity: Tensor | None, packed: bool) -> None:
    """Raises ShapeMismatch, with what was found, unless the tensors fit together (forms: spherical_attention)."""
    form, ndim = ("packed", 3) if packed else ("dense", 4)

    def found() -> str:
        return f"found q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"

    if q.ndim != ndim or k.ndim != ndim:
        expected = "q [T, H, E] and k, v [S, K, E]" if packed else "q [C, H, N, E] and k, v [C, K, M, E]"
        hint = "" if packed else " (packed bags come with offsets)"
        raise ShapeMismatch(f"A {form} call{hint} has {expected}; {found()}.")
    if k.shape != v.shape:
        raise ShapeMismatch(f"k and v must have one shape; {found()}.")
    if q.shape[-1] != k.shape[-1]:
        raise ShapeMismatch(f"q and k must have one head width; {found()}.")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ShapeMismatch(f"Query heads must be a multiple of key heads; {found()}.")
    if not packed and q.shape[0] != k.shape[0]:
        raise ShapeMismatch(f"q and k must have the same number of cells; {found()}.")
    if not (q.dtype == k.dtype == v.dtype and q.dtype in DTYPES):
        raise ShapeMismatch(
            f"q, k and v must share one floating dtype; found {q.dtype}, {k.dtype}, {v.dtype} "
            "(float16, bfloat16, float32 and float64 are taken)."
        )
    if not (q.device == k.device == v.device):
        raise ShapeMismatch(f"q, k and v must be on one device; found {q.device}, {k.device}, {v.device}.")
    if multiplicity is None:
        return
    per_key = k.shape[:1] if packed else (k.shape[0], k.shape[2])
    per_key_and_head = k.shape[:-1]
    if multiplicity.shape not in (per_key, per_key_and_head):
        raise ShapeMismatch(
            f"multiplicity must have shape {list(per_key)} or {list(per_key_and_head)} for k {list(k.shape)}; "
            f"found {list(multiplicity.shape)}."
        )
    if multiplicity.device != k.device:
        raise ShapeMismatch(f"multiplicity must be on k's device {k.device}; found {multiplicity.device}.")


def check_packing(
    q: Tensor, k: Tensor, offsets: Tensor | None, query_offsets: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Both offsets, contiguous, the queries' by default the keys'. Raises ShapeMismatch unless they cut alike."""
    if offsets is None:
        if query_offsets is not None:
            raise ShapeMismatch("query_offsets came without offsets: a packed call needs the keys' offsets too.")
        return None, None
    query_offsets = offsets if query_offsets is None else query_offsets
    check_offsets("offsets", offsets, k)
    check_offsets("query_offsets", query_offsets, q)
    if len(offsets) != len(query_offsets):
        raise ShapeMismatch(
            f"offsets describe {len(offsets) - 1} bags and query_offsets {len(query_offsets) - 1}: make them equal."
        )
    return offsets.contiguous(), query_offsets.contiguous()


def check_offsets(name: str, offsets: Tensor, packed: Tensor) -> None:
    """Raises ShapeMismatch unless offsets [C + 1] can cut packed [T, heads, E]."""
    if offsets.ndim != 1 or len(offsets) == 0 or offsets.dtype not in (torch.int32, torch.int64):
        raise ShapeMismatch(
            f"{name} must be int32 or int64 of shape [C + 1]; found {offsets.dtype} {list(offsets.shape)}."
        )
    if offsets.device != packed.device:
        raise ShapeMismatch(f"{name} must be on the packed rows' device {packed.device}; found {offsets.device}.")
