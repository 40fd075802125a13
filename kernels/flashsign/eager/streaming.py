"""Spherical attention as a stream over keys: two sums per query, added over chunks of keys.

Letters: B bags (cells x key heads), N queries of a bag (those of all query heads of the key head,
one head after the other), M keys, E width, V width of the values. Keys are already scaled by their
multiplicity: k stands for m k. Equations: kernels/README.md, "Spherical attention".
Source: spherical attention, arXiv 2505.09326.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from flashsign.eager.own_backward import Gradients, OwnBackward
from flashsign.eager.transforms import transformed

CHUNK_SCORES = 2**23
"""Most scores that exist at one time (32 MiB in float32)."""


def inverse_norm(z: Tensor, floor: Tensor) -> Tensor:
    """Return 1 / n of every row, n = sqrt(z + floor + tiny), floor = eps |q|^2 t; z and floor [...]
    -> [...].

    0 where z + floor is exactly zero (no keys, or q = 0): such a row has output and gradient zero,
    where 1 / sqrt(tiny) would make gradients of 1e19.
    """
    square = z + floor
    alive = square > 0
    return torch.where(
        alive, (torch.where(alive, square, 1.0) + torch.finfo(z.dtype).tiny).rsqrt(), 0.0
    )


def stream_attention(q: Tensor, k: Tensor, v: Tensor, eps: float) -> Tensor:
    """Compute spherical attention, a chunk of keys at a time: O(N E) extra memory, forward and
    backward.

    q [B, N, E], k (scaled by multiplicity) [B, M, E] and v [B, M, V], one dtype, float32 or float64
    -> o [B, N, V]. Forward mode, torch.func transforms, torch.compile and torch.export keep all
    scores at once: chunks would fix the numbers of queries and keys. Source: arXiv 2505.09326.
    """
    plain = partial(plain_stream_attention, eps=eps)
    if transformed() or torch.compiler.is_compiling():
        return plain(q, k, v)

    def forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Gradients]:
        o, inverse = stream_forward(q, k, v, eps)
        return o, (o, inverse)

    def backward(grad: Tensor, tensors: Any, kept: Any, wanted: tuple[bool, ...]) -> Gradients:
        (q, k, v), (o, inverse) = tensors, kept
        return stream_backward(grad, q, k, v, o, inverse, eps)

    return OwnBackward(plain, forward, backward)(q, k, v)


def plain_stream_attention(q: Tensor, k: Tensor, v: Tensor, eps: float) -> Tensor:
    """Compute stream_attention in plain torch operations, with all scores in memory.

    Differentiable in any mode and order.
    """
    scores = q @ k.mT
    z = scores.square().sum(-1, keepdim=True)
    return (scores @ v) * inverse_norm(z, row_floor(q, k.square().sum((-2, -1)), eps))


def row_floor(q: Tensor, t: Tensor, eps: float) -> Tensor:
    """Return eps |q|^2 t; q [B, N, E], t = sum_j |k_j|^2 [B] -> [B, N, 1]."""
    return eps * q.square().sum(-1, keepdim=True) * t[:, None, None]


def key_chunks(queries: int, keys: int) -> Iterator[slice]:
    """Yield slices of the keys, so that queries x keys of a slice stays within CHUNK_SCORES."""
    size = max(1, CHUNK_SCORES // max(1, queries))
    return (slice(start, min(start + size, keys)) for start in range(0, keys, size))


def stream_forward(q: Tensor, k: Tensor, v: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return outputs o [B, N, V] and 1 / n [B, N, 1]; not differentiable."""
    u, z = q.new_zeros(*q.shape[:2], v.shape[-1]), q.new_zeros(*q.shape[:2], 1)
    for chunk in key_chunks(q.shape[0] * q.shape[1], k.shape[1]):
        scores = q @ k[:, chunk].mT
        u = u.baddbmm_(scores, v[:, chunk])
        z += scores.square_().sum(-1, keepdim=True)
    inverse = inverse_norm(z, row_floor(q, k.square().sum((-2, -1)), eps))
    return u.mul_(inverse), inverse


def stream_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, inverse: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dq [B, N, E], dk [B, M, E] and dv [B, M, V].

    They are summed over pairs from each pair's score and the rows' totals.

    With g_i = do_i / n_i, delta_i = <do_i, o_i> and c_i = delta_i / n_i^2:

        ds_ij = <g_i, v_j> - c_i s_ij
        dq_i  = sum_j ds_ij k_j - c_i eps t q_i
        dk_j  = sum_i ds_ij q_i + 2 dt k_j
        dv_j  = sum_i s_ij g_i
        2 dt  = -sum_i c_i eps |q_i|^2
    """
    g = grad * inverse
    c = (g * o).sum(-1, keepdim=True) * inverse
    t = k.square().sum((-2, -1))[:, None, None]
    dq = -eps * t * c * q
    twice_dt = -eps * (c * q.square().sum(-1, keepdim=True)).sum(1, keepdim=True)
    # Filled in place: pieces kept from every chunk would fragment the memory that large scores
    # leave free.
    dk = twice_dt * k
    dv = dk.new_zeros(v.shape)
    for chunk in key_chunks(q.shape[0] * q.shape[1], k.shape[1]):
        k_chunk, v_chunk = k[:, chunk], v[:, chunk]
        scores = q @ k_chunk.mT
        # narrow, because an indexed slice of all keys is an alias, which a batched backward does
        # not allow.
        where = (1, chunk.start, chunk.stop - chunk.start)
        dv.narrow(*where).copy_(scores.mT @ g)
        dscores = torch.addcmul(g @ v_chunk.mT, scores, c, value=-1)
        dq += dscores @ k_chunk
        dk.narrow(*where).add_(dscores.mT @ q)
    return dq, dk, dv
