"""Where the GPU kernels can run, and the way from a call at the door to their one form.

Letters as in flashsign.attention. Triton is imported when a kernel runs, not before.
"""

from __future__ import annotations

import importlib.util
import os
from functools import partial

import torch
from torch import Tensor, distributed
from torch.nn import functional as F

from flashsign.distributed.kernels import split_kernel_attention
from flashsign.eager.dense import Method
from flashsign.eager.transforms import transformed
from flashsign.operators.moments import moments
from flashsign.operators.streaming import stream
from flashsign.tuning.costs import faster
from flashsign.tuning.tables import ROW_STEP, capability
from flashsign.validation import check_cut

WIDEST = {"stream": 256, "moments": 128, "auto": 256}

MOST_SQUARES = 65535
"""What a grid has room for on its second and third axis."""

# Asked once: inside torch.compile nobody could ask.
HAS_TRITON = importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def no_kernel(q: Tensor, method: Method, squares: int = 1) -> str:
    """Why no kernel can take this call, "" where one can. squares: bags times key heads."""
    if not HAS_TRITON:
        return "Triton is not installed"
    if not (q.is_cuda or INTERPRETED):
        return f"The Triton kernels run on CUDA devices, and q is on {q.device}"
    if q.is_cuda and not torch.compiler.is_compiling() and capability(q.device) < (8, 0):
        return "The Triton kernels need a GPU of compute capability 8.0 or newer"
    if q.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"There is no kernel for {q.dtype}"
    if q.shape[-1] > WIDEST[method]:
        of = "" if method == "auto" else f" of {method}"
        return f"The kernels{of} take heads at most {WIDEST[method]} wide, and q's are {q.shape[-1]}"
    if squares > MOST_SQUARES:
        return f"The kernels take {MOST_SQUARES} bags times key heads, and there are {squares}"
    if not torch.compiler.is_compiling() and transformed():
        return "The kernels know neither forward mode nor torch.func transforms"
    return ""


def choose_method(q: Tensor, k: Tensor, bags: int, method: Method, *others: Tensor) -> Method:
    """The kernels' own choice for method "auto": the one that a small measured table says is faster.

    q [C, H, N, E], k [C, K, M, E], or packed [T, H, E], [S, K, E], of which the mean bag counts: what single bags have
    would need a look at the device. others: what else a gradient may be wanted for.
    """
    if method != "auto" or q.shape[-1] > WIDEST["moments"]:
        return "stream" if method == "auto" else method
    packed = q.ndim == 3
    queries, keys = (q.shape[0] / bags, k.shape[0] / bags) if packed else (q.shape[2], k.shape[2])
    gradients = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, *others))
    heads = (q.shape[1], k.shape[1])
    return faster(q.element_size(), q.shape[-1], bags, *heads, queries, keys, gradients, packed)


def lies_in_rows(x: Tensor) -> bool:
    """Whether the numbers of a row [..., E] are adjacent and no rows overlap: then empty_like lies in rows too."""
    *steps, along = x.stride()
    return along == 1 and all(n == 1 or step >= x.shape[-1] for n, step in zip(x.shape, steps, strict=False))


def kernel_attention(
    q: Tensor, k: Tensor, v: Tensor, multiplicity: Tensor,
    offsets: Tensor | None, query_offsets: Tensor | None, eps: float, method: Method,
    group: distributed.ProcessGroup | None = None,
) -> Tensor:  # fmt: skip
    """The kernels on a call that fits together (flashsign.attention); output like q. group: as at the door."""
    if q.is_cuda and not torch.compiler.is_compiling() and q.get_device() != torch.cuda.current_device():
        with torch.cuda.device(q.device):  # kernels start on the current one
            return kernel_attention(q, k, v, multiplicity, offsets, query_offsets, eps, method, group)
    packed = offsets is not None
    width = q.shape[-1]
    bags = len(q) if offsets is None else len(offsets) - 1
    attend = stream if choose_method(q, k, bags, method, v, multiplicity) == "stream" else moments
    if group is not None:
        attend = partial(split_kernel_attention, group=group)
    lack = -width % ROW_STEP
    if lack:
        q, k, v = (F.pad(x, (0, lack)) for x in (q, k, v))
    m = multiplicity.to(torch.float32)
    if packed:
        assert offsets is not None and query_offsets is not None
        # A look at the device, which cannot be had while calls are traced or recorded.
        if not (torch.compiler.is_compiling() or (q.is_cuda and torch.cuda.is_current_stream_capturing())):
            check_cut("offsets", offsets, len(k))
            check_cut("query_offsets", query_offsets, len(q))
        m = m.mT[None] if m.ndim == 2 else m[None, None]
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    else:
        m = m if m.ndim == 3 else m[:, None]
    q, k, v = (x if lies_in_rows(x) else x.contiguous() for x in (q, k, v))
    m = m if m.stride(-1) == 1 else m.contiguous()
    o = attend(q, k, v, m, offsets, query_offsets, float(eps))
    o = o[0].transpose(0, 1) if packed else o
    return o[..., :width] if lack else o
