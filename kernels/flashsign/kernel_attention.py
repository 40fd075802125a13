"""Where the GPU kernels can run, and the way from a call at the door to their one form.

Letters as in flashsign.attention. Triton is imported when a kernel runs, not before.
"""

from __future__ import annotations

import importlib.util
import os
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from flashsign.operators import stream
from flashsign.packing import check_cut
from flashsign.transforms import transformed

WIDEST = 256
MOMENTS_PAY = 128
"""Moments in torch, float32 products and a dozen passes over the rows, cost so many times the stream's by count.

Not a measured crossing: at 78, training steps of 5000 genes on an H200 were 8 % slower with moments than without.
"""

# Asked once: inside torch.compile nobody could ask.
HAS_TRITON = importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@cache
def too_old(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) < (8, 0)


def no_kernel(q: Tensor, method: str) -> str:
    """Why no kernel can take this call, "" where one can."""
    if method == "moments":
        return "Moments have no Triton kernel yet"
    if not HAS_TRITON:
        return "Triton is not installed"
    if not (q.is_cuda or INTERPRETED):
        return f"The Triton kernels run on CUDA devices, and q is on {q.device}"
    if q.is_cuda and not torch.compiler.is_compiling() and too_old(q.device):
        return "The Triton kernels need a GPU of compute capability 8.0 or newer"
    if q.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"There is no kernel for {q.dtype}"
    if q.shape[-1] > WIDEST:
        return f"The kernels' heads are at most {WIDEST} wide, and q's are {q.shape[-1]}"
    if not torch.compiler.is_compiling() and transformed():
        return "The kernels know neither forward mode nor torch.func transforms"
    return ""


def pays(q: Tensor, k: Tensor, method: str) -> bool:
    """Whether the stream's kernels can run and moments in torch would not be faster: what "auto" takes."""
    if not q.is_cuda or no_kernel(q, method):
        return False
    if method == "stream" or q.ndim == 3:  # a packed bag's size is not known without a look at the device
        return True
    queries, keys = q.shape[-2] * (q.shape[1] // k.shape[1]), k.shape[-2]
    return queries * keys <= MOMENTS_PAY * (queries + keys) * q.shape[-1]


def kernel_attention(
    q: Tensor, k: Tensor, v: Tensor, multiplicity: Tensor,
    offsets: Tensor | None, query_offsets: Tensor | None, eps: float,
) -> Tensor:  # fmt: skip
    """The stream's kernels on a call that fits together (flashsign.attention); output like q."""
    packed = offsets is not None
    width = q.shape[-1]
    # Descriptors step over 16 bytes at a time.
    lack = -width % (16 // q.element_size())
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
    q, k, v, m = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v, m))
    o = stream(q, k, v, m, offsets, query_offsets, eps)
    o = o[0].transpose(0, 1) if packed else o
    return o[..., :width] if lack else o
