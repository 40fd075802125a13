"""GELU, SiLU and ReLU with their slopes, for tiles in registers.

GELU's normal distribution is Abramowitz and Stegun's 7.1.26: at most 1.5e-7 off, and its exponential is the one that
the slope needs. torch's erf takes two branches and thrice the instructions.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def normal(x):
    """The standard normal's distribution function and density at x, float32."""
    size = tl.abs(x) * 0.7071067811865476
    t = 1.0 / (1.0 + 0.3275911 * size)
    tail = t * (
        0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))
    )  # fmt: skip
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
