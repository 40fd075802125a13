"""Two-layer MLPs, plain and gated, that never hold their hidden layer: a fold over hidden units.

It pays where the hidden layer is much wider than the input: extra memory is a slice instead of rows
x hidden units, for 14 operations where the plain MLP has 12. Letters: N rows, K hidden units, D and
D' widths of input and output. Source: MonoidReduce, A. Cuba Gyllensten, 2025.
"""

from __future__ import annotations

from torch import Tensor

from flashsign.attention.dispatch import Backend
from flashsign.attention.validation import check_layer
from flashsign.eager.transforms import as_autocast, without_autocast
from flashsign.errors import ShapeMismatch
from flashsign.folds.algebra.monoids.mlp import Activation, mlp_monoid
from flashsign.folds.algebra.reduce import monoid_reduce
from flashsign.folds.layers.backend import choose_fold
from flashsign.folds.layers.by_kernels import hidden_layer

CHUNK = 512
"""Rows and hidden units of a slice in torch: 1 MiB of float32."""
GPU_ROWS = 8192
"""Rows of a slice in torch on a GPU, where smaller slices end before Python has started the next.
"""


def mlp(
    x: Tensor,
    up: Tensor,
    down: Tensor,
    bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    *,
    gate: Tensor | None = None,
    activation: Activation = "gelu",
    row_chunk: int | None = None,
    hidden_chunk: int = CHUNK,
    backend: Backend = "auto",
) -> Tensor:
    """Return act(x @ up.T + bias) @ down.T + down_bias.

    With gate (act(x @ gate.T) * (x @ up.T + bias)) @ down.T + down_bias.

    x [..., D], up and gate [K, D], down [D', K], bias [K], down_bias [D'], as in torch.nn.Linear,
    one floating dtype -> [..., D'], the same dtype; sums over hidden units are float32 at least.
    activation: gelu, silu or relu; gate with silu is a SwiGLU. Memory: inputs, output, gradients,
        and x's gradient in float32 (by the GPU's kernel, for D and D' up to 256) or slices of
        row_chunk x hidden_chunk (in torch; row_chunk: by default CHUNK, on a GPU GPU_ROWS). The
        kernel adds x's gradient in any order; where torch is asked for deterministic algorithms,
        torch's slices are taken.
    Raises ShapeMismatch, ValueError for an unknown activation or backend.

    Example:
        >>> import torch
        >>> from flashsign import mlp
        >>> x, up, down = torch.randn(2, 5, 8), torch.nn.Linear(8, 64), torch.nn.Linear(64, 8)
        >>> output = mlp(x, up.weight, down.weight, up.bias, down.bias)
        >>> torch.allclose(output, down(torch.nn.functional.gelu(up(x))), atol=1e-5)
        True
    """
    x, up, down, bias, down_bias, gate = as_autocast(x, up, down, bias, down_bias, gate)
    check_layer(x, up, bias, "x", "up")
    if gate is not None and (gate.shape, gate.dtype, gate.device) != (
        up.shape,
        up.dtype,
        up.device,
    ):
        raise ShapeMismatch(
            f"gate must be like up, {list(up.shape)} {up.dtype}; not {list(gate.shape)} "
            f"{gate.dtype}."
        )
    if (
        down.ndim != 2
        or down.shape[1] != len(up)
        or (down.dtype, down.device) != (up.dtype, up.device)
    ):
        raise ShapeMismatch(
            f"down must be [D', {len(up)}] {up.dtype}; found {list(down.shape)} {down.dtype}."
        )
    if down_bias is not None and (
        down_bias.shape != down.shape[:1]
        or not down_bias.is_floating_point()
        or down_bias.device != down.device
    ):
        found = f"{list(down_bias.shape)} {down_bias.dtype} on {down_bias.device}"
        raise ShapeMismatch(
            f"down_bias must be floating [{len(down)}] on {down.device}; found {found}."
        )
    rows = x.flatten(0, -2)
    row_chunk = (GPU_ROWS if x.is_cuda else CHUNK) if row_chunk is None else row_chunk
    # Built before the choice, as it refuses unknown activations.
    monoid = mlp_monoid(activation, gated=gate is not None, bias=bias is not None)

    def plain(
        x: Tensor,
        up: Tensor,
        down: Tensor,
        bias: Tensor | None,
        down_bias: Tensor | None,
        gate: Tensor | None,
    ) -> Tensor:
        layer = tuple(tensor for tensor in (gate, up, bias, down.mT) if tensor is not None)
        total = monoid_reduce(monoid, (x,), layer, a_chunk=row_chunk, b_chunk=hidden_chunk)
        with without_autocast(x):
            return (total if down_bias is None else total + down_bias).to(x.dtype)

    widths = x.shape[-1], len(up), len(down)
    if choose_fold(backend, "mlp", rows, widths, (x.shape[-1], len(down))) == "triton":
        output = hidden_layer(plain, rows, up, down, bias, down_bias, gate, activation)
    else:
        output = plain(rows, up, down, bias, down_bias, gate)
    return output.reshape(*x.shape[:-1], len(down))
