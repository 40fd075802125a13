"""The times of attention by the stream and by moments, by which `method="auto"` takes the faster
one.

Of the kernels they were measured on an H200; of torch the operations are counted.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

from flashsign.tuning.block_sizes import padded_width
from flashsign.tuning.tables import MOST_QUERIES


class Costs(NamedTuple):
    """Microseconds of a call by each method: a fixed time, and a time per unit of work. The unit of
    the stream is 1e9 pairs of a query and a key times E, that of moments 1e6 queries and keys times
    E.
    """

    stream: tuple[float, float]
    moments: tuple[float, float]


FORWARD_COSTS: dict[tuple[int, int], Costs] = {
    (2, 16): Costs((10, 15), (13, 1.4)),
    (2, 32): Costs((11.5, 8), (14.5, 1.75)),
    (2, 64): Costs((10.5, 7), (15.5, 1.5)),
    (2, 128): Costs((16, 7), (23.5, 1.45)),
    (4, 16): Costs((16, 103), (17, 3.3)),
    (4, 32): Costs((18, 120), (21, 3.6)),
    (4, 64): Costs((28, 120), (42, 5)),
    (4, 128): Costs((25, 119), (109, 9.3)),
}
BOTH_COSTS: dict[tuple[int, int], Costs] = {
    (2, 16): Costs((31, 54), (23.5, 5.3)),
    (2, 32): Costs((31, 36), (28, 4.8)),
    (2, 64): Costs((32, 35), (32.5, 4.8)),
    (2, 128): Costs((41.5, 44), (53, 5.4)),
    (4, 16): Costs((48, 540), (34, 10)),
    (4, 32): Costs((59, 360), (44, 11.5)),
    (4, 64): Costs((105, 435), (81, 24)),
    (4, 128): Costs((200, 1000), (247, 26)),
}
"""Costs of a forward alone, and of a forward with its backward, by (bytes of a number, padded head
width). Measured by benchmarks/crossing.py.
"""

PACKED_COST = 40.0
"""Microseconds that the stream takes longer for packed bags: it makes a schedule of tiles, and
zeros between bags.
"""


TORCH_MOMENT_COST = {False: 1, True: 4}
"""Time of an operation of torch's moments relative to one of its stream, outside of a transform
(False) and inside (True): inside, moments are summed in float64 and took four times as long on a
CPU.
"""


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
    """Return the method whose kernels take less time for bags of so many queries and keys (packed:
    on average).

    size: bytes of a number; width: of a head, not padded, at most 128; gradients: whether a
        backward follows.
    """
    if max(queries, keys) <= MOST_QUERIES:  # the stream has the fewest launches, at any width
        return "stream"
    padded = padded_width(width)
    costs = (BOTH_COSTS if gradients else FORWARD_COSTS)[size, padded]
    pairs = bags * heads * queries * keys * padded / 1e9
    rows = bags * (heads * queries + key_heads * keys) * padded / 1e6
    stream = costs.stream[0] + costs.stream[1] * pairs + PACKED_COST * packed
    return "stream" if stream <= costs.moments[0] + costs.moments[1] * rows else "moments"


def torch_method(
    method: Literal["auto", "stream", "moments"],
    queries: int,
    keys: int,
    width: int,
    in_transform: bool,
) -> Literal["stream", "moments"]:
    """Return the method that torch takes: for "auto" the one with less work, (N + M) E^2 for
    moments, N M E otherwise.

    queries: N, of all heads that share a key head; keys: M; width: E. Sizes that torch.export
        leaves open cannot be compared; then moments, whose time and memory are linear in any size.
    """
    if method != "auto":
        return method
    if isinstance(queries, torch.SymInt) or isinstance(keys, torch.SymInt):
        return "moments"
    return (
        "moments"
        if queries * keys > TORCH_MOMENT_COST[in_transform] * (queries + keys) * width
        else "stream"
    )
