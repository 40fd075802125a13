"""The kernels that are compared, each as a function of (q, k, v, multiplicity); softmax ignores the
multiplicity.

Letters: C cells, H heads, N queries, M keys, E head width.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from attention_parts.clock import Call, release
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from flashsign import BackendUnavailable, spherical_attention

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
EPS = 1e-6  # flashsign's own default
NO_COLUMN = (
    "FlexAttention: no column, because it cannot express an L2 norm: it can change the scores, "
    "but always normalises them by a softmax"
)
Attend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
T = TypeVar("T")


class Inputs(NamedTuple):
    """q, k and v that need a gradient, multiplicities that need none (they are data), and a
    gradient of the output.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    m: Tensor
    grad: Tensor

    @classmethod
    def draw(
        cls,
        shape: tuple[int, ...],
        bags: tuple[int, ...],
        dtype: str,
        device: torch.device,
        seed: int = 0,
    ) -> Inputs:
        """q, k, v and grad of one shape, normal; multiplicities of shape `bags`, uniform between 0
        and 2, float32.
        """
        random = torch.Generator(device).manual_seed(seed)
        q, k, v, grad = (
            torch.randn(shape, generator=random, device=device).to(DTYPES[dtype]) for _ in range(4)
        )
        m = 2 * torch.rand(bags, generator=random, device=device)
        return cls(*(x.requires_grad_() for x in (q, k, v)), m, grad)


def materialised(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    """Spherical attention with all its scores in memory, in the inputs' dtype, normalised after the
    sum over the keys.

    That saves the pass over the scores that dividing them takes. Random rows are insensitive to q's
    scale and to eps; q / 8 is exact and keeps the sums within fp16's range.
    """
    scores = (q / 8) @ k.mT * m.to(q.dtype)[:, None, None]
    return (scores @ v) / torch.linalg.vector_norm(scores, dim=-1, keepdim=True)


def compiled(function: Attend) -> Attend:
    """Compiled for one shape; buffers are kept so that a backward can be timed more than once."""
    import torch._functorch.config

    torch._functorch.config.donated_buffer = False
    torch._dynamo.reset()
    return torch.compile(function, dynamic=False)


def softmax(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return scaled_dot_product_attention(q, k, v)


def public_call(**options: Any) -> Attend:
    """flashsign's public entry point with these options."""

    def attend(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        return spherical_attention(q, k, v, m, **options)

    return attend


@dataclass(frozen=True)
class Method:
    """make(backend): makes the function, once for every point; context: what it runs in; eps: that
    of its reference.
    """

    name: str
    make: Callable[[str], Attend]
    spherical: bool = True
    stores_scores: bool = False
    context: Callable[[], AbstractContextManager] = field(default=nullcontext)
    eps: float = 0.0


def _sdpa(name: str, backend: SDPBackend | None = None) -> Method:
    context = nullcontext if backend is None else partial(sdpa_kernel, backend)
    return Method(name, lambda _: softmax, spherical=False, context=context)


METHODS = {
    "eager": Method("spherical torch eager", lambda _: materialised, stores_scores=True),
    "compile": Method(
        "spherical torch.compile", lambda _: compiled(materialised), stores_scores=True
    ),
    "flash": _sdpa("SDPA FlashAttention-2", SDPBackend.FLASH_ATTENTION),
    "cudnn": _sdpa("SDPA cuDNN", SDPBackend.CUDNN_ATTENTION),
    "stream": Method(
        "flashsign stream", lambda backend: public_call(method="stream", backend=backend), eps=EPS
    ),
    "moments": Method(
        "flashsign moments", lambda backend: public_call(method="moments", backend=backend), eps=EPS
    ),
    "sdpa": _sdpa("SDPA default"),  # for small bags only
}


def call_of(attend: Attend, inputs: Inputs, direction: str) -> Call:
    """One call in a direction. For "backward" the forward pass runs here, once, and its graph is
    kept.
    """
    q, k, v, m, grad = inputs
    if direction == "forward":
        return torch.no_grad()(partial(attend, q, k, v, m))
    if direction == "both":
        return lambda: torch.autograd.grad(attend(q, k, v, m), (q, k, v), grad)
    output = attend(q, k, v, m)
    return lambda: torch.autograd.grad(output, (q, k, v), grad, retain_graph=True)


def attempt(call: Callable[[], T], device: torch.device) -> tuple[T | None, str]:
    """The call's result and "ok", or None and the reason: a method that fails must not end the run
    of the others.
    """
    try:
        return call(), "ok"
    except torch.OutOfMemoryError:
        status = "OOM"
    except BackendUnavailable as error:
        status = f"unavailable: {error}"
    except torch.AcceleratorError:  # after this error nothing runs on the device
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        status = f"failed: {type(error).__name__}: {lines[0]}"
    release(device, collect=True)
    return None, status
