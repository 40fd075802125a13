"""Launches of the kernels of logits.py: totals of rows over all classes, and gradients in slices of
classes.

A slice holds the gradients of the logits of all rows and some classes, in the inputs' dtype. A
layer's gradient for these classes is one product with it; the rows' gradient, of all slices, is
summed in float32. So beyond inputs and outputs there is one slice (two, where a teacher learns too)
and the rows' gradient in float32.

Gradients of logits are kept in units of the largest one for a loss: in float16 those of a mean
would vanish.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from flashsign.attention.call import precision
from flashsign.eager.products import add_product, unit_of, wide_product
from flashsign.folds.kernels import logits
from flashsign.folds.kernels.fold_tables import (
    CLASS_GRADIENTS,
    CLASS_TOTALS,
    DISTRIBUTION_GRADIENTS,
    DISTRIBUTION_TOTALS,
    LOGITS_WIDTH,
    of_logits,
)
from flashsign.triton.common.launch import start
from flashsign.triton.common.layout import UncheckedDescriptor, cdiv, tiles_of
from flashsign.tuning.block_sizes import BlockSizes
from flashsign.tuning.device import multiprocessor_count

SLICE_BYTES = 2**27
"""Gradients of logits that exist at one time, 128 MiB: all rows and 4096 classes where there are 16
384 rows.
"""
CACHED_BYTES = 2**24
"""Rows that programs read at one time, again and again (logits.tile_and_part): a third of the
second-level cache of an H100 or H200.
"""
NARROWEST = 512
"""The fewest classes of a slice, whatever its bytes."""


def class_totals(
    h: Tensor,
    c: Tensor,
    bias: Tensor | None,
    target: Tensor | None,
    shares: tuple[float, float] = (1.0, 0.0),
    sizes: BlockSizes | None = None,
) -> tuple[Tensor, Tensor]:
    """Return log sum_j e^x_ij, and what the target has: shares[0] x_it + shares[1] sum_j x_ij, [N]
    float32 each.

    h [N, D], c [V, D] contiguous, bias [V], target int64 [N] (a number that is no class has 0);
    without one all is 0.
    """
    rows, classes = len(h), len(c)
    sizes = sizes or of_logits(CLASS_TOTALS, h)
    own, tiles, parts = _grid(rows, classes, sizes, h)
    p = h.new_empty(parts, rows, dtype=torch.float32)
    picked = None if target is None else torch.empty_like(p)
    start(
        logits.class_totals,
        (own, parts),
        {
            **_arguments(sizes, classes, h),
            "h": _tiles(h, sizes.own),
            "c": _tiles(c, sizes.other),
            "bias": bias,
            "target": target,
            "p": p,
            "picked": picked,
            "tiles": tiles,
            "on_target": shares[0],
            "on_all": shares[1],
            "SMOOTHED": shares[1] != 0,
        },
        num_warps=sizes.warps,
    )
    return torch.logsumexp(p, 0), p.new_zeros(rows) if picked is None else picked.sum(0)


def class_gradients(
    h: Tensor,
    c: Tensor,
    bias: Tensor | None,
    target: Tensor | None,
    p: Tensor,
    slopes: tuple[Tensor, Tensor | None, Tensor | None],
    wanted: tuple[bool, bool, bool],
    listed: tuple[Tensor, Tensor] | None = None,
    sizes: BlockSizes | None = None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return gradients for h, c and bias (None: not wanted).

    Those of the logits are a_i e^(x_ij - p_i) - [j = t_i] b_i - c_i.

    slopes: a, b and c, [N] float32. listed: classes [N, L] and the gradients of their logits [N, L]
        float32, which replace the formula's; classes that are none are left out, and a class that
        is listed twice has one gradient.
    """
    rows, classes = len(h), len(c)
    sizes = sizes or of_logits(CLASS_GRADIENTS, h)
    unit = unit_of(*(x for x in slopes if x is not None))
    a, b, on_all = (None if x is None else x / unit for x in slopes)
    d_h = h.new_zeros(h.shape, dtype=torch.float32) if wanted[0] else None
    d_c = torch.empty_like(c) if wanted[1] else None
    d_bias = None if bias is None or not wanted[2] else torch.empty_like(bias)
    # Lists of classes and weights take room beside the slice.
    for first, last, room in _slices(
        h, classes, 1, SLICE_BYTES if listed is None else SLICE_BYTES * 3 // 4
    ):
        (d_x,) = room
        start(
            logits.class_gradients,
            (cdiv(rows, sizes.own), cdiv(last - first, sizes.other)),
            {
                **_arguments(sizes, last, h),
                "h": _tiles(h, sizes.own),
                "c": _tiles(c, sizes.other),
                "bias": bias,
                "target": target,
                "p": p,
                "a": a,
                "b": b,
                "on_all": on_all,
                "out": d_x,
                "out_row": d_x.stride(0),
                "first": first,
            },
            num_warps=sizes.warps,
        )
        if listed is not None:
            _replace(d_x, listed[0], listed[1] / unit, first, last)
        d_x = d_x[:, : last - first]
        if d_h is not None:
            add_product(d_h, d_x, c[first:last])
        if d_c is not None:
            d_c[first:last] = wide_product(d_x.mT, h).mul_(unit)
        if d_bias is not None:
            d_bias[first:last] = d_x.sum(0, dtype=torch.float32) * unit
    return None if d_h is None else d_h.mul_(unit).to(h.dtype), d_c, d_bias


def distribution_totals(
    s: Tensor, s_layer: Tensor, t: Tensor, t_layer: Tensor, sizes: BlockSizes | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the log-sum-exps of both tables of logits, and the mean of the student's under the
    teacher.

    s [N, D], s_layer [V, D], t [N, D'], t_layer [V, D'] contiguous -> [N] float32 each.
    """
    rows, classes = len(s), len(s_layer)
    sizes = sizes or of_logits(DISTRIBUTION_TOTALS, s)
    own, tiles, parts = _grid(rows, classes, sizes, s)
    q, p, mean = (s.new_empty(parts, rows, dtype=torch.float32) for _ in range(3))
    start(
        logits.distribution_totals,
        (own, parts),
        {
            **_arguments(sizes, classes, s, t),
            **_of_both(s, s_layer, t, t_layer, sizes),
            "p": p,
            "q": q,
            "mean": mean,
            "tiles": tiles,
        },
        num_warps=sizes.warps,
    )
    whole = torch.logsumexp(p, 0)
    return torch.logsumexp(q, 0), whole, (mean * (p - whole).exp_()).sum(0)


def distribution_gradients(
    s: Tensor,
    s_layer: Tensor,
    t: Tensor,
    t_layer: Tensor,
    totals: tuple[Tensor, Tensor, Tensor],
    grad: Tensor,
    wanted: tuple[bool, bool, bool, bool],
    sizes: BlockSizes | None = None,
) -> tuple[Tensor | None, ...]:
    """Return gradients for s, s_layer, t and t_layer from that of the losses [N]; totals: of
    distribution_totals.
    """
    rows, classes = len(s), len(s_layer)
    sizes = sizes or of_logits(DISTRIBUTION_GRADIENTS, s)
    unit = unit_of(grad)
    slope = grad / unit
    q, p, mean = totals
    teaches = wanted[2] or wanted[3]
    found: list[Tensor | None] = [
        None
        if not asked
        else torch.empty_like(x)
        if of_layer
        else x.new_zeros(x.shape, dtype=torch.float32)
        for x, asked, of_layer in zip(
            (s, s_layer, t, t_layer), wanted, (False, True) * 2, strict=True
        )
    ]
    for first, last, (d_s, *d_t) in _slices(s, classes, 1 + teaches, SLICE_BYTES):
        start(
            logits.distribution_gradients,
            (cdiv(rows, sizes.own), cdiv(last - first, sizes.other)),
            {
                **_arguments(sizes, last, s, t),
                **_of_both(s, s_layer, t, t_layer, sizes),
                "p": p,
                "q": q,
                "mean": mean,
                "g": slope,
                "d_s": d_s,
                "d_t": d_t[0] if d_t else None,
                "out_row": d_s.stride(0),
                "first": first,
            },
            num_warps=sizes.warps,
        )
        for number, (d_x, x, layer) in enumerate(
            ((d_s, s, s_layer), *((d, t, t_layer) for d in d_t))
        ):
            d_x = d_x[:, : last - first]
            d_rows, d_layer = found[2 * number], found[2 * number + 1]
            if d_rows is not None:
                add_product(d_rows, d_x, layer[first:last])
            if d_layer is not None:
                d_layer[first:last] = wide_product(d_x.mT, x).mul_(unit)
    for number, x in ((0, s), (2, t)):
        d_rows = found[number]
        found[number] = None if d_rows is None else d_rows.mul_(unit).to(x.dtype)
    return tuple(found)


def listed_logits(h: Tensor, c: Tensor, bias: Tensor | None, listed: Tensor) -> Tensor:
    """Return the logits of the listed classes [N, L] of every row, 0 for those that are none:
    [N, L] float32.
    """
    rows, length = listed.shape
    out = h.new_empty(rows, length, dtype=torch.float32)
    if not out.numel():
        return out
    block = min(32, 1 << (length - 1).bit_length())
    start(
        logits.listed_logits,
        (rows, cdiv(length, block)),
        {
            "h": h,
            "h_row": h.shape[1],
            "c": c,
            "c_row": c.shape[1],
            "bias": bias,
            "listed": listed,
            "length": length,
            "classes": len(c),
            "out": out,
            "D": h.shape[1],
            "WIDTH": 128,
            "LISTED": block,
        },
        num_warps=4,
    )
    return out


def _arguments(sizes: BlockSizes, classes: int, *rows: Tensor) -> dict[str, Any]:
    """Return the arguments that the kernels of logits have in common; rows: one or two tensors."""
    first = rows[0]
    width = sum(x.shape[1] * x.element_size() for x in rows)
    return {
        "rows": len(first),
        "classes": classes,
        "group": max(1, CACHED_BYTES // (sizes.own * width)),
        "D": first.shape[1],
        "T_D": rows[-1].shape[1],
        "ROWS": sizes.own,
        "CLASSES": sizes.other,
        "WIDTH": LOGITS_WIDTH[first.element_size()],
        "STAGES": sizes.stages,
        "PRECISION": precision(first.dtype),
    }


def _tiles(matrix: Tensor, rows: int) -> UncheckedDescriptor:
    return tiles_of(matrix, rows, LOGITS_WIDTH[matrix.element_size()])


def _of_both(
    s: Tensor, s_layer: Tensor, t: Tensor, t_layer: Tensor, sizes: BlockSizes
) -> dict[str, Any]:
    return {
        "s": _tiles(s, sizes.own),
        "s_layer": _tiles(s_layer, sizes.other),
        "t": _tiles(t, sizes.own),
        "t_layer": _tiles(t_layer, sizes.other),
    }


def _grid(rows: int, classes: int, sizes: BlockSizes, x: Tensor) -> tuple[int, int, int]:
    """Return tiles of rows, tiles of classes that a program loops over, and programs for one tile
    of rows.
    """
    own, others = cdiv(rows, sizes.own), cdiv(classes, sizes.other)
    # Eight programs for every multiprocessor: the last ones to end keep few of them waiting.
    programs = 8 * multiprocessor_count(x.device) if x.is_cuda else 2
    tiles = cdiv(others, max(1, min(others, cdiv(programs, own))))
    return own, tiles, cdiv(others, tiles)


def _slices(
    x: Tensor, classes: int, tables: int, most: int
) -> Iterator[tuple[int, int, list[Tensor]]]:
    """Return first and last class of each slice, and room for the gradients of its logits, whose
    last column is no class.

    most: bytes of a slice; tables: of logits.
    """
    width = most // (tables * x.element_size() * max(1, len(x)))
    width = min(classes, max(NARROWEST, width // NARROWEST * NARROWEST))
    # Rows of multiples of 16 bytes, which cuBLAS needs for its fast kernels, and at least one
    # column to spare.
    room = [x.new_empty(len(x), (width // 8 + 1) * 8) for _ in range(tables)]
    for first in range(0, classes, width):
        yield first, min(first + width, classes), room


def _replace(d_x: Tensor, classes: Tensor, grads: Tensor, first: int, last: int) -> None:
    """Write the gradients of listed classes [N, L] into the slice of the classes from first to
    last.
    """
    inside = (classes >= first) & (classes < last)
    # Those outside of the slice go to its last column, which belongs to no class.
    d_x.scatter_(1, torch.where(inside, classes - first, d_x.shape[1] - 1), grads.to(d_x.dtype))
