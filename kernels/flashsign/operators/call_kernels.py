"""From a call of spherical_attention to the kernels and back: the current device, padded heads, the one layout."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from flashsign.operators.layout import has_contiguous_rows, heads_first, multiplicity_heads_first, rows_first
from flashsign.tuning.head_width import ROW_STEP
from flashsign.validation import check_cut

Attend = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None, float], Tensor]


def call_kernels(
    attend: Attend,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    multiplicity: Tensor,
    offsets: Tensor | None,
    query_offsets: Tensor | None,
    eps: float,
) -> Tensor:
    """Brings a checked call of spherical_attention to the kernels' layout, runs `attend` and brings its output back.

    q [C, H, N, E], k [C, K, M, E], v [C, K, M, V], multiplicity [C, M] or [C, K, M], or packed (see
    spherical_attention) -> like q, but of width V, at most E: the kernels know one width, to which zeros fill up v.
    attend(q, k, v, m, offsets, query_offsets, eps) -> like q, in operators.layout (operators.autograd,
    distributed.kernels). Raises ShapeMismatch unless the offsets cut the packed rows exactly.
    """
    if q.is_cuda and not torch.compiler.is_compiling() and q.get_device() != torch.cuda.current_device():
        with torch.cuda.device(q.device):  # kernels start on the current device
            return call_kernels(attend, q, k, v, multiplicity, offsets, query_offsets, eps)
    packed = offsets is not None
    width = q.shape[-1] + -q.shape[-1] % ROW_STEP
    values = v.shape[-1]
    q, k, v = (F.pad(x, (0, width - x.shape[-1])) if x.shape[-1] < width else x for x in (q, k, v))
    if offsets is not None and query_offsets is not None:
        # The check synchronises with the GPU, which is impossible while a call is traced or a graph is recorded.
        if not (torch.compiler.is_compiling() or (q.is_cuda and torch.cuda.is_current_stream_capturing())):
            check_cut("offsets", offsets, len(k))
            check_cut("query_offsets", query_offsets, len(q))
        q, k, v = heads_first(q), heads_first(k), heads_first(v)
    m = multiplicity_heads_first(multiplicity.to(torch.float32), packed)
    q, k, v = (x if has_contiguous_rows(x) else x.contiguous() for x in (q, k, v))
    m = m if m.stride(-1) == 1 else m.contiguous()
    o = attend(q, k, v, m, offsets, query_offsets, float(eps))
    o = rows_first(o) if packed else o
    return o[..., :values] if values < width else o
