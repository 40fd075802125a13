"""RMSNorm in one pass over the rows: x / sqrt(mean of x^2 + eps) times a weight, and its gradients.

Letters: N rows, D features.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashsign.triton.common.device_functions import load_rows, store_rows
from flashsign.triton.common.launch import start
from flashsign.triton.common.layout import cdiv
from flashsign.tuning.device import multiprocessor_count

NUMBERS = 4096
"""Numbers of a tile, in registers."""


@triton.jit
def norm_forward(
    x,
    weight,
    out,
    inverse,
    rows,
    x_row,
    eps,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    ROWS: tl.constexpr,
):
    """A program does a tile of rows. weight [D]; out [N, D]; inverse [N] float32: 1 / sqrt(mean of
    x^2 + eps).
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, D_PAD)
    tile = load_rows(x, row[:, None], x_row, row < rows, column, D).to(tl.float32)
    by = tl.rsqrt(tl.sum(tile * tile, 1) / D + eps)
    tl.store(inverse + row, by, mask=row < rows)
    scale = tl.load(weight + column, mask=column < D, other=0.0).to(tl.float32)
    store_rows(out, row[:, None], D, row < rows, column, D, tile * by[:, None] * scale[None, :])


@triton.jit
def norm_backward(
    x,
    grad,
    weight,
    inverse,
    d_x,
    d_weight,
    rows,
    tiles,
    x_row,
    grad_row,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    ROWS: tl.constexpr,
):
    """A program does some tiles of rows. d_x [N, D]; d_weight [programs, D] float32: each program's
    part.
    """
    program = tl.program_id(0)
    column = tl.arange(0, D_PAD)
    scale = tl.load(weight + column, mask=column < D, other=0.0).to(tl.float32)
    sums = tl.zeros([D_PAD], tl.float32)
    for tile in range(program * tiles, tl.minimum((program + 1) * tiles, tl.cdiv(rows, ROWS))):
        row = (tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        by = tl.load(inverse + row, mask=row < rows, other=0.0)
        tile = load_rows(x, row[:, None], x_row, row < rows, column, D)
        normal = tile.to(tl.float32) * by[:, None]
        g = load_rows(grad, row[:, None], grad_row, row < rows, column, D).to(tl.float32)
        sums += tl.sum(g * normal, 0)
        g *= scale[None, :]
        result = (g - normal * (tl.sum(g * normal, 1) / D)[:, None]) * by[:, None]
        store_rows(d_x, row[:, None], D, row < rows, column, D, result)
    tl.store(d_weight + program * D + column, sums, mask=column < D)


def forward(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Normalise the rows of x.

    x [N, D] with adjacent features, weight [D] -> rows like x, contiguous, and inverse [N] float32.
    """
    rows, width = x.shape
    out, inverse = x.new_empty(rows, width), x.new_empty(rows, dtype=torch.float32)
    padded, own, warps = _tile(width)
    start(
        norm_forward,
        (cdiv(rows, own),),
        {
            "x": x,
            "x_row": x.stride(0),
            "rows": rows,
            "weight": weight,
            "eps": eps,
            "out": out,
            "inverse": inverse,
            "D": width,
            "D_PAD": padded,
            "ROWS": own,
        },
        num_warps=warps,
    )
    return out, inverse


def backward(grad: Tensor, x: Tensor, weight: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """Return gradients for x [N, D] and for weight [D], in float32."""
    rows, width = x.shape
    padded, own, warps = _tile(width)
    all_tiles = cdiv(rows, own)
    tiles = cdiv(all_tiles, 2 * multiprocessor_count(x.device) if x.is_cuda else 2)
    programs = cdiv(all_tiles, tiles)
    d_x, d_weight = x.new_empty(rows, width), x.new_empty(programs, width, dtype=torch.float32)
    start(
        norm_backward,
        (programs,),
        {
            "x": x,
            "x_row": x.stride(0),
            "rows": rows,
            "tiles": tiles,
            "grad": grad,
            "grad_row": grad.stride(0),
            "weight": weight,
            "inverse": inverse,
            "d_x": d_x,
            "d_weight": d_weight,
            "D": width,
            "D_PAD": padded,
            "ROWS": own,
        },
        num_warps=warps,
    )
    return d_x, d_weight.sum(0)


def _tile(width: int) -> tuple[int, int, int]:
    """Return padded width, rows and warps of a tile."""
    padded = max(16, 1 << (width - 1).bit_length())
    own = max(1, NUMBERS // padded)
    return padded, own, 4 if padded <= NUMBERS else 8
