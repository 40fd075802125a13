"""Runs the kernels of a plan. Importing this module does not import Triton."""

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from flashsign.attention.call import AttentionCall
from flashsign.attention.dispatch import Plan
from flashsign.tuning.choose import TABLES_ALONE, Tiles

Tensors = tuple[Tensor, ...]


@cache
def _launches(module: str) -> ModuleType:
    return importlib.import_module(f"flashsign.triton.{module}")


def forward(plan: Plan, call: AttentionCall, tiles: Tiles = TABLES_ALONE) -> Tensors:
    """Return o [C', H, N, V], 1 / n [C', H, N] float32, and of moments the sums and totals of A and
    G.

    See empty_totals.

    tiles: block sizes of some kernels.
    """
    results: Tensors
    if plan.kernel == "triton_moments":
        results = _launches("moments.moment_launches").forward(call, tiles)
    elif plan.kernel == "triton_small_bags":
        results = _launches("small_bags").forward(call)
    else:
        results = _launches("streaming.stream_launches").forward(call, plan.kernel, tiles)
    return results


def backward(
    plan: Plan, call: AttentionCall, grad: Tensor, *saved: Tensor, tiles: Tiles = TABLES_ALONE
) -> Tensors:
    """Return dq, dk, dv like q, k, v, and dm [C', K, M] float32 of every key head.

    grad: of o; saved: forward's results.
    """
    gradients: Tensors
    if plan.kernel == "triton_moments":
        gradients = _launches("moments.moment_launches").backward(call, grad, *saved, tiles)
    elif plan.kernel == "triton_small_bags":
        gradients = _launches("small_bags").backward(call, grad, *saved)
    else:
        gradients = _launches("streaming.stream_launches").backward(
            call, grad, *saved, tiles, plan.dq_from_moments
        )
    return gradients


def empty_totals(call: AttentionCall) -> Tensors:
    """Return room for the results of moments behind 1 / n.

    sums [bags K, E' V' + E' E'] and totals [bags K, 4, blocks], float32; E' and V' are the padded
    widths.
    """
    bags_and_heads, width = call.bags * call.heads[1], call.width
    sums = call.q.new_empty(bags_and_heads, width * (call.value_width + width), dtype=torch.float32)
    return sums, call.q.new_empty(bags_and_heads, 4, -(-(width**2) // 1024), dtype=torch.float32)
