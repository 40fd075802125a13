"""Dense bags in torch: a call is reshaped to bags of one key head, [B, N, E], and goes to the
stream or to moments.

Letters: C cells (bags), H query heads, K key heads, N queries, M keys, E head width, V value
width; B = C K.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from flashsign.attention.validation import has_values
from flashsign.eager.moments import moment_attention
from flashsign.eager.streaming import stream_attention
from flashsign.eager.transforms import transformed


def dense_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    multiplicity: Tensor,
    eps: float,
    method: Literal["stream", "moments"],
) -> Tensor:
    """Compute a dense call in the dtype of its sums.

    All query heads of a key head become queries of one bag.

    q [C, H, N, E], k [C, K, M, E], v [C, K, M, V], multiplicity [C, M] or [C, K, M], one dtype,
    float32 or float64 -> [C, H, N, V]. flashsign.attention.dispatch chooses the method.
    """
    cells, heads, queries, width = q.shape
    key_heads, keys = k.shape[1:3]
    m = scale_multiplicity(multiplicity if multiplicity.ndim == 3 else multiplicity[:, None])[
        ..., None
    ]
    k, v = zero_nonfinite_absent_keys(k, v, m)
    grouped = q.reshape(cells * key_heads, heads // key_heads * queries, width)
    scaled = (m * k).reshape(cells * key_heads, keys, width)
    values = v.reshape(cells * key_heads, keys, v.shape[-1])
    attend = moment_attention if method == "moments" else stream_attention
    return attend(grouped, scaled, values, eps).reshape(*q.shape[:-1], v.shape[-1])


def scale_multiplicity(m: Tensor) -> Tensor:
    """Return multiplicities [..., M] divided by a power of two near each bag's largest.

    Attention is the same for any unit of multiplicity, except for tiny, the one term of the norm
    that does not scale with it. Divided so, the same multiplicities in another unit (of a power of
    two) give the same output bits.
    """
    if m.shape[-1] == 0:
        return m
    largest = m.detach().amax(-1, keepdim=True)
    largest = torch.where(largest > 0, largest.clamp_min(torch.finfo(m.dtype).tiny), largest)
    mantissa, _ = torch.frexp(largest)
    return m * torch.where(largest > 0, mantissa / largest, 1)


def zero_nonfinite_absent_keys(k: Tensor, v: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    """Return k [C, K, M, E] and v [C, K, M, V] with zeros in absent keys where k or v is not
    finite.

    0 * NaN is NaN. m [C, 1 or K, M, 1]: multiplicities.
    """
    absent = m == 0
    # On a GPU, looking whether there are any would synchronise with it.
    can_look = k.device.type == "cpu" and has_values(k) and not transformed()
    if can_look and not absent.any():
        return k, v
    broken = absent & ~(sum((x.detach() * 0).sum(-1, keepdim=True) for x in (k, v)) == 0)
    if can_look and not broken.any():
        return k, v
    return torch.where(broken, 0, k), torch.where(broken, 0, v)
