"""The Triton kernels as operators of torch, so that torch.compile sees a call as one node.

    flashsign::stream, flashsign::moments                       q, k, v, m -> o, 1 / n, and the totals of `Operator`
    flashsign::stream_backward, flashsign::moments_backward     do, q, k, v, m and those outputs -> dq, dk, dv, dm

All in operators.layout, m float32. Importing this module does not import Triton.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache, partial
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flashsign.dispatch import Kernel, stream_kernel
from flashsign.operators import in_torch
from flashsign.operators.verify import attention_is_right
from flashsign.tuning.head_width import ROW_STEP, moment_block, padded_width

Tensors = tuple[Tensor, ...]


@cache
def _kernels(module: str) -> ModuleType:
    return importlib.import_module(f"flashsign.triton.{module}")


def _stream(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    m: Tensor,
    offsets: Tensor | None,
    query_offsets: Tensor | None,
    eps: float,
) -> Tensors:
    """o like q, and 1 / n [C', H, N] float32."""
    return _forward("stream", stream_kernel(q, k, offsets, query_offsets), q, k, v, m, offsets, query_offsets, eps)


def _stream_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    m: Tensor,
    o: Tensor,
    inverse: Tensor,
    offsets: Tensor | None,
    query_offsets: Tensor | None,
    eps: float,
) -> Tensors:
    """dq, dk, dv like q, k, v, and dm [C', K, M] float32 of every key head."""
    kernel = stream_kernel(q, k, offsets, query_offsets)
    return _backward("stream", kernel, grad, q, k, v, m, o, inverse, offsets, query_offsets, eps)


def _moments(*call: Any) -> Tensors:
    """o like q, 1 / n [C', H, N] float32, and the moments of each bag's keys: sums and totals (_empty_moments)."""
    return _forward("moments", "triton_moments", *call)


def _moments_backward(*call: Any) -> Tensors:
    """dq, dk, dv like q, k, v, and dm [C', K, M] float32 of every key head."""
    return _backward("moments", "triton_moments", *call)


def launches(kernel: Kernel) -> tuple[Callable[..., Tensors], Callable[..., Tensors]]:
    """The functions that launch a kernel, forward and backward."""
    if kernel == "triton_moments":
        return _kernels("moments.calls").forward, _kernels("moments.calls").backward
    if kernel == "triton_small_bags":
        return _kernels("small_bags").forward, _kernels("small_bags").backward
    calls = _kernels("streaming.calls")
    return partial(calls.forward, kernel=kernel), calls.backward


def moments_are_right(q: Tensor) -> bool:
    """Whether the kernels of moments may run for a call with q [.., E], in any layout."""
    width = q.shape[-1] + -q.shape[-1] % ROW_STEP
    return attention_is_right("triton_moments", q.new_empty(0, width), *launches("triton_moments"))


def _forward(method: in_torch.Method, kernel: Kernel, q: Tensor, k: Tensor, *call: Any) -> Tensors:
    """By the kernel, or by torch where the kernel was found wrong on this device."""
    forward, backward = launches(kernel)
    if attention_is_right(kernel, q, forward, backward):
        return forward(q, k, *call)
    o = in_torch.attention(method, q, k, *call)
    offsets = call[2]
    return o, q.new_zeros(q.shape[:3], dtype=torch.float32), *OPERATORS[method].empty_totals(q, k, offsets)


def _backward(method: in_torch.Method, kernel: Kernel, grad: Tensor, q: Tensor, *call: Any) -> Tensors:
    forward, backward = launches(kernel)
    if attention_is_right(kernel, q, forward, backward):
        return backward(grad, q, *call)
    return in_torch.gradients(method, grad, q, *call[:3], *call[-3:])


def _no_totals(q: Tensor, k: Tensor, offsets: Tensor | None) -> Tensors:
    return ()


def _empty_moments(q: Tensor, k: Tensor, offsets: Tensor | None) -> Tensors:
    """sums [bags K, 2, E', E'] and totals [bags K, 4, blocks], float32, of each bag's keys; E' is the padded width."""
    bags_and_heads = (q.shape[0] if offsets is None else offsets.shape[0] - 1) * k.shape[1]
    width = padded_width(q.shape[-1])
    sums = q.new_empty(bags_and_heads, 2, width, width, dtype=torch.float32)
    return sums, q.new_empty(bags_and_heads, 4, width**2 // moment_block(width), dtype=torch.float32)


class Operator(NamedTuple):
    """forward, backward: the functions that run. totals: names of the tensors that forward returns after o and 1 / n
    and that backward takes; empty_totals(q, k, offsets): those tensors, uninitialised."""

    forward: Callable[..., Tensors]
    backward: Callable[..., Tensors]
    totals: tuple[str, ...]
    empty_totals: Callable[[Tensor, Tensor, Tensor | None], Tensors]


OPERATORS = {
    "stream": Operator(_stream, _stream_backward, (), _no_totals),
    "moments": Operator(_moments, _moments_backward, ("sums", "totals"), _empty_moments),
}

# Defined by schema and not by torch's decorator: a decorated operator took 100 microseconds a call, this one takes 10.
LIBRARY = torch.library.Library("flashsign", "DEF")  # type: ignore[no-untyped-call]


def _fake_forward(name: str, q: Tensor, k: Tensor, v: Tensor, m: Tensor, offsets: Tensor | None, *_: object) -> Tensors:
    inverse = q.new_empty(q.shape[:3], dtype=torch.float32)
    return torch.empty_like(q), inverse, *OPERATORS[name].empty_totals(q, k, offsets)


def _fake_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, m: Tensor, *_: object) -> Tensors:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), m.new_empty(k.shape[:3])


def _register(name: str, operator: Operator) -> None:
    rows, call = "Tensor q, Tensor k, Tensor v, Tensor m", "Tensor? offsets, Tensor? query_offsets, float eps"
    saved = ("o", "inverse", *operator.totals)
    outputs, inputs = ", ".join(["Tensor"] * len(saved)), ", ".join(f"Tensor {tensor}" for tensor in saved)
    gradients = "(Tensor, Tensor, Tensor, Tensor)"
    LIBRARY.define(f"{name}({rows}, {call}) -> ({outputs})")  # type: ignore[no-untyped-call]
    LIBRARY.define(f"{name}_backward(Tensor grad, {rows}, {inputs}, {call}) -> {gradients}")  # type: ignore[no-untyped-call]
    torch.library.impl(LIBRARY, name, "CompositeExplicitAutograd")(operator.forward)
    torch.library.impl(LIBRARY, f"{name}_backward", "CompositeExplicitAutograd")(operator.backward)
    torch.library.register_fake(f"flashsign::{name}", partial(_fake_forward, name), lib=LIBRARY)
    torch.library.register_fake(f"flashsign::{name}_backward", _fake_backward, lib=LIBRARY)


for _name, _operator in OPERATORS.items():
    _register(_name, _operator)
