"""The Triton kernels as operators of torch, so that torch.compile sees one node where they run.

    flashsign::stream, flashsign::moments                       q, k, v, m -> o, 1 / n, and what else a backward takes
    flashsign::stream_backward, flashsign::moments_backward     and a gradient of o -> dq, dk, dv, dm

In the one layout of operators.layout, m float32. Importing this module imports no Triton.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache, partial
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from flashsign.tuning.head_width import moment_block, padded_width

Tensors = tuple[Tensor, ...]


class Operator(NamedTuple):
    """kernels: the module whose forward and backward run. totals: names of the tensors that forward returns after o
    and 1 / n, and empty_totals: those tensors, empty, of a call (q, k, offsets)."""

    kernels: str
    totals: tuple[str, ...]
    empty_totals: Callable[[Tensor, Tensor, Tensor | None], Tensors]


def _no_totals(q: Tensor, k: Tensor, offsets: Tensor | None) -> Tensors:
    return ()


def _empty_moments(q: Tensor, k: Tensor, offsets: Tensor | None) -> Tensors:
    """sums [bags K, 2, E', E'] and totals [bags K, 4, .], float32, of each bag's keys; E' is E's padded width."""
    squares = (q.shape[0] if offsets is None else offsets.shape[0] - 1) * k.shape[1]
    width = padded_width(q.shape[-1])
    sums = q.new_empty(squares, 2, width, width, dtype=torch.float32)
    return sums, q.new_empty(squares, 4, width**2 // moment_block(width), dtype=torch.float32)


OPERATORS = {
    "stream": Operator("flashsign.triton.streaming.calls", (), _no_totals),
    "moments": Operator("flashsign.triton.moments.calls", ("sums", "totals"), _empty_moments),
}

# Defined by schema rather than by decorator: a decorated operator took 100 microseconds a call, this one 10.
LIBRARY = torch.library.Library("flashsign", "DEF")  # type: ignore[no-untyped-call]


@cache
def kernels(name: str) -> ModuleType:
    return importlib.import_module(OPERATORS[name].kernels)


def run_forward(
    name: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    m: Tensor,
    offsets: Tensor | None,
    query_offsets: Tensor | None,
    eps: float,
) -> Tensors:
    """o like q, 1 / n [C', H, N] float32, and the operator's totals."""
    found: Tensors = kernels(name).forward(q, k, v, m, offsets, query_offsets, eps)
    return found


def run_backward(name: str, *arguments: Tensor | float | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dq, dk, dv like q, k, v, and dm [C', K, M] float32 of every key head; arguments: those of the operator."""
    found: tuple[Tensor, Tensor, Tensor, Tensor] = kernels(name).backward(*arguments)
    return found


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
    torch.library.impl(LIBRARY, name, "CompositeExplicitAutograd")(partial(run_forward, name))
    torch.library.impl(LIBRARY, f"{name}_backward", "CompositeExplicitAutograd")(partial(run_backward, name))
    torch.library.register_fake(f"flashsign::{name}", partial(_fake_forward, name), lib=LIBRARY)
    torch.library.register_fake(f"flashsign::{name}_backward", _fake_backward, lib=LIBRARY)


for _name, _operator in OPERATORS.items():
    _register(_name, _operator)
