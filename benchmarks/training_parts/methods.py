"""The attentions that are compared, each in the place of the one call that grn/model/transformer.py makes.

The softmax ones are as cheap as softmax can be, in their favour:
- No multiplicity. Keys would have to be weighted by a bias log m on the scores, and with a bias torch's
  FlashAttention is out of the question.
- Packed bags are padded to the longest of their batch, and the padding is not masked, for the same reason: it takes
  part as keys of zeros. What is computed is thus no softmax over the bag; its time is that of one. `varlen`
  (FlashAttention's own form of packed bags) needs no padding and is exact.
- The same few batches come again and again: cuDNN, which makes a plan for every new length, has made all of them.

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
from flashsign.dispatch import triton_method
from flashsign.tensor_cache import cached

Attention = Callable[..., Tensor]
REFUSED = ("No available kernel", "No viable backend")  # how torch says that a forced backend does not take a call


class Taken(torch.autograd.Function):
    """rows[slots] for slots that all differ: the gradient is a copy, where index_select's adds up in atomics."""

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
    """Length L of the longest bag, and for each of the packed rows its place among bags of L rows; one look a batch."""

    def find() -> tuple[int, Tensor]:
        sizes = offsets.diff()
        longest = int(sizes.max())
        shift = torch.arange(len(sizes), device=offsets.device) * longest - offsets[:-1]
        shift = torch.repeat_interleave(shift, sizes, output_size=rows)
        return longest, torch.arange(rows, device=offsets.device) + shift

    return cached(offsets, "benchmark: slots", find)


class Softmax:
    """scaled_dot_product_attention as a spherical_attention that ignores multiplicities.

    forced: the backend of gene queries. The summary asks one query a cell, which not every backend takes, and which
    costs next to nothing: it has torch's choice. kernel: what gene queries got, once there was a call.
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
            found = scaled_dot_product_attention(
                q, *_repeated(q, k, v)
            )  # where this backend wants a key per query head
            if not self.repeat:
                self.repeat, self.kernel = True, f"{self.kernel}, keys repeated"
            return found


class Varlen:
    """FlashAttention over packed bags as they are; on a GPU, in half precision."""

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
    """[T, heads, E] -> [C, heads, L, E]."""
    room = rows.new_zeros(shape[0] * longest, *rows.shape[1:]).index_copy_(0, slots, rows)
    return room.unflatten(0, shape).transpose(1, 2)


def _repeated(q: Tensor, k: Tensor, v: Tensor, axis: int = 1) -> tuple[Tensor, Tensor]:
    times = q.shape[axis] // k.shape[axis]
    return k.repeat_interleave(times, axis), v.repeat_interleave(times, axis)


def _choice(q: Tensor, k: Tensor, v: Tensor) -> str:
    """The backend that torch chooses."""
    try:
        chosen = torch._fused_sdp_choice(q, k, v, None, 0.0, False, enable_gqa=True)
        return next((name for name, each in SDPBackend.__members__.items() if int(each) == chosen), str(chosen))
    except (AttributeError, TypeError):  # a private function: it may go
        return "not known"


def _starts(offsets: Tensor) -> tuple[int, Tensor]:
    """The longest bag, and the offsets as int32."""
    return cached(offsets, "benchmark: starts", lambda: (int(offsets.diff().max()), offsets.int()))


# Name of a method -> what stands in the attention's place, made anew for every point; None: nothing, the door itself.
METHODS: dict[str, Callable[[], Any] | None] = {
    "flashsign": None,
    "flashsign stream": lambda: partial(spherical_attention, method="stream"),
    "SDPA": Softmax,
    "SDPA cuDNN": partial(Softmax, SDPBackend.CUDNN_ATTENTION),
    "varlen": Varlen,
}


def methods_at(names: tuple[str, ...], bags: str, road: str) -> tuple[str, ...]:
    """varlen is for packed bags; a forced stream is worth a row where the door would not take the kernels."""
    left_out = {"varlen": bags != "packed", "flashsign stream": road in ("stream", "torch")}
    return tuple(name for name in names if not left_out.get(name))


def road(q: tuple[int, ...], k: tuple[int, ...], bags: int, dtype: torch.dtype, device: torch.device) -> str:
    """What the door takes in training for gene queries of these shapes: stream or moments (kernels), torch on a CPU."""
    return triton_method("auto", dtype.itemsize, q, k, bags, gradients=True) if device.type == "cuda" else "torch"


@contextmanager
def attending(attention: Attention | None) -> Iterator[None]:
    """The model with this attention in the place of its own."""
    with mock.patch.object(grn.model.transformer, "spherical_attention", attention) if attention else nullcontext():
        yield
