"""Two-layer MLPs over K / D, RMSNorm, and the template of attention with and without exponentials."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from flashsign import mlp, normalised_attention, rms_norm, spherical_attention
from folds_parts.cases import Case, Method, Scale, drawn


def mlp_cases(scale: Scale, device: torch.device, backend: Any) -> Iterator[Case]:
    torch.manual_seed(0)
    rows, width = scale.rows, scale.narrow
    make = partial(drawn, device, torch.bfloat16)
    x = make(rows, width)
    for gated in (False, True):
        for hidden in scale.hidden if not gated else scale.hidden[-1:]:
            up, gate = (make(hidden, width, scale=width**-0.5) for _ in range(2))
            down = make(width, hidden, scale=hidden**-0.5)
            plain = _gated if gated else _plain
            inputs = (x, up, down, gate) if gated else (x, up, down)
            methods = {
                "flashsign": Method(partial(_ours, backend=backend), 11 if gated else 7),
                "torch, eager": Method(plain, 9 if gated else 6),
            }
            if gated or hidden in (scale.hidden[-1], *scale.hidden[3::2]):
                methods["torch.compile"] = Method(torch.compile(plain, dynamic=False), 9 if gated else 6)
            if gated:
                methods |= _liger_tiled(rows)
            sizes = {"rows": rows, "items": hidden, "width": width}
            name = "SwiGLU MLP" if gated else "MLP"
            stored = (2 + gated) * 2.0 * rows * hidden
            yield Case(name, sizes, inputs, methods, plain, 2.0 * rows * hidden * width, stored)
    # Twice as wide; and wider than the kernel's tiles: there torch's slices are taken.
    for width in (2 * scale.narrow, 4 * scale.narrow):
        hidden = 64 * scale.narrow
        x, up = make(rows, width), make(hidden, width, scale=width**-0.5)
        down = make(width, hidden, scale=hidden**-0.5)
        methods = {"flashsign": Method(partial(_ours, backend=backend), 7), "torch, eager": Method(_plain, 6)}
        sizes = {"rows": rows, "items": hidden, "width": width}
        product = 2.0 * rows * hidden * width
        yield Case("wider MLP", sizes, (x, up, down), methods, _plain, product, 4.0 * rows * hidden)


def _ours(x: Tensor, up: Tensor, down: Tensor, gate: Tensor | None = None, backend: Any = "auto") -> Tensor:
    return mlp(x, up, down, gate=gate, activation="gelu" if gate is None else "silu", backend=backend)


def _plain(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return F.linear(F.gelu(F.linear(x, up)), down)


def _gated(x: Tensor, up: Tensor, down: Tensor, gate: Tensor) -> Tensor:
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def _liger_tiled(rows: int) -> dict[str, Method]:
    try:
        from liger_kernel.ops import LigerSiLUMulFunction, apply_tiled_mlp
    except ImportError:
        return {}

    def run(x: Tensor, up: Tensor, down: Tensor, gate: Tensor, shards: int | None = None) -> Tensor:
        def of_rows(_: object, x: Tensor) -> Tensor:
            return F.linear(LigerSiLUMulFunction.apply(F.linear(x, gate), F.linear(x, up)), down)

        # It gives the weights' gradients by their .grad, which autograd.grad then does not see.
        return apply_tiled_mlp(of_rows, None, x, shards, [up, down, gate])

    return {"Liger, tiled": Method(run, 12), "Liger, 32 tiles": Method(partial(run, shards=32), 12)}


def norm_cases(scale: Scale, device: torch.device, backend: Any) -> Iterator[Case]:
    torch.manual_seed(0)
    for width in (scale.narrow, 8 * scale.narrow, 32 * scale.narrow):
        x, weight = drawn(device, torch.bfloat16, scale.rows, width), drawn(device, torch.bfloat16, width)

        def plain(x: Tensor, weight: Tensor) -> Tensor:
            return F.rms_norm(x, x.shape[-1:], weight, 1e-6)

        methods = {
            "flashsign": Method(partial(rms_norm, backend=backend)),
            "torch, eager": Method(plain),
            "torch.compile": Method(torch.compile(plain, dynamic=False)),
            **_liger_norm(),
        }
        sizes = {"rows": scale.rows, "items": 0, "width": width}
        yield Case("RMSNorm", sizes, (x, weight), methods, plain, 0.0, 2.0 * scale.rows * width)


def _liger_norm() -> dict[str, Method]:
    try:
        from liger_kernel.ops import LigerRMSNormFunction
    except ImportError:
        return {}
    return {"Liger": Method(lambda x, weight: LigerRMSNormFunction.apply(x, weight, 1e-6, 0.0, "llama", False))}


def attention_cases(scale: Scale, device: torch.device, backend: Any) -> Iterator[Case]:
    torch.manual_seed(0)
    shape = 1, scale.heads, scale.genes
    for width in (scale.narrow // 2, scale.narrow):
        q, k, v = (drawn(device, torch.float16, *shape, width) for _ in range(3))
        q = (q.detach() * width**-0.5).requires_grad_()
        methods = {
            f"template, {name}": Method(partial(normalised_attention, normaliser=name, backend=backend))
            for name in ("spherical", "l1", "squared_relu", "softmax")
        }
        if device.type == "cuda":
            methods["tuned stream, spherical"] = Method(partial(spherical_attention, method="stream"))
        methods |= _sdpa(device)
        sizes = {"rows": scale.genes, "items": scale.genes, "width": width}
        product = 2.0 * scale.heads * scale.genes**2 * width
        yield Case("attention", sizes, (q, k, v), methods, None, product, 2.0 * scale.heads * scale.genes**2)


def _sdpa(device: torch.device) -> dict[str, Method]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kinds = {"SDPA cuDNN, softmax": SDPBackend.CUDNN_ATTENTION, "SDPA flash, softmax": SDPBackend.FLASH_ATTENTION}
    if device.type != "cuda":
        kinds = {"SDPA math, softmax": SDPBackend.MATH}

    def run(q: Tensor, k: Tensor, v: Tensor, kind: Any) -> Tensor:
        with sdpa_kernel(kind):
            return F.scaled_dot_product_attention(q, k, v, scale=1.0)

    return {name: Method(partial(run, kind=kind)) for name, kind in kinds.items()}
