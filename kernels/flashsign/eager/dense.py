"""Dense bags in torch: a call at the door becomes bags of one key head, [B, N, E], and takes the stream or the moments.

Letters: C cells (bags), H query heads, K key heads, N queries, M keys, E head width; B = C K.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from flashsign.eager.moments import moment_attention
from flashsign.eager.streaming import stream_attention
from flashsign.eager.transforms import transformed

Method = Literal["auto", "stream", "moments"]


def dense_attention(q: Tensor, k: Tensor, v: Tensor, multiplicity: Tensor, eps: float, method: Method) -> Tensor:
    """The dense call in the sums' dtype: query heads of a group become more queries of their key head's bag."""
    cells, heads, queries, width = q.shape
    key_heads, keys = k.shape[1:3]
    m = near_one(multiplicity if multiplicity.ndim == 3 else multiplicity[:, None])[..., None]
    k, v = silence_padding(k, v, m)
    grouped = q.reshape(cells * key_heads, heads // key_heads * queries, width)
    scaled = (m * k).reshape(cells * key_heads, keys, width)
    values = v.reshape(cells * key_heads, keys, width)
    attend = moment_attention if _prefers_moments(method, grouped.shape[1], keys, width) else stream_attention
    return attend(grouped, scaled, values, eps).reshape(q.shape)


def _prefers_moments(method: Method, queries: int, keys: int, width: int) -> bool:
    """Moments cost (N + M) E^2 operations and the stream N M E: see kernels/README.md."""
    # Plain moments are summed in float64 and took four times the time per operation on a CPU.
    price = 4 if transformed() else 1
    return method == "moments" or (method == "auto" and queries * keys > price * (queries + keys) * width)


def near_one(m: Tensor) -> Tensor:
    """Multiplicities [..., M] divided by a power of two near each bag's largest, which changes no output bit.

    Then tiny, the one term of the norm that does not scale, cannot tell one unit of multiplicity from another.
    """
    if m.shape[-1] == 0:
        return m
    largest = m.detach().amax(-1, keepdim=True)
    largest = torch.where(largest > 0, largest.clamp_min(torch.finfo(m.dtype).tiny), largest)
    mantissa, _ = torch.frexp(largest)
    return m * torch.where(largest > 0, mantissa / largest, 1)


def silence_padding(k: Tensor, v: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    """Zeros for absent keys whose k or v are not finite: 0 * NaN is NaN. k, v [C, K, M, E], m [C, 1 or K, M, 1]."""
    absent = m == 0
    look = not transformed() and k.device.type == "cpu"  # elsewhere a look at the values would wait for the device
    if look and not absent.any():
        return k, v
    broken = absent & ~((k.detach() * 0 + v.detach() * 0).sum(-1, keepdim=True) == 0)
    if look and not broken.any():
        return k, v
    return torch.where(broken, 0, k), torch.where(broken, 0, v)
