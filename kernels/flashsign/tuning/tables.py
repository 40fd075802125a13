"""Block sizes measured on an H200, by (bytes of a number, padded head width). An entry is for wider
heads, too, up to the next entry.

They are tables because a search at the first call would take seconds of every user.
`python -m flashsign.check` compares every entry with float64 on the GPU on which it runs. GPUs with
less shared memory take the first entry that fits, which was not measured on such a GPU.
flashsign.tuning.choose picks the entry for a launch.
"""

from __future__ import annotations

from dataclasses import dataclass

from flashsign.tuning.block_sizes import (
    BlockSizes,
    RowBlockSizes,
    SmallBagBlockSizes,
    for_every_width,
)

SEEN = frozenset({((9, 0), "3.6"), ((9, 0), "3.7")})
"""Compute capabilities with the releases of Triton with which all kernels were seen right on GPUs
of that kind (H100, H200). Elsewhere a kernel is checked before its first use (operators.verify).
"""
FALLBACK, SMALLEST = BlockSizes(32, 16, 4, 1), BlockSizes(16, 16, 4, 1)
"""Block sizes for GPUs whose shared memory is too small for every measured entry, and for FALLBACK.
"""

HOPPER: dict[tuple[int, int], list[BlockSizes]] = {
    (2, 64): [BlockSizes(256, 128, 8, 5), BlockSizes(128, 128, 8, 5)],
    (2, 128): [BlockSizes(256, 64, 8, 5), BlockSizes(128, 64, 8, 5)],
}
"""The forward kernel for Hopper: tiles of queries by tiles of keys. Other widths and dtypes take
the plain kernel.
"""

NAN_REPAIR = BlockSizes(128, 32, 8, 1)
"""triton/streaming/nan_repair.py: little shared memory, as nearly all of its programs end at once.
"""


@dataclass(frozen=True)
class SmallBags:
    """The most keys of a bag that one program can do, and its block sizes. 64 KiB of shared memory
    are enough.
    """

    keys: int
    forward: SmallBagBlockSizes
    backward: SmallBagBlockSizes


SMALL_BAGS: dict[tuple[int, int], SmallBags] = {
    (2, 16): SmallBags(128, SmallBagBlockSizes(64, 4), SmallBagBlockSizes(64, 4)),
    (2, 32): SmallBags(128, SmallBagBlockSizes(64, 4), SmallBagBlockSizes(64, 4, 4096)),
    (2, 64): SmallBags(128, SmallBagBlockSizes(64, 4), SmallBagBlockSizes(32, 8)),
    (4, 16): SmallBags(64, SmallBagBlockSizes(64, 4), SmallBagBlockSizes(32, 4)),
    (4, 32): SmallBags(64, SmallBagBlockSizes(64, 4), SmallBagBlockSizes(16, 4)),
}
"""The kernels in which one program does a whole bag. With aligned rows none of them spills even 3
registers.
"""

MOST_QUERIES = 128
"""The most queries of a small bag: with more, the other kernels are faster, as they start more
programs.
"""


KEPT = {"forward": 1, "key_gradients": 2, "query_gradient": 2, "edge_sums": 0}
"""From how many tensors a program keeps its own tile in shared memory."""
TABLES: dict[str, dict[tuple[int, int], list[BlockSizes]]] = {
    # The plain forward kernel: tiles of queries by tiles of keys. Entries for long bags come first.
    "forward": for_every_width(
        {
            (2, 16): [BlockSizes(128, 128, 4, 4)],
            (2, 64): [BlockSizes(128, 64, 8, 4), BlockSizes(64, 128, 4, 3)],
            (2, 128): [BlockSizes(256, 64, 8, 4), BlockSizes(128, 64, 8, 4)],
            (2, 256): [BlockSizes(128, 64, 8, 2)],
            (4, 16): [BlockSizes(64, 32, 4, 2)],
            (4, 64): [BlockSizes(128, 32, 8, 2)],
            (4, 128): [BlockSizes(32, 32, 4, 2)],
            (4, 256): [BlockSizes(32, 16, 4, 1)],
        }
    ),
    # The backward pass for keys and values: tiles of keys by tiles of queries.
    "key_gradients": for_every_width(
        {
            (2, 16): [BlockSizes(64, 64, 4, 4)],
            (2, 32): [BlockSizes(128, 64, 4, 3)],
            (2, 64): [BlockSizes(64, 64, 4, 3)],
            (2, 128): [BlockSizes(128, 64, 8, 3)],
            (2, 256): [BlockSizes(64, 64, 8, 1)],
            (4, 16): [BlockSizes(64, 32, 4, 2)],
            (4, 64): [BlockSizes(128, 32, 8, 2)],
            (4, 128): [BlockSizes(64, 32, 4, 2)],
            (4, 256): [BlockSizes(16, 16, 4, 1)],
        }
    ),
    # The backward pass for queries: tiles of queries by tiles of keys.
    "query_gradient": for_every_width(
        {
            (2, 16): [BlockSizes(128, 64, 4, 3)],
            (2, 64): [BlockSizes(64, 64, 4, 3)],
            (2, 128): [BlockSizes(64, 64, 4, 2)],
            (2, 256): [BlockSizes(64, 32, 4, 2)],
            (4, 16): [BlockSizes(64, 32, 4, 2)],
            (4, 64): [BlockSizes(32, 32, 4, 2)],
            (4, 128): [BlockSizes(32, 32, 4, 1)],
            (4, 256): [BlockSizes(16, 16, 4, 1)],
        }
    ),
    # Edge sums: tiles of targets by tiles of regulators, at most as tall as wide. Registers hold
    # two sums of a tile.
    "edge_sums": for_every_width(
        {
            (2, 16): [BlockSizes(128, 128, 8, 4)],
            (2, 64): [BlockSizes(128, 128, 8, 3)],
            (2, 128): [BlockSizes(128, 128, 8, 2)],
            (2, 256): [BlockSizes(64, 64, 4, 2)],
            (4, 16): [BlockSizes(64, 128, 8, 3)],
            (4, 64): [BlockSizes(64, 64, 4, 3)],
            (4, 128): [BlockSizes(64, 64, 4, 2)],
            (4, 256): [BlockSizes(32, 32, 4, 2)],
        }
    ),
}
"""The tables of kernels whose program keeps one tile and loops over others."""
PASSES: dict[str, dict[tuple[int, int], RowBlockSizes]] = {
    # Moments, forward: the pass over keys, which sums A and G.
    "moment_keys": for_every_width(
        {
            (2, 16): RowBlockSizes(128, 4, 3, 2),
            (2, 32): RowBlockSizes(128, 2, 2, 4),
            (2, 64): RowBlockSizes(256, 4, 3, 1),
            (2, 128): RowBlockSizes(64, 8, 6, 1),
            (4, 16): RowBlockSizes(64, 4, 3, 2),
            (4, 64): RowBlockSizes(32, 4, 3, 1),
            (4, 128): RowBlockSizes(16, 8, 2, 1),
        },
        widest=128,
    ),
    # Moments, forward: the pass over queries, which computes o.
    "moment_queries": for_every_width(
        {
            (2, 16): RowBlockSizes(128, 4, 3, 4),
            (2, 32): RowBlockSizes(64, 4, 3, 4),
            (2, 64): RowBlockSizes(64, 4, 3, 2),
            (4, 16): RowBlockSizes(64, 4, 2, 4),
            (4, 64): RowBlockSizes(64, 4, 2, 2),
            (4, 128): RowBlockSizes(32, 4, 1, 2),
        },
        widest=128,
    ),
    # Moments, backward: the pass over queries that sums dA and D = 2 dG.
    "moment_query_sums": for_every_width(
        {
            (2, 16): RowBlockSizes(64, 4, 3, 3),
            (2, 64): RowBlockSizes(64, 4, 3, 2),
            (2, 128): RowBlockSizes(64, 8, 3, 1),
            (4, 16): RowBlockSizes(64, 4, 1, 2),
            (4, 64): RowBlockSizes(32, 4, 1, 1),
            (4, 128): RowBlockSizes(16, 8, 1, 1),
        },
        widest=128,
    ),
    # Moments, backward: the pass over queries that computes dq.
    "moment_query_gradients": for_every_width(
        {
            (2, 16): RowBlockSizes(64, 4, 3, 4),
            (2, 64): RowBlockSizes(32, 4, 3, 3),
            (2, 128): RowBlockSizes(64, 8, 3, 1),
            (4, 16): RowBlockSizes(64, 4, 1, 2),
            (4, 64): RowBlockSizes(32, 4, 1, 2),
        },
        widest=128,
    ),
    # Moments, backward: the pass over keys, which computes dk, dv and dm.
    "moment_key_gradients": for_every_width(
        {
            (2, 16): RowBlockSizes(64, 4, 3, 4),
            (2, 32): RowBlockSizes(64, 4, 3, 2),
            (2, 128): RowBlockSizes(64, 8, 3, 1),
            (4, 16): RowBlockSizes(64, 4, 1, 2),
            (4, 64): RowBlockSizes(32, 4, 1, 2),
            (4, 128): RowBlockSizes(32, 8, 1, 1),
        },
        widest=128,
    ),
}
"""The tables of kernels that pass over rows once."""
IN_LITTLE_MEMORY: dict[str, dict[tuple[int, int], RowBlockSizes]] = {
    "moment_queries": {(2, 128): RowBlockSizes(64, 8, 2, 1)},
    "moment_query_sums": {(2, 128): RowBlockSizes(64, 8, 2, 1)},
    "moment_query_gradients": {(2, 128): RowBlockSizes(64, 8, 1, 1)},
    "moment_key_gradients": {(2, 128): RowBlockSizes(64, 8, 1, 1)},
}
"""Other entries of PASSES for GPUs whose programs have less than LITTLE_MEMORY bytes of shared
memory (capabilities 8.6, 8.9 and 12: 99 KiB), where those of the H200 do not fit. They were
compiled for such GPUs, never timed on one.
"""
LITTLE_MEMORY = 160 * 1024
NARROW: dict[str, dict[tuple[int, int], list[BlockSizes]]] = {
    "hopper": {
        (2, 64): [BlockSizes(256, 64, 8, 5), BlockSizes(128, 128, 8, 5)],
        (2, 128): [BlockSizes(256, 128, 8, 2), BlockSizes(128, 128, 8, 5)],
    },
    "key_gradients": {
        (2, 64): [BlockSizes(128, 64, 4, 3), BlockSizes(64, 64, 4, 3)],
        (2, 128): [BlockSizes(128, 128, 8, 3), BlockSizes(128, 64, 8, 3)],
    },
}
"""Other entries of HOPPER and TABLES for narrow values."""


def is_narrow(width: int, values: int | None) -> bool:
    """Return whether values, of a padded width, have block sizes of their own beside keys."""
    return values is not None and 4 * values <= width


def tiles_of(name: str, size: int, width: int, values: int | None = None) -> list[BlockSizes]:
    """Return block sizes of a kernel of TABLES, or "hopper", for numbers of `size` bytes and padded
    widths.
    """
    table = HOPPER if name == "hopper" else TABLES[name]
    own = NARROW.get(name, {}).get((size, width)) if is_narrow(width, values) else None
    return own or table[size, width]
