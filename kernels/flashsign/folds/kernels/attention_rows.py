"""Rows of the template of attention: what a score is lifted to, and how totals are normalised.

A row's totals are u = sum_j a1(s_ij) v_j and z = sum_j a2(s_ij), its output u r(z):

    spherical      a1 = s          a2 = s^2       r = 1 / sqrt(z + eps |q|^2 t + tiny)
    L1             a1 = s          a2 = |s|       r = 1 / z
    squared ReLU   a1 = max(s, 0)^2 = a2          r = 1 / z
    softmax        a1 = e^s = a2                  r = 1 / z

Of softmax, scores are taken less the largest one so far, and totals rescaled when that grows.
A row of one's own is four functions of tiles in float32, with triton.jit. Where z is 0, r is 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl


class Row(NamedTuple):
    """lift(s) -> a1, a2; slopes(s) -> their derivatives; normalise(z, floor) -> r; log_slope(z,
    floor) -> r' / r.

    exponential: scores are taken times log2(e), multiplicities added as logarithms, totals rescaled
        by the largest score so far, and lift gets what is left of a score. relative: floor is eps
        |q|^2 t, otherwise 0.
    """

    lift: Any
    slopes: Any
    normalise: Any
    log_slope: Any
    exponential: bool = False
    relative: bool = False


@triton.jit
def spherical_lift(s):
    return s, s * s


@triton.jit
def spherical_slopes(s):
    return 1.0, 2.0 * s


@triton.jit
def root_normalise(z, floor):
    return tl.where(z + floor > 0, tl.rsqrt(z + floor + 1.1754943508222875e-38), 0.0)


@triton.jit
def root_log_slope(z, floor):
    return tl.where(z + floor > 0, -0.5 / (z + floor + 1.1754943508222875e-38), 0.0)


@triton.jit
def size_lift(s):
    return s, tl.abs(s)


@triton.jit
def size_slopes(s):
    return 1.0, tl.where(s > 0, 1.0, tl.where(s < 0, -1.0, 0.0))


@triton.jit
def squared_relu_lift(s):
    positive = tl.maximum(s, 0.0)
    return positive * positive, positive * positive


@triton.jit
def squared_relu_slopes(s):
    twice = 2.0 * tl.maximum(s, 0.0)
    return twice, twice


@triton.jit
def exponential_lift(s):
    weight = tl.exp2(s)
    return weight, weight


@triton.jit
def divide_normalise(z, floor):
    return tl.where(z > 0, 1.0 / z, 0.0)


@triton.jit
def divide_log_slope(z, floor):
    return tl.where(z > 0, -1.0 / z, 0.0)


ROWS = {
    "spherical": Row(
        spherical_lift, spherical_slopes, root_normalise, root_log_slope, relative=True
    ),
    "l1": Row(size_lift, size_slopes, divide_normalise, divide_log_slope),
    "squared_relu": Row(squared_relu_lift, squared_relu_slopes, divide_normalise, divide_log_slope),
    "softmax": Row(
        exponential_lift, exponential_lift, divide_normalise, divide_log_slope, exponential=True
    ),
}
"""The rows by name. The slope of e^s is e^s."""
