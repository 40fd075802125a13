"""The kernels that are compared, each as a function of (q, k, v, multiplicity); softmax has no use for the last.

Letters: C cells, H heads, N queries, M keys, E head width.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from attention_parts.clock import Call, release
from flashsign import BackendUnavailable, spherical_attention

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
EPS = 1e-6  # flashsign's own default
NO_COLUMN = (
    "FlexAttention: no column, since it cannot express an L2 norm: it changes the scores, its normaliser is a softmax"
)
Attend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
T = TypeVar("T")


class Inputs(NamedTuple):
    """Leaves that want a gradient, multiplicities that do not (they are data), and a gradient for the output."""

    q: Tensor
    k: Tensor
    v: Tensor
    m: Tensor
    grad: Tensor

    @classmethod
    def draw(
        cls, shape: tuple[int, ...], bags: tuple[int, ...], dtype: str, device: torch.device, seed: int = 0
    ) -> Inputs:
        """q, k, v and grad of one shape, normal; multiplicities of shape `bags`, uniform between 0 and 2, float32."""
        random = torch.Generator(device).manual_seed(seed)
        q, k, v, grad = (torch.randn(shape, generator=random, device=device).to(DTYPES[dtype]) for _ in range(4))
        m = 2 * torch.rand(bags, generator=random, device=device)
        return cls(*(x.requires_grad_() for x in (q, k, v)), m, grad)


def materialised(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    """Spherical attention with all its scores in memory, in the inputs' dtype, normalised after the sum over the keys.

    That saves a pass over the scores against dividing them. Neither q's scale nor eps matters to the norm of random
    rows; an eighth of q, which is exact, keeps the sums within fp16.
    """
    scores = (q / 8) @ k.mT * m.to(q.dtype)[:, None, None]
    return (scores @ v) / torch.linalg.vector_norm(scores, dim=-1, keepdim=True)


def materialised_weights(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    """The same by the letter: every weight is written out before it meets its value."""
    scores = (q / 8) @ k.mT * m.to(q.dtype)[:, None, None]
    return (scores / torch.linalg.vector_norm(scores, dim=-1, keepdim=True)) @ v


def compiled(function: Attend) -> Attend:
    """Compiled anew, for one shape; buffers are kept so that a backward can be timed more than once."""
    import torch._functorch.config

    torch._functorch.config.donated_buffer = False
    torch._dynamo.reset()
    return torch.compile(function, dynamic=False)


def softmax(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return scaled_dot_product_attention(q, k, v)


def door(**options: Any) -> Attend:
    """The public door of flashsign with these options."""

    def attend(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        return spherical_attention(q, k, v, m, **options)

    return attend


@dataclass(frozen=True)
class Method:
    """make(backend) gives the function anew at every point; context is what it runs in; eps is for its reference."""

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
    "weights": Method("spherical torch eager, weights stored", lambda _: materialised_weights, stores_scores=True),
    "compile": Method("spherical torch.compile", lambda _: compiled(materialised), stores_scores=True),
    "flash": _sdpa("SDPA FlashAttention-2", SDPBackend.FLASH_ATTENTION),
    "cudnn": _sdpa("SDPA cuDNN", SDPBackend.CUDNN_ATTENTION),
    "stream": Method("flashsign stream", lambda backend: door(method="stream", backend=backend), eps=EPS),
    "moments": Method("flashsign moments", lambda backend: door(method="moments", backend=backend), eps=EPS),
    "sdpa": _sdpa("SDPA default"),  # of the small bags only
}


def call_of(attend: Attend, inputs: Inputs, direction: str) -> Call:
    """One call of a direction. backward: the graph is made here, once, and kept."""
    q, k, v, m, grad = inputs
    if direction == "forward":
        return torch.no_grad()(partial(attend, q, k, v, m))
    if direction == "both":
        return lambda: torch.autograd.grad(attend(q, k, v, m), (q, k, v), grad)
    output = attend(q, k, v, m)
    return lambda: torch.autograd.grad(output, (q, k, v), grad, retain_graph=True)


def attempt(call: Callable[[], T], device: torch.device) -> tuple[T | None, str]:
    """What the call returns, and "ok" or why there is nothing: one method that fails must not end the others' run."""
    try:
        return call(), "ok"
    except torch.OutOfMemoryError:
        status = "OOM"
    except BackendUnavailable as error:
        status = f"unavailable: {error}"
    except torch.AcceleratorError:  # nothing runs on a device after that
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        status = f"failed: {type(error).__name__}: {lines[0]}"
    release(device, collect=True)
    return None, status
