"""The attention methods that are compared; each replaces the one call that grn/model/transformer.py makes.

Softmax is given the cheapest form that it can have:
- It ignores multiplicities. They would be a bias log m on the scores, and torch's FlashAttention takes no bias.
- Packed bags are padded to the longest of their batch, and the padding is not masked, for the same reason: it takes
  part as keys of zeros. The result is not the softmax over the bag, but takes as long. `varlen` (FlashAttention's own
  form of packed bags) needs no padding and is exact.
- The same few batches return again and again, so that cuDNN's plans, one per length, are all made in the warm-up.

Letters as in flashsign.attention: packed T queries and S keys, C bags, H query heads, K key heads, E head width.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import grn.model.transformer
from flashsign import spherical_attention
from flashsign.tensor_cache import cached

Attention = Callable[..., Tensor]
REFUSED = ("No available kernel", "No viable backend")  # torch's messages where a forced backend cannot take a call


class Taken(torch.autograd.Function):
    """rows[slots] for slots that all differ, so that the gradient is a copy; index_select's adds with atomics."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, slots: Tensor) -> Tensor:
        ctx.save_for_backward(slots)
        ctx.rows = len(rows)
        return rows.index_select(0, slots)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (slots,) = ctx.saved_tensors
        return grad.new_zeros(ctx.rows, *grad.shape[1:]).index_copy_(0, slots, grad), None


def slots_of(offsets: Tensor, rows: int) -> tuple[int, Tensor]:
    """Length L of the longest bag, and for each packed row its slot among bags of L rows.

    Cached for each `offsets`, because it synchronises with the GPU.
    """

    def find() -> tuple[int, Tensor]:
        sizes = offsets.diff()
        longest = int(sizes.max())
        shift = torch.arange(len(sizes), device=offsets.device) * longest - offsets[:-1]
        shift = torch.repeat_interleave(shift, sizes, output_size=rows)
        return longest, torch.arange(rows, device=offsets.device) + shift

    return cached(offsets, "benchmark: slots", find)


class Softmax:
    """scaled_dot_product_attention with the signature of spherical_attention; ignores multiplicities.

    forced: the backend of gene queries. The summary is one query per cell, which not every backend takes and which
    costs next to nothing: torch chooses its backend. kernel: the backend of gene queries, after the first call.
    """

    def __init__(self, forced: SDPBackend | None = None):
        self.forced, self.kernel, self.repeat = forced, "", False

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        multiplicity: Tensor | None = None,
        *,
        offsets: Tensor | None = None,
        query_offsets: Tensor | None = None,
        eps: float = 0.0,
        group: None = None,
    ) -> Tensor:
        if offsets is None:
            return self.dense(q, k, v)
        query_offsets = offsets if query_offsets is None else query_offsets
        longest, slots = slots_of(query_offsets, len(q))
        keys = slots_of(offsets, len(k))
        shape = (len(offsets) - 1, -1)
        padded = (_pad(x, *place, shape) for x, place in ((q, (longest, slots)), (k, keys), (v, keys)))
        return Taken.apply(self.dense(*padded).transpose(1, 2).flatten(0, 1), slots)  # type: ignore[no-any-return]

    def dense(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [C, H, N, E], k and v [C, K, M, E] -> [C, H, N, E]."""
        force = self.forced is not None and q.shape[-2] > 1
        if q.shape[-2] > 1 and not self.kernel:
            self.kernel = self.forced.name if self.forced else _choice(q, k, v)
        with sdpa_kernel(self.forced) if force else nullcontext():
            if not (force and self.repeat):
                try:
                    return scaled_dot_product_attention(q, k, v, enable_gqa=True)
                except RuntimeError as error:
                    if not force or not str(error).startswith(REFUSED):
                        raise
            # This backend needs a key head for every query head.
            found = scaled_dot_product_attention(q, *_repeated(q, k, v))
            if not self.repeat:
                self.repeat, self.kernel = True, f"{self.kernel}, keys repeated"
            return found


class Varlen:
    """FlashAttention over packed bags without padding; on a GPU, in half precision."""

    kernel = "FLASH_ATTENTION"

    def __call__(self, q, k, v, multiplicity=None, *, offsets, query_offsets=None, eps=0.0, group=None) -> Tensor:
        from torch.nn.attention.varlen import varlen_attn

        options = {}
        if "enable_gqa" in inspect.signature(varlen_attn).parameters:
            options["enable_gqa"] = True
        else:
            k, v = _repeated(q, k, v, axis=1)
        query_offsets = offsets if query_offsets is None else query_offsets
        longest, starts = zip(*(_starts(each) for each in (query_offsets, offsets)), strict=True)
        return varlen_attn(q.contiguous(), k.contiguous(), v.contiguous(), *starts, *longest, **options)


def _pad(rows: Tensor, longest: int, slots: Tensor, shape: tuple[int, int]) -> Tensor:
    """Packed rows [T, heads, E] -> [C, heads, L, E], zeros where a bag is shorter."""
    padded = rows.new_zeros(shape[0] * longest, *rows.shape[1:]).index_copy_(0, slots, rows)
    return padded.unflatten(0, shape).transpose(1, 2)


def _repeated(q: Tensor, k: Tensor, v: Tensor, axis: int = 1) -> tuple[Tensor, Tensor]:
    times = q.shape[axis] // k.shape[axis]
    return k.repeat_interleave(times, axis), v.repeat_interleave(times, axis)


def _choice(q: Tensor, k: Tensor, v: Tensor) -> str:
    """The backend that torch chooses."""
    try:
        chosen = torch._fused_sdp_choice(q, k, v, None, 0.0, False, enable_gqa=True)
        return next((name for name, each in SDPBackend.__members__.items() if int(each) == chosen), str(chosen))
    except (AttributeError, TypeError):  # a private function of torch, which may change
        return "not known"


def _starts(offsets: Tensor) -> tuple[int, Tensor]:
    """The longest bag, and the offsets as int32."""
    return cached(offsets, "benchmark: starts", lambda: (int(offsets.diff().max()), offsets.int()))


# Name of a method -> makes what replaces spherical_attention, once for every point; None: nothing is replaced.
METHODS: dict[str, Callable[[], Any] | None] = {
    "flashsign": None,
    "flashsign stream": lambda: partial(spherical_attention, method="stream"),
    "SDPA": Softmax,
    "SDPA cuDNN": partial(Softmax, SDPBackend.CUDNN_ATTENTION),
    "varlen": Varlen,
}


def methods_at(names: tuple[str, ...], bags: str, path: str) -> tuple[str, ...]:
    """The methods of a point: varlen for packed bags alone, a forced stream where flashsign would choose moments."""
    left_out = {"varlen": bags != "packed", "flashsign stream": path in ("stream", "torch")}
    return tuple(name for name in names if not left_out.get(name))


@contextmanager
def attending(attention: Attention | None) -> Iterator[None]:
    """Within, models attend by this function (None: by their own)."""
    with mock.patch.object(grn.model.transformer, "spherical_attention", attention) if attention else nullcontext():
        yield
