"""Every row of the table of monoids, with float64 items for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import flashsign
from flashsign import Monoid

QUERIES, WIDTH, CLASSES = 3, 2, 9


@dataclass(frozen=True)
class Row:
    """draw(random, n): items [n, ...] and shared tensors; rows: shared has a row for each row of
    the total.
    """

    monoid: Monoid
    draw: Callable[[torch.Generator, int], tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]
    rows: bool = True

    def items(self, seed: int, n: int):
        return self.draw(torch.Generator().manual_seed(seed), n)

    def leaves(self, seed: int, n: int):
        """The same, as leaves: every tensor of numbers wants a gradient."""
        drawn = self.items(seed, n)
        return tuple(
            tuple(x.clone().requires_grad_(x.is_floating_point()) for x in each) for each in drawn
        )


def normal(random, *shape):
    return torch.randn(shape, generator=random, dtype=torch.float64)


def values(random, n):
    return (normal(random, n, WIDTH),), ()


def weighted(random, n):
    return (normal(random, n, WIDTH), normal(random, n).exp()), ()


def log_weighted(random, n):
    return (5 * normal(random, n), normal(random, n, WIDTH)), ()


def exponents(random, n):
    return (normal(random, n, WIDTH), 5 * normal(random, n)), ()


def keys(random, n):
    """Keys and values for a few queries; about a third of the multiplicities are 0."""
    m = normal(random, n).exp() * (torch.rand(n, generator=random, dtype=torch.float64) > 0.3)
    return (normal(random, n, WIDTH), normal(random, n, WIDTH), m), (
        normal(random, QUERIES, WIDTH),
    )


def classes(random, n):
    """A layer with a bias; one target is ignored."""
    target = torch.randint(0, max(n, 1), (QUERIES,), generator=random)
    target[1] = -100
    return (normal(random, n, WIDTH), normal(random, n)), (normal(random, QUERIES, WIDTH), target)


def distributions(random, n):
    shared = normal(random, QUERIES, WIDTH), normal(random, QUERIES, WIDTH + 1)
    return (normal(random, n, WIDTH), normal(random, n, WIDTH + 1)), shared


def listed(random, n):
    """A few classes with weights for every row; some are padding, some are listed twice."""
    at = torch.randint(-1, max(n, 1), (QUERIES, 4), generator=random)
    return (normal(random, n, WIDTH),), (
        normal(random, QUERIES, WIDTH),
        at,
        normal(random, QUERIES, 4).exp(),
    )


def hidden(bias=False, gated=False):
    def draw(random, n):
        layer = [normal(random, n, WIDTH) for _ in range(1 + gated)]
        more = [normal(random, n)] if bias else []
        return (*layer, *more, normal(random, n, WIDTH + 1)), (normal(random, QUERIES, WIDTH),)

    return draw


def features(random, n):
    x = normal(random, n, QUERIES)
    return (x,), (x + 0.0,)


L1 = flashsign.normalised_contraction("L1 attention", lambda s: s, torch.abs, lambda z: z + 1e-3)
SQUARED_RELU = flashsign.normalised_contraction(
    "squared ReLU attention",
    lambda s: s.relu().square(),
    lambda s: s.relu().square(),
    lambda z: z + 1e-3,
)

ROWS = {
    "sum": Row(flashsign.SUM, values, rows=False),
    "weighted sum": Row(flashsign.WEIGHTED_SUM, weighted, rows=False),
    "weighted mean": Row(flashsign.WEIGHTED_MEAN, weighted, rows=False),
    "largest": Row(flashsign.MAX, values, rows=False),
    "product": Row(flashsign.PRODUCT, values, rows=False),
    "log-sum-exp": Row(flashsign.LOG_SUM_EXP, values, rows=False),
    "log-weighted sum": Row(flashsign.LOG_WEIGHTED_SUM, log_weighted, rows=False),
    "log-weighted mean": Row(flashsign.LOG_WEIGHTED_MEAN, log_weighted, rows=False),
    "safe exponential sum": Row(flashsign.SAFE_EXPONENTIAL_SUM, exponents, rows=False),
    "softmax": Row(flashsign.SOFTMAX, keys),
    "spherical": Row(flashsign.spherical_monoid(eps=0.1), keys),
    "L1": Row(L1, keys),
    "squared ReLU": Row(SQUARED_RELU, keys),
    "classes": Row(flashsign.class_cross_entropy(CLASSES), classes),
    "classes, smoothed": Row(flashsign.class_cross_entropy(CLASSES, label_smoothing=0.2), classes),
    "distributions": Row(flashsign.DISTRIBUTION_CROSS_ENTROPY, distributions),
    "weights": Row(flashsign.WEIGHTED_CROSS_ENTROPY, listed),
    "GELU": Row(flashsign.mlp_monoid("gelu"), hidden()),
    "SiLU": Row(flashsign.mlp_monoid("silu"), hidden()),
    "ReLU with bias": Row(flashsign.mlp_monoid("relu", bias=True), hidden(bias=True)),
    "SwiGLU": Row(flashsign.mlp_monoid("silu", gated=True), hidden(gated=True)),
    "gated with bias": Row(
        flashsign.mlp_monoid("gelu", gated=True, bias=True), hidden(bias=True, gated=True)
    ),
    "RMSNorm": Row(flashsign.rms_norm_monoid(), features, rows=False),
}
LAYERS = {name: row for name, row in ROWS.items() if row.rows}
"""Rows of the table with a result for every row of A."""
