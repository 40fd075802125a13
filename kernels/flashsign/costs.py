"""What attention costs by the stream and by moments, on an H200: how `method="auto"` knows which is faster."""

from __future__ import annotations

from typing import Literal, NamedTuple

from flashsign.tuning import MOST_QUERIES, padded_width


class Costs(NamedTuple):
    """Microseconds of a call: (launches, every 1e9 pairs of a query and key times E) of the stream, and (launches,
    every 1e6 queries and keys times E) of moments."""

    stream: tuple[float, float]
    moments: tuple[float, float]


FORWARD_COSTS: dict[tuple[int, int], Costs] = {
    (2, 16): Costs((8, 12), (10.5, 2)),
    (2, 32): Costs((9, 8), (12, 2.3)),
    (2, 64): Costs((9, 9), (14, 1.6)),
    (2, 128): Costs((12, 9), (19, 1.75)),
    (4, 16): Costs((14, 100), (17, 4)),
    (4, 32): Costs((14, 80), (19, 6.5)),
    (4, 64): Costs((16, 95), (40, 10)),
    (4, 128): Costs((20, 115), (105, 17)),
}
BOTH_COSTS: dict[tuple[int, int], Costs] = {
    (2, 16): Costs((24, 40), (20, 5)),
    (2, 32): Costs((28, 24), (24, 5.6)),
    (2, 64): Costs((28, 40), (33, 5)),
    (2, 128): Costs((34, 20), (45, 4)),
    (4, 16): Costs((40, 300), (40, 15)),
    (4, 32): Costs((40, 250), (40, 20)),
    (4, 64): Costs((45, 300), (80, 30)),
    (4, 128): Costs((60, 350), (300, 60)),
}
"""Of a forward alone and with its backward, by (bytes of a number, padded head width): benchmarks/crossing.py."""

PACKED_COST = 40.0
"""Microseconds more that packed bags cost the stream: a schedule of tiles, and zeros between the bags."""


def faster(
    size: int,
    width: int,
    bags: int,
    heads: int,
    key_heads: int,
    queries: float,
    keys: float,
    gradients: bool,
    packed: bool,
) -> Literal["stream", "moments"]:
    """Which kernels take less time for so many bags of so many queries and keys; width: not padded, 128 at most."""
    if max(queries, keys) <= MOST_QUERIES:  # the fewest launches, at any width
        return "stream"
    padded = padded_width(width)
    costs = (BOTH_COSTS if gradients else FORWARD_COSTS)[size, padded]
    pairs = bags * heads * queries * keys * padded / 1e9
    rows = bags * (heads * queries + key_heads * keys) * padded / 1e6
    stream = costs.stream[0] + costs.stream[1] * pairs + PACKED_COST * packed
    return "stream" if stream <= costs.moments[0] + costs.moments[1] * rows else "moments"
