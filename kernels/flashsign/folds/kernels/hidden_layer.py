"""The two-layer MLP of tiles: sum_j act(x . P_j + b_j) Q_j, plain or gated, whose hidden units
exist a tile at a time.

A program of the forward keeps a tile of rows and loops over hidden units. One of the backward keeps
a tile of hidden units and loops over rows, so that their gradients stay in registers; it adds the
rows' gradients to memory, tile by tile. Five products of rows x hidden units x width: with the
forward's two, 14 operations where the plain MLP has 12.

The backward computes everything transposed, [hidden units, rows], because no accumulator may be
transposed between two products (Triton has miscompiled that), and so the rows' gradients are summed
as [D, N].

Letters: N rows, K hidden units, D width of the input, D' of the output.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from flashsign.attention.call import precision
from flashsign.folds.kernels.fold_tables import (
    GATED_BACKWARD,
    GATED_FORWARD,
    MLP_BACKWARD,
    MLP_FORWARD,
    of_width,
)
from flashsign.triton.common.launch import start
from flashsign.triton.common.layout import cdiv, tiles_of
from flashsign.tuning.block_sizes import BlockSizes, padded_width
from flashsign.tuning.device import multiprocessor_count

# GELU's normal distribution is Abramowitz and Stegun's 7.1.26: at most 1.5e-7 off, and its
# exponential is the one that the slope needs. torch's erf takes two branches and thrice the
# instructions.


@triton.jit
def normal(x):
    """The standard normal's distribution function and density at x, float32."""
    size = tl.abs(x) * 0.7071067811865476
    t = 1.0 / (1.0 + 0.3275911 * size)
    tail = t * (
        0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))
    )
    bell = tl.exp2(size * size * -1.4426950408889634)
    tail = 0.5 * tail * bell
    return tl.where(x > 0, 1.0 - tail, tail), bell * 0.3989422804014327


@triton.jit
def activated(x, ACTIVATION: tl.constexpr):
    """The activation of x, float32."""
    if ACTIVATION == "gelu":
        below, _ = normal(x)
        return x * below
    elif ACTIVATION == "silu":
        return x / (1.0 + tl.exp2(x * -1.4426950408889634))
    else:
        return tl.maximum(x, 0.0)


@triton.jit
def activated_with_slope(x, ACTIVATION: tl.constexpr):
    """The activation of x and its derivative there, float32."""
    if ACTIVATION == "gelu":
        below, density = normal(x)
        return x * below, below + x * density
    elif ACTIVATION == "silu":
        share = 1.0 / (1.0 + tl.exp2(x * -1.4426950408889634))
        value = x * share
        return value, share + value * (1.0 - share)
    else:
        return tl.maximum(x, 0.0), tl.where(x > 0, 1.0, 0.0)


@triton.jit
def mlp_forward(
    x,
    gate,
    up,
    bias,
    down,
    down_bias,
    out,
    rows,
    hidden,
    tiles,
    out_row,
    OUT: tl.constexpr,
    IN_PAD: tl.constexpr,
    OUT_PAD: tl.constexpr,
    ROWS: tl.constexpr,
    UNITS: tl.constexpr,
    STAGES: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """Program (tile of rows, part of the hidden units). x, gate, up, down [D', K]: descriptors;
    gate, biases: or None.

    out [N, D']: written, or with SPLIT float32, to which the parts are added.
    """
    row = tl.program_id(0) * ROWS
    first = tl.program_id(1) * tiles * UNITS
    x_tile = x.load([row, 0])
    sums = tl.zeros([ROWS, OUT_PAD], tl.float32)
    for begin in tl.range(
        first, tl.minimum(first + tiles * UNITS, hidden), UNITS, num_stages=STAGES
    ):
        h = tl.dot(x_tile, up.load([begin, 0]).T, input_precision=PRECISION)
        if bias is not None:
            unit = begin + tl.arange(0, UNITS)
            h += tl.load(bias + unit, mask=unit < hidden, other=0.0).to(tl.float32)[None, :]
        if gate is not None:
            h *= activated(
                tl.dot(x_tile, gate.load([begin, 0]).T, input_precision=PRECISION), ACTIVATION
            )
        else:
            h = activated(h, ACTIVATION)
        sums = tl.dot(h.to(x_tile.dtype), down.load([0, begin]).T, sums, input_precision=PRECISION)
    row += tl.arange(0, ROWS)
    column = tl.arange(0, OUT_PAD)
    if down_bias is not None:  # noqa: SIM102 (the one is decided when it is compiled, the other when it runs)
        if first == 0:
            sums += tl.load(down_bias + column, mask=column < OUT, other=0.0).to(tl.float32)[
                None, :
            ]
    here = (row < rows)[:, None] & (column < OUT)[None, :]
    at = out + row.to(tl.int64)[:, None] * out_row + column[None, :]
    if SPLIT:
        tl.atomic_add(at, sums, mask=here, sem="relaxed")
    else:
        tl.store(at, sums.to(out.dtype.element_ty), mask=here)


@triton.jit
def mlp_backward(
    x,
    grad,
    gate,
    up,
    bias,
    down,
    d_x,
    d_gate,
    d_up,
    d_bias,
    d_down,
    rows,
    hidden,
    tiles,
    rows_padded,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    IN_PAD: tl.constexpr,
    OUT_PAD: tl.constexpr,
    ROWS: tl.constexpr,
    UNITS: tl.constexpr,
    STAGES: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
    SPLIT: tl.constexpr,
    BULK: tl.constexpr,
):
    """Program (tile of hidden units, part of the rows). x, grad, gate, up, down: descriptors, as in
    the forward.

    d_x [D, rows_padded] float32: added to, by descriptor if BULK. The others [K, D], [K, D], [K],
        [D', K]: written, or with SPLIT float32, to which the parts are added.
    """
    unit = tl.program_id(0) * UNITS
    first = tl.program_id(1) * tiles * ROWS
    up_tile = up.load([unit, 0])
    down_tile = down.load([0, unit]).T
    units = unit + tl.arange(0, UNITS)
    there = units < hidden
    up_sum = tl.zeros([UNITS, IN_PAD], tl.float32)
    down_sum = tl.zeros([UNITS, OUT_PAD], tl.float32)
    if gate is not None:
        gate_tile = gate.load([unit, 0])
        gate_sum = tl.zeros([UNITS, IN_PAD], tl.float32)
    if bias is not None:
        bias_tile = tl.load(bias + units, mask=there, other=0.0).to(tl.float32)
        bias_sum = tl.zeros([UNITS], tl.float32)
    feature = tl.arange(0, IN_PAD)
    for begin in tl.range(first, tl.minimum(first + tiles * ROWS, rows), ROWS, num_stages=STAGES):
        x_tile = x.load([begin, 0])
        grads = grad.load([begin, 0])
        h = tl.dot(up_tile, x_tile.T, input_precision=PRECISION)
        if bias is not None:
            h += bias_tile[:, None]
        d_value = tl.dot(down_tile, grads.T, input_precision=PRECISION)
        if gate is not None:
            g = tl.dot(gate_tile, x_tile.T, input_precision=PRECISION)
            value, slope = activated_with_slope(g, ACTIVATION)
            d_g = (d_value * h * slope).to(x_tile.dtype)
            d_h = d_value * value
            value *= h
            gate_sum = tl.dot(d_g, x_tile, gate_sum, input_precision=PRECISION)
            d_rows = tl.dot(gate_tile.T, d_g, input_precision=PRECISION)
        else:
            value, slope = activated_with_slope(h, ACTIVATION)
            d_h = d_value * slope
            d_rows = tl.zeros([IN_PAD, ROWS], tl.float32)
        if bias is not None:
            bias_sum += tl.sum(d_h, 1)
        d_h = d_h.to(x_tile.dtype)
        down_sum = tl.dot(value.to(grads.dtype), grads, down_sum, input_precision=PRECISION)
        up_sum = tl.dot(d_h, x_tile, up_sum, input_precision=PRECISION)
        d_rows = tl.dot(up_tile.T, d_h, d_rows, input_precision=PRECISION)
        if BULK:
            d_x.atomic_add([0, begin], d_rows)
        else:
            row = begin + tl.arange(0, ROWS)
            at = d_x + feature.to(tl.int64)[:, None] * rows_padded + row[None, :]
            tl.atomic_add(
                at, d_rows, mask=(feature < IN)[:, None] & (row < rows)[None, :], sem="relaxed"
            )
    here = there[:, None] & (feature < IN)[None, :]
    at = units.to(tl.int64)[:, None] * IN + feature[None, :]
    _put(d_up + at, up_sum, here, SPLIT)
    if gate is not None:
        _put(d_gate + at, gate_sum, here, SPLIT)
    if bias is not None:
        _put(d_bias + units, bias_sum, there, SPLIT)
    column = tl.arange(0, OUT_PAD)
    at = column.to(tl.int64)[None, :] * hidden + units[:, None]
    _put(d_down + at, down_sum, there[:, None] & (column < OUT)[None, :], SPLIT)


@triton.jit
def _put(at, sums, here, SPLIT: tl.constexpr):
    """Write sums, or add them where other programs have other parts."""
    if SPLIT:
        tl.atomic_add(at, sums, mask=here, sem="relaxed")
    else:
        tl.store(at, sums.to(at.dtype.element_ty), mask=here)


def forward(
    x: Tensor,
    up: Tensor,
    down: Tensor,
    bias: Tensor | None,
    down_bias: Tensor | None,
    gate: Tensor | None,
    activation: str,
    sizes: BlockSizes | None = None,
) -> Tensor:
    """Compute an MLP, contiguous.

    x [N, D], up and gate [K, D], down [D', K], bias [K], down_bias [D'] -> [N, D'], x's dtype.

    sizes: own rows, other hidden units; default: the table's.
    """
    (rows, width), (out_width, hidden) = x.shape, down.shape
    table = MLP_FORWARD if gate is None else GATED_FORWARD
    sizes = sizes or of_width(table, x, max(width, out_width), 3 if gate is None else 4)
    own = cdiv(rows, sizes.own)
    tiles, splits = _parts(own, cdiv(hidden, sizes.other), x, 1)
    out = (
        x.new_zeros(rows, out_width, dtype=torch.float32)
        if splits > 1
        else x.new_empty(rows, out_width)
    )
    start(
        mlp_forward,
        (own, splits),
        {
            **_arguments(x, gate, up, bias, down, sizes.own, sizes.other, sizes.stages),
            "down_bias": down_bias,
            "out": out,
            "out_row": out_width,
            "tiles": tiles,
            "ACTIVATION": activation,
            "SPLIT": splits > 1,
        },
        num_warps=sizes.warps,
    )
    return out.to(x.dtype)


def backward(
    grad: Tensor,
    x: Tensor,
    up: Tensor,
    down: Tensor,
    bias: Tensor | None,
    gate: Tensor | None,
    activation: str,
    sizes: BlockSizes | None = None,
    bulk: bool | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return gradients for x, up, down, bias and gate from that of the output [N, D'] (arguments as
    in forward).

    bulk: whether a tile of d_x is added in one piece by the copy engine; default: on Hopper and
        later.
    """
    (rows, width), (out_width, hidden) = x.shape, down.shape
    table = MLP_BACKWARD if gate is None else GATED_BACKWARD
    sizes = sizes or of_width(table, x, max(width, out_width), 4 if gate is None else 5)
    own = cdiv(hidden, sizes.own)
    tiles, splits = _parts(own, cdiv(rows, sizes.other), x, 2)
    if bulk is None:
        bulk = x.is_cuda and torch.cuda.get_device_capability(x.device) >= (9, 0)
    rows_padded = cdiv(rows, 4) * 4  # a descriptor's rows lie a multiple of 16 bytes apart
    d_x = x.new_zeros(width, rows_padded, dtype=torch.float32)

    def made(like: Tensor) -> Tensor:
        return (
            like.new_zeros(like.shape, dtype=torch.float32)
            if splits > 1
            else torch.empty_like(like)
        )

    d_up, d_down = made(up), made(down)
    d_bias, d_gate = (None if like is None else made(like) for like in (bias, gate))
    to: Any = d_x
    if bulk:
        block = [padded_width(width), sizes.other]
        to = TensorDescriptor(d_x, [width, rows], [rows_padded, 1], block)
    start(
        mlp_backward,
        (own, splits),
        {
            **_arguments(x, gate, up, bias, down, sizes.other, sizes.own, sizes.stages),
            "grad": tiles_of(grad, sizes.other, padded_width(out_width)),
            "d_x": to,
            "d_gate": d_gate,
            "d_up": d_up,
            "d_bias": d_bias,
            "d_down": d_down,
            "rows_padded": rows_padded,
            "tiles": tiles,
            "ACTIVATION": activation,
            "SPLIT": splits > 1,
            "BULK": bulk,
        },
        num_warps=sizes.warps,
    )
    d_rows = torch.empty_like(x).copy_(d_x[:, :rows].mT)
    return (
        d_rows,
        d_up.to(up.dtype),
        d_down.to(down.dtype),
        None if d_bias is None or bias is None else d_bias.to(bias.dtype),
        None if d_gate is None else d_gate.to(x.dtype),
    )


def _arguments(
    x: Tensor,
    gate: Tensor | None,
    up: Tensor,
    bias: Tensor | None,
    down: Tensor,
    rows: int,
    units: int,
    stages: int,
) -> dict[str, Any]:
    """Return the arguments that both kernels have in common; rows, units: of a tile."""
    (out_width, hidden), width = down.shape, x.shape[1]
    in_pad, out_pad = padded_width(width), padded_width(out_width)
    return {
        "x": tiles_of(x, rows, in_pad),
        "gate": None if gate is None else tiles_of(gate, units, in_pad),
        "up": tiles_of(up, units, in_pad),
        "bias": bias,
        "down": tiles_of(down, out_pad, units),
        "rows": len(x),
        "hidden": hidden,
        "IN": width,
        "OUT": out_width,
        "IN_PAD": in_pad,
        "OUT_PAD": out_pad,
        "ROWS": rows,
        "UNITS": units,
        "STAGES": stages,
        "PRECISION": precision(x.dtype),
    }


def _parts(own: int, others: int, x: Tensor, each: int) -> tuple[int, int]:
    """Return tiles that a program loops over, and programs per own tile, so that every
    multiprocessor has `each` programs.

    Several per own tile take float32 sums and atomic additions, so there is one where own tiles are
    enough.
    """
    programs = each * multiprocessor_count(x.device) if x.is_cuda else 2
    splits = max(1, min(others, programs // max(1, own)))
    tiles = cdiv(others, splits)
    return tiles, cdiv(others, tiles) if others else 1
